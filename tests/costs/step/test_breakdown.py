"""A step is the sum of its parts, agrees with a schedule on a clock, and reacts to each choice as it must."""

from dataclasses import replace
from fractions import Fraction

import pytest

from shardlab import schedules
from shardlab.costs import step
from shardlab.costs import zero as zero_costs
from shardlab.costs.compute import flops
from shardlab.costs.facts import hardware, models, nodes
from shardlab.costs.facts.network import uniform
from shardlab.costs.pipeline import timeline
from shardlab.costs.published import studies
from shardlab.costs.step import axes, exposed
from shardlab.costs.step.engines import ENGINES, MEGATRON_2021, NEMO_2024
from shardlab.costs.step.exposed import DataWait
from shardlab.costs.step.layer_time import LayerTime, PassTime
from shardlab.costs.traces import knee
from shardlab.costs.training import Training
from shardlab.layout import Layout
from shardlab.spec import TransformerSpec

DGX = nodes.cluster("DGX A100", 8)


def micro(layer, first=0, last=0):
    idle = PassTime(0, 0, 0)
    time = LayerTime(forward=idle, backward=idle, recomputed=0, entering=(0, 0), leaving=(0, 0))
    waiting = {"tensor": 0, "context": 0}
    return step.MicrobatchTime(
        time=time, first=first, last=last, layer=layer, forward=0, backward=0, **waiting
    )


@pytest.mark.parametrize("name", ["1F1B", "GPipe", "naive"])
@pytest.mark.parametrize("pp", [1, 2, 3, 5])
@pytest.mark.parametrize("m", [1, 2, 7])
@pytest.mark.parametrize("ends", [(0, 0), (1, 0), (0, 5), (2, 3)], ids=str)
def test_the_pipeline_takes_as_long_as_its_schedule_played_on_a_clock(name, pp, m, ends):
    """Seven layers of three seconds, a third of them forward."""
    counts = step.layers_of_stages(7, pp)
    whole = [3 * count for count in counts]
    whole[0] += ends[0]
    whole[-1] += ends[1]
    durations = [{"F": Fraction(total, 3), "B": Fraction(2 * total, 3)} for total in whole]
    played = timeline.play(schedules.make(name, pp, m), durations).makespan
    time, stages = micro(3, *ends), step.stages_of(7, pp)
    ours = step.pipeline_seconds(time, DataWait(0, 0, 0), stages, num_microbatches=m, schedule=name)
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


def test_embedding_and_head_may_take_the_place_of_a_layer():
    assert step.layers_of_stages(126, 16, 8) == [7, *[8] * 14, 7]
    assert sum(step.layers_of_stages(126, 16)) == 126


def run(layout, *, model="GPT-2 XL", cluster=DGX, engine=NEMO_2024, **options):
    training = Training(spec=models.published(model).spec, layout=layout, **options)
    return step.Run(training=training, cluster=cluster, engine=engine)


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
@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_parts_are_not_negative_and_what_is_not_there_takes_no_time(layout, engine):
    found = step.step(run(layout, engine=engine, num_microbatches=4))
    assert min(found.parts.values()) >= 0
    assert found.seconds == sum(found.parts.values())
    silent = {
        "tensor parallel": layout.tp == 1,
        "context parallel": layout.cp == 1,
        "pipeline messages": layout.pp == 1,
        "ZeRO": layout.zero < 2,
        "recomputation": True,
    }
    assert all(found.parts[part] == 0 for part, none in silent.items() if none)
    assert found.parts["waiting for stages"] == pytest.approx(0, abs=1e-12) or layout.pp > 1
    assert (found.communication > 0) == (layout.ranks > 1)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_hiding_messages_or_a_faster_network_never_slows_down(layout):
    slow = step.step(run(layout, engine=studies.WITHOUT, num_microbatches=4)).seconds
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
    with pytest.raises(ValueError, match="128 ranks does not fit on 8 x DGX A100 with 64 GPUs"):
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
    found = step.step(step.Run(training=training, cluster=DGX, engine=MEGATRON_2021))
    return flops.hardware_flops(spec, batch=batch, sequence=2048) / found.seconds / layout.ranks


@pytest.mark.parametrize("batch", [32, 128])
def test_tensor_parallelism_is_best_as_wide_as_a_node(batch):
    """Figure 13: 161 billion parameters on 64 GPUs run fastest with tp = pp = 8."""
    rates = {pp: rate(32, 20_480, Layout(tp=64 // pp, pp=pp), batch) for pp in (2, 4, 8, 16, 32)}
    assert max(rates, key=rates.__getitem__) == 8


@pytest.mark.parametrize("batch", [128, 512])
def test_the_best_microbatch_is_neither_smallest_nor_largest(batch):
    """Figure 16: 91 billion parameters on 64 GPUs, tp = pp = 8, run fastest with microbatches of 2."""
    rates = {size: rate(32, 15_360, Layout(tp=8, pp=8), batch, size) for size in (1, 2, 4, 8)}
    assert max(rates, key=rates.__getitem__) == 2


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
    link = replace(hardware.link("NVLink 4"), latency=0.0)
    held = step.holdings(training)
    sent = exposed.data_messages(layout, training.recipe, link, held)
    every_microbatch = held.layers * (sent.scatter + 2 * sent.gather) + sent.rest
    seconds = sent.gradients + sent.parameters + 5 * every_microbatch
    assert seconds * link.bandwidth == pytest.approx(sum(zero_costs.sent_bytes(training).values()), rel=1e-4)  # padding


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
    """Else its share of messages would be that of a step that nobody can make."""
    each = RUNS[name]
    assert step.step(each).fits
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


def test_at_the_knee_the_step_is_a_twentieth_longer_than_without_a_network():
    each = RUNS["70B, 64 H100, tp 8, dp 8"]
    rate_at = studies.knee_of(each)
    here, free = studies.over_networks(each, [rate_at, knee.RANGE[1]])
    assert here / free == pytest.approx(1 + knee.NEARLY, rel=0.005)
    assert 100e9 < rate_at < each.cluster.node.network_bandwidth  # of the 400 GB/s it has


def test_without_a_network_there_is_no_knee():
    assert studies.knee_of(replace(run(Layout(dp=8)), cluster=nodes.cluster("DGX A100"))) == 0
