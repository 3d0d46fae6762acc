"""A step is the sum of its parts, agrees with a schedule on a clock, and reacts to each choice as it must."""

from dataclasses import replace
from fractions import Fraction

import pytest

from shardlab import schedules
from shardlab.costs import memory, step, tensor_parallel
from shardlab.costs import zero as zero_costs
from shardlab.costs.compute import flops, roofline
from shardlab.costs.compute.kernels import matmul_seconds
from shardlab.costs.facts import hardware, models, nodes
from shardlab.costs.facts.network import uniform
from shardlab.costs.facts.recipes import MIXED, RECIPES
from shardlab.costs.memory import activations, shards
from shardlab.costs.pipeline import timeline
from shardlab.costs.planning import plans
from shardlab.costs.programs import DEEPSPEED_2021, MEGATRON_2021, MEGATRON_2022, NEMO_2024, PROGRAMS
from shardlab.costs.published import studies
from shardlab.costs.step import axes, elementwise, exposed, layer_time, products, replicas
from shardlab.costs.step.layer_time import LayerTime, PassTime
from shardlab.costs.step.replicas import DataWait
from shardlab.costs.traces import knee
from shardlab.costs.training import Training
from shardlab.model.recurrent import RULES
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout, stages

from ...sharding.test_hybrids import HALVES, HYBRID, SPARSE, STATES

DGX = nodes.cluster("DGX A100", 8)


def micro(layer, first=0, last=0):
    idle = PassTime(0, 0, 0)
    time = LayerTime(forward=idle, backward=idle, recomputed=0, entering=(0, 0), leaving=(0, 0))
    waiting = {"tensor": exposed.Passes(0, 0), "context": 0}
    return step.MicrobatchTime(
        time=time, first=first, last=last, layer=layer, forward=0, backward=0, **waiting
    )


@pytest.mark.parametrize("name", ["1F1B", "GPipe", "naive"])
@pytest.mark.parametrize("pp", [1, 2, 3, 5])
@pytest.mark.parametrize("m", [1, 2, 7])
@pytest.mark.parametrize("ends", [(0, 0), (1, 0), (0, 5), (2, 3)], ids=str)
def test_the_pipeline_takes_as_long_as_its_schedule_played_on_a_clock(name, pp, m, ends):
    """Seven layers of three seconds, a third of them forward."""
    counts = [len(stage) for stage in stages(7, pp)]
    whole = [3 * count for count in counts]
    whole[0] += ends[0]
    whole[-1] += ends[1]
    durations = [{"F": Fraction(total, 3), "B": Fraction(2 * total, 3)} for total in whole]
    played = timeline.play(schedules.make(name, pp, m), durations).makespan
    time, cut = micro(3, *ends), step.stages_of(7, pp)
    ours = step.pipeline_seconds(time, DataWait(0, 0, 0), cut, num_microbatches=m, schedule=name)
    if name == "1F1B" and max(whole) > whole[-1]:  # an early stage is the slowest: others wait less than at the end
        assert played <= ours <= 1.25 * played
    else:
        assert ours == played


@pytest.mark.parametrize(("pp", "chunks", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 9), (3, 4, 3)])
def test_equal_chunks_shorten_the_bubble_as_the_schedule_does(pp, chunks, m):
    each = {"F": Fraction(1, chunks), "B": Fraction(2, chunks)}
    played = timeline.play(schedules.make("interleaved", pp, m, chunks), each).makespan
    cut = step.stages_of(pp * chunks, pp, chunks)
    time, size = micro(Fraction(3, chunks)), {"num_microbatches": m, "chunks": chunks}
    assert step.pipeline_seconds(time, DataWait(0, 0, 0), cut, schedule="interleaved", **size) == played


def test_time_and_memory_deal_the_same_layers_to_the_stages():
    """Llama 3 405B: embedding and head take the place of a layer, so that 14 stages have eight and the ends seven."""
    spec = models.published("Llama 3 405B").spec
    layout = Layout(tp=8, pp=16, sequence_parallel=True)
    training = Training(spec=spec, layout=layout, schedule="interleaved", chunks=8, num_microbatches=16)
    timed = step.stages_of(126, 16, 8)
    assert (timed.first, timed.most_between, timed.last) == (7, 8, 7)
    held = [shards.parameters(spec, layout, stage, 8) for stage in range(16)]
    layer = shards.parameters(spec, layout, 1, 8)["attention"] // 8
    assert [parts["attention"] // layer for parts in held] == [7, *[8] * 14, 7]
    per_stage = [sum(memory.per_rank(training, stage).values()) for stage in range(16)]
    assert memory.total(training) == max(per_stage) == per_stage[1]


def run(layout, *, model="GPT-2 XL", cluster=DGX, program=NEMO_2024, **options):
    training = Training(spec=models.published(model).spec, layout=layout, program=program, **options)
    return step.Run(training=training, cluster=cluster)


LAYOUTS = [
    Layout(),
    Layout(dp=8),
    Layout(dp=64, zero=1),
    Layout(dp=16, zero=2),
    Layout(dp=64, zero=3),
    Layout(tp=5, sequence_parallel=False),
    Layout(pp=4, dp=2),
    Layout(pp=8, tp=5, zero=0),
    Layout(cp=4, dp=4, zero=1),
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=lambda program: program.name)
def test_parts_are_not_negative_and_what_is_not_there_takes_no_time(layout, program):
    found = step.step(run(layout, program=program, num_microbatches=4))
    assert min(found.parts.values()) >= 0
    assert found.seconds == sum(found.parts.values())
    silent = {
        "tensor parallel": layout.tp == 1,
        "context parallel": layout.cp == 1,
        "pipeline messages": layout.pp == 1,
        "ZeRO": layout.zero < 2,
        "recomputation": not program.kernels.repeated,
    }
    assert all(found.parts[part] == 0 for part, none in silent.items() if none)
    assert found.parts["waiting for stages"] == pytest.approx(0, abs=1e-12) or layout.pp > 1
    assert (found.communication > 0) == (layout.ranks > 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_hiding_messages_or_a_faster_network_never_slows_down(layout):
    slow = step.step(run(layout, program=studies.WITHOUT, num_microbatches=4)).seconds
    assert step.step(run(layout, num_microbatches=4)).seconds <= slow
    rates = [10.0**exponent for exponent in range(6, 14)]
    seconds = studies.over_networks(run(layout, num_microbatches=4), rates)
    assert seconds == sorted(seconds, reverse=True)


def test_utilisation_is_counted_flops_over_time():
    found = step.step(run(Layout(dp=8), num_microbatches=2))
    counted = flops.model_flops(found.run.training.spec, batch=16, sequence=1024)
    assert found.run.batch == 16
    assert found.run.tokens == 16 * 1024
    assert found.mfu == pytest.approx(counted / found.seconds / 8 / 312e12)
    assert found.days(found.tokens_per_second * 86_400) == pytest.approx(1)


def test_twice_the_replicas_do_twice_the_work_if_nothing_is_waited_for():
    one, two = (step.step(run(Layout(dp=dp), num_microbatches=16)) for dp in (8, 16))
    assert two.tokens_per_second / one.tokens_per_second == pytest.approx(2, rel=0.01)


def test_more_ranks_than_gpus_are_refused():
    with pytest.raises(ValueError, match="128 ranks does not fit on 8 × DGX A100 with 64 GPUs"):
        run(Layout(dp=128))


# ---- what Narayanan et al. 2021 saw (https://arxiv.org/abs/2104.04473) -----------------------------------------------


def rate(layers, width, layout, batch, microbatch=1):
    """FLOP/s of a GPU, all layers computed again, as they count."""
    spec = TransformerSpec(vocab_size=51_200, context_length=2048, hidden_size=width, num_layers=layers, num_heads=128)
    training = Training(
        spec=spec,
        layout=layout,
        microbatch=microbatch,
        num_microbatches=batch // (layout.dp * microbatch),
        attention="stored",
        dropout=True,
        recomputation="full",
    )
    found = step.step(step.Run(training=replace(training, program=MEGATRON_2021), cluster=DGX))
    return flops.hardware_flops(spec, batch=batch, sequence=2048) / found.seconds / layout.ranks


@pytest.mark.parametrize("batch", [32, 128])
def test_tensor_parallelism_is_best_as_wide_as_a_node(batch):
    """Figure 13: 161 billion parameters on 64 GPUs run fastest with tp = pp = 8."""
    rates = {pp: rate(32, 20_480, Layout(tp=64 // pp, pp=pp), batch) for pp in (2, 4, 8, 16, 32)}
    assert max(rates, key=rates.__getitem__) == 8


def test_the_best_microbatch_is_neither_smallest_nor_largest():
    """Figure 16: 91 billion parameters on 64 GPUs, tp = pp = 8, run fastest with microbatches of 2.

    With 512 sequences they do here, too; with 128, where they gained 2 %, they lose 3 %.
    """
    many, few = (
        {size: rate(32, 15_360, Layout(tp=8, pp=8), batch, size) for size in (1, 2, 4, 8)} for batch in (512, 128)
    )
    assert max(many, key=many.__getitem__) == 2
    assert few[2] == pytest.approx(few[1] / 1.031, rel=0.002)
    assert few[2] > max(few[4], few[8])


def test_a_larger_batch_feeds_a_deeper_pipeline():
    """Figure 11: with layers in proportion to stages, 8 sequences starve 8 stages, 128 hardly do."""
    alone, deep = Layout(tp=8), Layout(tp=8, pp=8)
    kept = {batch: rate(24, 20_480, deep, batch) / rate(3, 20_480, alone, batch) for batch in (8, 128)}
    assert kept[8] < 0.6
    assert kept[128] > 0.88


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("model", ["GPT-2 XL", "Llama 3 8B"])
def test_messages_between_replicas_carry_the_bytes_of_zero(zero, model):
    layout = Layout(dp=8, zero=zero)
    training = Training(spec=models.published(model).spec, layout=layout, num_microbatches=5, sequence=1024)
    link = replace(hardware.link("NVLink 4"), latency=0.0).reached
    held = step.holdings(training)
    sent = replicas.data_messages(layout, training.recipe, NEMO_2024, link, held)
    every_microbatch = held.layers * (sent.scatter + 2 * sent.gather) + sent.rest
    seconds = sent.average + sent.cut_average + sent.update + 5 * every_microbatch
    assert seconds * link.bandwidth == pytest.approx(sum(zero_costs.sent_bytes(training).values()), rel=1e-4)  # padding
    late = replicas.data_messages(layout, training.recipe, NEMO_2024, link, held, late=True)
    assert late.scatter == 0
    assert late.gather == sent.gather
    once = replicas.data_messages(Layout(dp=8, zero=1), training.recipe, NEMO_2024, link, held).cut_average
    assert late.cut_average == (once if zero > 1 else sent.cut_average)


def test_every_bucket_of_gradients_pays_its_latency():
    """NeMo's have a layer, or several that are small; of a stage only the first of its chunks is cut."""
    llama = Training(spec=models.published("Llama 3 8B").spec, layout=Layout(dp=64, zero=1))
    held, none = step.holdings(llama), hardware.link("NVLink 4")
    assert 32 < held.buckets < 38  # head, layers, embedding
    links = [{"replicas": replace(none, latency=latency).reached} for latency in (0.0, 1e-5)]
    fast, slow = (replicas.messages_of_replicas(llama, each, held) for each in links)
    for part in ("cut_average", "update"):
        assert getattr(slow, part) - getattr(fast, part) == pytest.approx(held.buckets * 63 * 1e-5)
    small = replace(llama, layout=Layout(dp=64, zero=1, tp=8))
    assert step.holdings(small).buckets == 8
    chunks = {"num_microbatches": 8, "schedule": "interleaved", "chunks": 4}
    assert step.holdings(replace(llama, layout=Layout(dp=64, zero=1, pp=2), **chunks)).buckets == 3 + 5
    alone = replace(llama, program=replace(NEMO_2024, data_overlap=()))
    assert step.holdings(alone).buckets == 1


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_a_layer_that_is_recomputed_waits_for_the_third_gather_that_is_counted(recomputation):
    sizes = {"spec": models.published("Llama 3 8B").spec, "layout": Layout(dp=8, zero=3), "program": DEEPSPEED_2021}
    training = Training(**sizes, recomputation=recomputation)
    link = replace(hardware.link("NVLink 4"), latency=0.0).reached
    held = step.holdings(training)
    messages = replicas.messages_of_replicas(training, {"replicas": link}, held)
    recomputed = recomputation == "full"
    wait = replicas.data_wait(messages, DEEPSPEED_2021, held, 0.0, 0.0, recomputed=recomputed)
    counted = sum(zero_costs.sent_bytes(training).values()) / link.bandwidth
    assert held.layers * wait.layer + wait.rest == pytest.approx(counted, rel=1e-4)  # padding


def test_gradients_between_nodes_reach_the_share_that_was_measured():
    """Korthikanti et al. 2022, section 6.3: eight replicas of 530B add 1.32 s; in 16 bits 0.9 of them, in 32 1.7."""
    added = {}
    for name in ("mixed, 16-bit gradients", "mixed, fp32 gradients"):
        options = {"microbatch": 1, "num_microbatches": 280, "schedule": "interleaved", "chunks": 3}
        options |= {"attention": "stored", "dropout": True, "recomputation": "selective"}
        times = []
        for dp in (1, 8):
            layout = Layout(dp=dp, tp=8, pp=35, sequence_parallel=True)
            spec = models.published("Megatron 529.6B").spec
            sizes = {"recipe": RECIPES[name], "sequence": 2048, "program": MEGATRON_2022}
            training = Training(spec=spec, layout=layout, **sizes, **options)
            cluster = nodes.cluster("DGX A100", 35 * dp)
            times.append(step.step(step.Run(training=training, cluster=cluster)).seconds)
        added[name] = times[1] - times[0]
    assert added["mixed, 16-bit gradients"] < 1.32 < added["mixed, fp32 gradients"]
    assert added["mixed, fp32 gradients"] < 1.75


def test_inputs_that_were_kept_are_not_gathered_again():
    """Of Megatron's ten messages in a layer, those of the two entrances in backward."""
    layout = Layout(tp=4, sequence_parallel=True)
    again = Training(spec=models.published("Llama 3 8B").spec, layout=layout)
    link = axes.links(DGX, layout)["tp"]
    time = layer_time.layer(again, DGX.node.chip)
    saved, chunked = (
        sum(exposed.tensor_passes(replace(again, program=program), link, time))
        - sum(exposed.tensor_passes(replace(again, program=replace(program, keeps_gathered=True)), link, time))
        for program in (MEGATRON_2021, NEMO_2024)
    )
    assert saved == pytest.approx(2 * exposed.gather_seconds(again, link))
    assert 0 < chunked < saved


def test_a_loss_of_all_words_waits_for_their_logits():
    layout = Layout(tp=4)
    cut = Training(spec=models.published("Llama 3 8B").spec, layout=layout)
    link = axes.links(DGX, layout)["tp"]
    assert exposed.logits_seconds(cut, link) == 0
    nbytes = 2 * cut.tokens * cut.spec.vocab_size
    expected = 3 / 4 * nbytes / link.bandwidth + 3 * link.latency
    whole = replace(cut, program=replace(NEMO_2024, loss="whole"))
    assert exposed.logits_seconds(whole, link) == pytest.approx(expected)


def test_gathering_tensor_by_tensor_pays_for_every_message():
    layout = Layout(dp=64, zero=3)
    training = Training(spec=models.published("GPT-2 XL").spec, layout=layout)
    link = axes.links(DGX, layout)["replicas"]
    held = step.holdings(training)
    together = replace(DEEPSPEED_2021, layer_messages=1)
    one, many = (
        replicas.data_messages(layout, training.recipe, program, link, held) for program in (together, DEEPSPEED_2021)
    )
    assert many.gather - one.gather == pytest.approx(11 * 63 * link.latency)
    assert many.rest == one.rest


def test_recomputed_layers_are_gathered_a_third_time_where_the_program_does():
    messages = replicas.DataMessages(gather=1.0, scatter=0.5)
    held = replicas.Holdings(layer=10, layers=4, rest=5)
    kept, again = (
        replicas.data_wait(messages, DEEPSPEED_2021, held, 1.0, 2.0, recomputed=each).layer for each in (False, True)
    )
    assert again - kept == messages.gather
    assert replicas.data_wait(messages, MEGATRON_2021, held, 1.0, 2.0, recomputed=True).layer == kept


def test_more_chunks_cost_messages():
    """Beside a long chunk only launches and the messages of filling and draining remain; a short one hides less."""
    size = {"pp": 4, "num_microbatches": 16, "schedule": "interleaved"}
    send, launch = 1e-3, hardware.LAUNCH
    two, eight = (step.sending_seconds(send, NEMO_2024, chunks=chunks, beside=1.0, **size) for chunks in (2, 8))
    assert two == pytest.approx((6 + 2 * (4 + 3)) * send + 2 * 16 * 2 * 2 * launch)
    assert eight - two == pytest.approx(2 * 4 * 6 * send + 2 * 16 * 6 * 2 * launch)
    short = step.sending_seconds(send, NEMO_2024, chunks=8, beside=send / 4, **size)
    assert short - eight == pytest.approx(2 * 16 * 8 * 3 / 4 * send)
    assert step.sending_seconds(send, NEMO_2024, pp=1, num_microbatches=16) == 0


def test_there_is_a_best_number_of_chunks_and_it_is_not_a_layer_each():
    """70 billion parameters on two stages, 80 layers: the bubble of one more chunk no longer pays for its messages."""
    times = {}
    for chunks in (2, 4, 8, 10, 20, 40):
        layout = Layout(dp=8, tp=4, pp=2, zero=1, sequence_parallel=True)
        options = {"num_microbatches": 64, "schedule": "interleaved", "chunks": chunks, "sequence": 8192}
        h100 = nodes.cluster("DGX H100", 8)
        times[chunks] = step.step(run(layout, model="Llama 3 70B", cluster=h100, **options)).seconds
    assert min(times, key=times.__getitem__) == 10
    assert times[40] > times[10]


# ---- links of axes, studies ------------------------------------------------------------------------------------------


def test_axes_take_the_links_of_their_neighbours():
    links = axes.links(DGX, Layout(tp=8, dp=2, pp=4))
    assert {axis: round(link.bandwidth / 1e9, 3) for axis, link in links.items()} == {
        "tp": 240,  # NVLink 3, 0.8 of 300
        "cp": 240,  # nobody
        "replicas": 20,  # one of 8 cards of 25 GB/s, for eight groups at once
        "pp": 20,
    }
    assert axes.link(DGX, 1, 64).bandwidth == pytest.approx(160e9)  # all cards
    assert axes.link(DGX, 2, 32).bandwidth == pytest.approx(80e9)  # two groups share them


def test_groups_share_a_single_card():
    box = nodes.cluster("PCIe box, InfiniBand NDR", 4)
    assert axes.link(box, 8, 4).bandwidth == pytest.approx(axes.link(box, 1, 32).bandwidth / 8)


def test_on_one_switch_every_axis_has_the_whole_link():
    cluster = uniform(8, hardware.link("NVLink 4"), hardware.chip("H100 SXM 80 GB"))
    rates = {round(axes.link(cluster, stride, size).bandwidth / 1e9) for stride, size in ((1, 8), (2, 4), (4, 2))}
    assert rates == {360}


@pytest.mark.parametrize(("tp", "fits"), [(1, True), (3, False), (8, True), (12, False), (16, True)])
def test_tensor_parallelism_divides_nodes_or_fills_them(tp, fits):
    assert axes.fits_nodes(DGX, tp) == fits


RUNS = studies.runs()


@pytest.mark.parametrize("name", RUNS)
def test_overlap_hides_messages_but_never_adds_any(name):
    shares = studies.shares(RUNS[name])
    assert 0 < shares["with overlap"] <= shares["without overlap"] < 1


@pytest.mark.parametrize("name", RUNS)
def test_every_run_fits_and_its_layout_is_that_of_its_name(name):
    """By the rule of the searches: with their headroom, and their recipe but for a program of 2021."""
    each = RUNS[name]
    asked = plans.Question(spec=each.training.spec, cluster=each.cluster, batch=1)
    assert step.step(each).memory <= asked.capacity
    assert each.training.recipe == (MIXED if name.startswith("1T") else asked.recipe)
    layout = each.training.layout
    for axis in ("tp", "pp", "dp"):
        if f"{axis} " in name:
            assert f"{axis} {getattr(layout, axis)}" in name
    assert (layout.zero > 1) == ("ZeRO" in name)
    assert f"{layout.ranks:,} " in name


def test_the_share_of_messages_spans_what_is_said_of_it():
    """All-reduce is often said to take 20 to 30 % of a training; it takes 5 % or 60 % as well."""
    shares = [studies.shares(each) for each in RUNS.values()]
    assert min(each["with overlap"] for each in shares) < 0.05
    assert max(each["without overlap"] for each in shares) > 0.5


def test_chunks_hide_nothing_behind_the_network():
    """Of 70 billion parameters on 64 GPUs: copies into another GPU's memory end at the node."""
    inside = studies.shares(RUNS["70B, 64 H100, tp 8, dp 8"])
    across = studies.shares(RUNS["70B, 64 H100, tp 16 across nodes"])
    assert inside["with overlap"] < 0.3 * inside["without overlap"]
    assert across["with overlap"] > 0.8 * across["without overlap"]


def test_behind_one_card_a_pipeline_waits_least():
    """On the same 64 GPUs the plan without stages fits with ZeRO-3 alone, and waits nearly always."""
    deep = RUNS["70B, 64 A100 (one 100 Gb/s card), tp 8, pp 4, dp 2"]
    flat = RUNS["70B, 64 A100 (one 100 Gb/s card), tp 8, ZeRO-3"]
    assert deep.cluster == flat.cluster
    assert deep.batch == flat.batch
    waits = [studies.shares(each)["with overlap"] for each in (deep, flat)]
    assert waits == pytest.approx([0.16, 0.94], abs=0.005)
    for each, change, nbytes in ((flat, {"zero": 2}, 43.6e9), (deep, {"pp": 2, "dp": 4}, 47.6e9)):
        layout = replace(each.training.layout, **change)
        less = replace(each.training, layout=layout, num_microbatches=64 // layout.dp)
        assert memory.total(less) == pytest.approx(nbytes, abs=0.05e9)


def test_at_the_knee_the_step_is_a_twentieth_longer_than_without_a_network():
    each = RUNS["70B, 64 H100, tp 8, dp 8"]
    rate_at = studies.knee_of(each)
    here, free = studies.over_networks(each, [rate_at, knee.RANGE[1]])
    assert here / free == pytest.approx(1 + knee.NEARLY, rel=0.005)
    assert 100e9 < rate_at < each.cluster.node.network_bandwidth  # of the 400 GB/s it has


def test_a_published_run_has_the_knee_of_its_own_program():
    """NeMo's hides more: with it, the trillion of 2021 would be content with a third of that."""
    trillion = RUNS["1T, 3,072 A100, tp 8, pp 64, dp 6"]
    assert 8 * studies.knee_of(trillion) / 1e12 == pytest.approx(0.43, abs=0.005)
    assert step.step(trillion).seconds == pytest.approx(104.9, abs=0.05)


def test_without_a_network_there_is_no_knee():
    assert studies.knee_of(replace(run(Layout(dp=8)), cluster=nodes.cluster("DGX A100"))) == 0


WIDE = TransformerSpec(  # heads wider than their share of the stream, as Gemma's
    vocab_size=50, context_length=64, hidden_size=24, num_layers=2, num_heads=6, num_kv_heads=2, head_dim=16,
    style="llama",
)  # fmt: skip


@pytest.mark.parametrize("tp", [1, 2, 6])
def test_the_products_that_are_timed_are_those_that_are_counted(tp):
    training = Training(spec=WIDE, layout=Layout(tp=tp))
    counted = flops.forward(WIDE, batch=1, sequence=64)
    timed = sum(2 * m * k * n for m, k, n in products.matrices(training))
    copies = tp * Layout(tp=tp).kv_heads(WIDE) - 2  # of key/value heads, on ranks that share one
    held_again = 2 * 64 * 24 * 2 * copies * 16
    assert tp * timed == (counted["projections"] + counted["feed-forward"]) / 2 + held_again


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("tp", [1, 4])
def test_a_hybrid_s_layer_is_timed_as_the_mean_of_its_layers(rule, tp):
    chip, layout = hardware.chip("H100 SXM 80 GB"), Layout(tp=tp)
    keys = STATES.num_heads if rule == RULES[1] else STATES.key_heads
    spec = replace(HYBRID, recurrent=replace(STATES, rule=rule, key_heads=keys))
    kinds = [each for _, each in spec.layer_kinds]
    hybrid, *each = (layer_time.layer(Training(spec=one, layout=layout), chip) for one in (spec, *kinds))
    for name in ("forward", "backward"):
        attention, states = (getattr(time, name) for time in each)
        assert getattr(hybrid, name) == pytest.approx([(a + 3 * s) / 4 for a, s in zip(attention, states, strict=True)])
    narrow = spec.recurrent.narrow  # layers that every rank computes
    counted = [flops.forward(kind, batch=1, sequence=64) for kind in kinds]
    for kind, count, again in zip(kinds, counted, (0, (tp - 1) * 2 * 64 * 16 * narrow), strict=True):
        timed = sum(2 * m * k * n for m, k, n in products.matrices(Training(spec=kind, layout=layout)))
        assert tp * timed == (count["projections"] + count["feed-forward"]) / 8 + again
    assert counted[1]["scores"] == 0
    assert counted[1]["states"] == 8 * 64 * spec.recurrent.flops
    for part, count in flops.forward(spec, batch=1, sequence=64).items():
        assert count == (counted[0].get(part, 0) + 3 * counted[1][part]) / 4 or part == "head"


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4), Layout(tp=4, sequence_parallel=True)], ids=str)
def test_layers_of_one_half_take_the_time_of_that_half(layout):
    """Attention and a block by themselves take what a whole layer does; each waits for its messages."""
    chip = hardware.chip("H100 SXM 80 GB")
    (_, attention), _, (_, block) = HALVES.layer_kinds
    specs = (replace(attention, blocks_at=None), attention, block)
    whole, *halves = (Training(spec=spec, layout=layout) for spec in specs)
    times = [layer_time.layer(each, chip) for each in (whole, *halves)]
    for name in ("forward", "backward"):
        columns = zip(*(getattr(time, name) for time in times[1:]), strict=True)
        assert getattr(times[0], name) == pytest.approx([sum(column) for column in columns])
    for name in ("entering", "leaving"):
        (first, second), (mixer, none), (nothing, last) = (getattr(time, name) for time in times)
        assert (mixer, none, nothing, last) == (first, 0, 0, second)
    link = hardware.link("NVLink 4").reached
    for overlap in ("none", "chunks"):
        how = replace(whole.program, tensor_overlap=overlap)
        pairs = zip((replace(each, program=how) for each in (whole, *halves)), times, strict=True)
        waits = [sum(exposed.tensor_passes(each, link, time)) for each, time in pairs]
        assert waits[0] == pytest.approx(waits[1] + waits[2])
    sent = [tensor_parallel.sent_bytes(each) for each in (whole, *halves)]
    assert sent[0] == 2 * sent[1] == 2 * sent[2]
    specs = HALVES, *(kind for _, kind in HALVES.layer_kinds)
    counted = [flops.forward(spec, batch=1, sequence=64) for spec in specs]
    for part, count in counted[0].items():
        shares = zip((2, 4, 2), counted[1:], strict=True)
        assert 8 * count == sum(share * each.get(part, 0) for share, each in shares) or part == "head"


def test_a_block_without_a_gate_multiplies_keeps_and_moves_two_thirds_or_less():
    """Of width 8, for 64 tokens of 16 numbers: two matrices; the hidden layer before and after ReLU squared."""
    block = replace(HALVES.layer_kinds[2][1], ffn_size=8)
    assert block.blocks_only
    bare, gated = (Training(spec=replace(block, gated=gated)) for gated in (False, True))
    for matrices, training in ((2, bare), (3, gated)):
        work = 2 * 64 * 16 * 8 * matrices
        assert flops.forward(training.spec, batch=1, sequence=64)["feed-forward"] == 8 * work
        assert sum(2 * m * k * n for m, k, n in products.matrices(training)) == work
        assert activations.whole_layer(training)["feed-forward: hidden"] == 2 * 64 * 8 * matrices
        assert activations.layer_gradients(training) == 2 * 64 * (16 + 8 * matrices)
    more = elementwise.forward_bytes(gated) - elementwise.forward_bytes(bare)
    assert more == 2 * 64 * 8 * (3 - 2)
    attention = HALVES.layer_kinds[0][1]
    work = [roofline.attention(spec, batch=1, sequence=64).flops for spec in (HALVES, attention)]
    assert work[0] == work[1]


def test_experts_without_a_gate_multiply_keep_and_move_two_thirds_or_less():
    """2 of 4 experts of width 8 and 2 shared ones for 64 tokens of 16 numbers, and a router: 2 of 8 layers."""
    mixture = SPARSE.layer_kinds[2][1]
    bare, gated = (Training(spec=replace(mixture, gated=gated)) for gated in (False, None))
    for matrices, training in ((2, bare), (3, gated)):
        work = 2 * 64 * 16 * 8 * matrices
        assert flops.forward(training.spec, batch=1, sequence=64)["feed-forward"] == 8 * (4 * work + 2 * 64 * 16 * 4)
        held, sizes = products.expert_matrices(training)
        assert held * sum(2 * m * k * n for m, k, n in sizes) == 2 * work
        kept = activations.whole_layer(training)
        assert kept["routed experts: hidden"] == kept["feed-forward: hidden"] == 2 * 2 * 64 * 8 * matrices
        both = 2 * 64 * (2 * 8 * matrices + 2 * 16)  # shared and routed, and their copies of tokens
        assert activations.layer_gradients(training) == 2 * 64 * 16 + 2 * both
    assert elementwise.forward_bytes(gated) - elementwise.forward_bytes(bare) == 2 * 64 * 4 * 8
    counted = [flops.forward(spec, batch=1, sequence=64)["feed-forward"] for spec in (SPARSE, bare.spec)]
    assert 4 * counted[0] == counted[1]


def test_mamba_2_takes_the_time_of_its_products_and_norms_no_keys():
    """64 tokens are 4 chunks; 8 heads share 4 heads of keys, of 16 numbers in all."""
    chip = hardware.chip("H100 SXM 80 GB")
    mamba = replace(HALVES.layer_kinds[1][1], blocks_at=None)
    delta = replace(mamba, recurrent=replace(mamba.recurrent, rule=RULES[0]))
    training = Training(spec=mamba)
    expected = sum(matmul_seconds(*size, chip, count=8 * 4) for size in mamba.recurrent.products())
    expected += matmul_seconds(16, 4, 16, chip, count=4 * 4)
    assert layer_time.layer(training, chip).forward.attention == pytest.approx(expected)
    more = elementwise.forward_bytes(Training(spec=delta)) - elementwise.forward_bytes(training)
    assert more == 2 * 2 * 64 * 2 * 16


def test_norms_and_rotations_that_a_model_has_take_time_and_products_do_not_change():
    chip = hardware.chip("H100 SXM 80 GB")

    def between(spec):
        time = layer_time.layer(Training(spec=spec), chip)
        return time.forward, time.backward

    plain, heads, after = (between(replace(WIDE, **each)) for each in ({}, {"head_norms": True}, {"post_norms": True}))
    moved = 0.8 * chip.memory_bandwidth
    for number, each in enumerate((2, 3)):  # numbers moved for one of the input: forward, backward
        assert heads[number].matrices == after[number].matrices == plain[number].matrices
        assert heads[number].between - plain[number].between == pytest.approx(each * 2 * 64 * (6 + 2) * 16 / moved)
        assert after[number].between - plain[number].between == pytest.approx(each * 2 * 2 * 64 * 24 / moved)
    gpt = replace(WIDE, style="gpt2")
    turned = replace(gpt, position_style="rotary")
    assert between(turned)[0].between - between(gpt)[0].between == pytest.approx(2 * 2 * 64 * (6 + 2) * 16 / moved)
