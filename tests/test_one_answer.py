"""One question has one answer, wherever the book or the package asks it."""

import re
from dataclasses import replace
from itertools import permutations

import pytest

from shardlab import schedules
from shardlab.costs import (
    collectives,
    composition,
    context_parallel,
    expert_parallel,
    memory,
    step,
    tensor_parallel,
    zero,
)
from shardlab.costs.collectives import library
from shardlab.costs.compute import flops, kernels, roofline
from shardlab.costs.compute.time_to_train import TimeToTrain
from shardlab.costs.expert_parallel import hiding_width
from shardlab.costs.facts import hardware, mixtures, models, network, nodes, recipes
from shardlab.costs.facts.attention import NEWEST, attention
from shardlab.costs.memory import activations, offload
from shardlab.costs.memory import timeline as moments
from shardlab.costs.operations import interval
from shardlab.costs.pipeline import bubble, stage_costs, timeline
from shardlab.costs.program import BF16, EXPERT_OVERLAPS
from shardlab.costs.programs import BOOK, BOOK_ZERO, DEEPSEEK_2024, MEGATRON_2021, NEMO_2024
from shardlab.costs.published import bus_bandwidth, runs, steps, studies, sweeps
from shardlab.costs.step import axes, experts, products
from shardlab.costs.step.replicas import DataWait
from shardlab.costs.traces.replay import replay
from shardlab.costs.traces.writing import Writer
from shardlab.costs.training import Training
from shardlab.explorers import context_parallel as contexts
from shardlab.explorers import expert_parallel as explorers
from shardlab.explorers import placement
from shardlab.explorers import tensor_parallel as tensors
from shardlab.files import project
from shardlab.sharding.layout import Layout
from shardlab.sharding.types.bugs import BUGS
from shardlab.sharding.types.methods import METHODS
from tests.explorers.views import number, table

CELL = re.compile(r"```\{code-cell\} python\n(.*?)```", re.DOTALL)
MFU = {"compute", "cheatsheet", "disagreements"}  # of whole steps
H100 = hardware.chip("H100 SXM 80 GB")
APART = network.uniform(4, hardware.link("InfiniBand NDR"), H100)


@pytest.mark.parametrize(
    ("model", "layout", "cluster", "options"),
    [
        ("Llama 3.2 3B", Layout(dp=8), nodes.cluster("DGX H100", 1), {}),
        ("Llama 3 8B", Layout(dp=16), nodes.cluster("DGX H100", 2), {}),
        ("Llama 3.2 3B", Layout(dp=4), APART, {}),
        ("Llama 3.2 3B", Layout(dp=16), nodes.cluster("GCP a2-highgpu-8g", 2), {"num_microbatches": 2}),  # one card
        ("Llama 3 8B", Layout(dp=8), nodes.cluster("PCIe box, 100 GbE", 1), {}),
        ("Llama 3 8B", Layout(tp=8), nodes.cluster("DGX H100", 1), {"microbatch": 2}),
        ("Llama 3 8B", Layout(tp=8), nodes.cluster("DGX A100", 1), {"recomputation": "full"}),
        ("Llama 3 8B", Layout(tp=8, sequence_parallel=True), nodes.cluster("DGX H100", 1), {}),
        ("Llama 3 8B", Layout(tp=4), APART, {}),
        ("Llama 3 8B", Layout(pp=4), nodes.cluster("DGX H100", 1), {}),
        ("Llama 3 8B", Layout(pp=4), nodes.cluster("PCIe box, 100 GbE", 1), {"num_microbatches": 4}),
        ("Llama 3.2 3B", Layout(pp=4), nodes.cluster("DGX H100", 1), {"num_microbatches": 4}),  # tied
        ("GPT-2 medium", Layout(pp=2), nodes.cluster("DGX H100", 1), {"sequence": 1024}),  # tied, learned positions
        ("Llama 3 8B", Layout(pp=4), APART, {"num_microbatches": 4}),
        ("Llama 3 8B", Layout(pp=4), APART, {"num_microbatches": 4, "schedule": "GPipe"}),
        ("Llama 3 8B", Layout(tp=2, pp=2), APART, {"num_microbatches": 4}),  # every rank of tp sends its copy
        ("Llama 3.2 3B", Layout(dp=2, pp=2, zero=2), APART, {"num_microbatches": 4}),  # tied ends keep gradients whole
        ("Llama 3.2 3B", Layout(dp=2, pp=2, zero=3), APART, {"num_microbatches": 4}),
        *(("Llama 3 8B", replace(layout, zero=zero), nodes.cluster("DGX H100", 2), {"num_microbatches": 4})
          for layout in (Layout(dp=16), Layout(dp=4, tp=2, pp=2), Layout(dp=8, pp=2), Layout(dp=2, tp=4, pp=2))
          for zero in (1, 2, 3)),
    ],
    ids=str,
)
def test_the_replay_of_a_program_takes_as_long_as_its_step(model, layout, cluster, options):
    """Within 1 %; a step takes the slowest hop for every message of a pipeline, and a tree where NCCL would."""
    sizes = {"sequence": 4096, "program": BOOK, **options}
    run = step.Run(training=Training(spec=models.published(model).spec, layout=layout, **sizes), cluster=cluster)
    played = replay(step.trace(run), cluster)
    assert played.seconds == pytest.approx(step.step(run).seconds, rel=0.01)


@pytest.mark.parametrize(("how", "busbw"), [("ring", 360), ("switch", 476)])
def test_an_all_reduce_in_a_server_of_h100s_takes_as_long_in_a_formula_a_step_a_replay_and_in_nccls_model(how, busbw):
    """A program says whether the switch adds; with it others printed 476 GB/s (nccl-tests#290), with rings 370."""
    server, layout = nodes.cluster("DGX H100"), Layout(tp=8)
    nbytes, link = 16e9, axes.links(server, layout)["tp"]
    seconds = collectives.all_reduce_seconds(nbytes, 8, link, collectives=how)
    assert collectives.bus_bandwidth(nbytes, seconds, 8) == pytest.approx(busbw * 1e9, rel=0.002)
    measured = bus_bandwidth.Measured(node="DGX H100", adds=how == "switch", busbw=1.0, source="")
    assert hardware.LINK_UTILISATION * bus_bandwidth.bound(measured) == pytest.approx(busbw * 1e9, rel=0.002)
    adds = server.node.adds if how == "switch" else 0.0
    nccl = library.chosen(nbytes, library.Communicator(gpus=8, adds=adds, inside=hardware.link("NVLink 4").reached))
    assert nccl.algorithm == {"switch": "NVLS"}.get(how, how)
    assert nccl.seconds(nbytes) == pytest.approx(seconds, rel=0.07)
    gpt3 = Training(spec=models.published("GPT-3 175B").spec, layout=layout, program=replace(BOOK, collectives=how))
    run = step.Run(training=gpt3, cluster=server)
    played = replay(step.trace(run), server, algorithm=how).seconds
    assert played == pytest.approx(step.step(run).seconds, rel=1e-9)


@pytest.mark.parametrize("program", [BOOK, MEGATRON_2021, NEMO_2024], ids=lambda program: program.name)
@pytest.mark.parametrize("sliced", [False, True])
def test_a_step_sends_between_stages_what_is_counted_along_pp(program, sliced):
    """All activations, or the part of a rank of tp: with slices, and where Megatron cut them in 2021 (section 4.1)."""
    training = Training(spec=models.published("Llama 3 8B").spec, layout=Layout(tp=4, pp=2, sequence_parallel=sliced))
    training = replace(training, program=program, num_microbatches=3)
    parts = 4 if sliced or program == MEGATRON_2021 else 1
    assert training.message_bytes == 8192 * 4096 * 2 / parts
    assert composition.sent(training)["pp"]["activations"] == 3 * training.message_bytes


@pytest.mark.parametrize(("program", "times"), [(BOOK, 1.5), (BOOK_ZERO, 1.435), (NEMO_2024, 1.435)])
def test_stage_3_sends_for_a_program_what_is_counted_along_dp(program, times):
    """The Trainer gathers embedding and head of Llama 3 8B again for backward; fully_shard does not."""
    llama = models.published("Llama 3 8B").spec
    training = Training(spec=llama, layout=Layout(dp=64, zero=3), program=program)
    assert zero.ratio(training) == pytest.approx(times, abs=5e-4)
    run = step.Run(training=training, cluster=nodes.cluster("DGX H100", 8))
    trainer, alone = (step.step(run.by(each)) for each in (BOOK, BOOK_ZERO))
    assert trainer.seconds > alone.seconds
    assert trainer.memory < alone.memory


def test_no_published_step_tells_a_ring_from_a_switch():
    """None averages whole gradients in a node whose switch adds, or adds up whole activations in every layer."""
    for row in steps.STEPS:
        switched = row.run.by(replace(row.run.training.program, collectives="switch"))
        assert step.step(switched).seconds == pytest.approx(step.step(row.run).seconds, rel=1e-3)


def test_pipelines_have_the_seconds_of_a_step_and_the_bytes_of_memory():
    """Of the chapter's 48 stages of GPT-3, for any program."""
    def answers(training):
        cluster = network.uniform(training.layout.pp, hardware.link("InfiniBand NDR"), H100)
        micro = step.microbatch(step.Run(training=training, cluster=cluster), axes.links(cluster, training.layout))
        layers = training.spec.num_layers // training.layout.pp
        ends = [micro.first, *[0.0] * (training.layout.pp - 2), micro.last]
        stages = range(training.layout.pp)
        nbytes = [sum(memory.per_rank(training, stage).values()) for stage in stages]
        return [layers * micro.layer + end for end in ends], nbytes

    gpt3 = models.published("GPT-3 175B").spec
    for program in (BOOK, NEMO_2024):
        kind = {"spec": gpt3, "layout": Layout(pp=48), "recomputation": "full", "program": program}
        training = Training(**kind, num_microbatches=48)
        cut = stage_costs.split(training, H100)
        assert [len(stage) for stage in cut.stages] == [3, *[2] * 46, 3]  # equally many layers
        seconds, nbytes = answers(training)
        assert cut.seconds == pytest.approx(seconds, rel=1e-12)
        assert cut.nbytes == pytest.approx(nbytes, rel=1e-12)
    cluster = network.uniform(48, hardware.link("100 GbE"), H100)
    run = step.Run(training=Training(spec=gpt3, layout=Layout(pp=48), program=BOOK), cluster=cluster)
    beta = hardware.link("100 GbE").reached.bandwidth
    assert step.step(run).rate / beta / 12 < gpt3.hidden_size  # "enough even for 100 GbE"


@pytest.mark.parametrize("layout", [Layout(), Layout(tp=4), Layout(tp=4, sequence_parallel=True)], ids=str)
@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_a_layer_and_a_moment_hold_what_a_rank_is_said_to_hold(layout, recomputation):
    """A layer is what one layer more adds; a step that is followed piece by piece has its peak there."""
    llama = models.published("Llama 3 8B").spec
    training = Training(spec=llama, layout=layout, recomputation=recomputation, num_microbatches=2)
    whole, beside = (memory.per_rank(replace(training, spec=replace(llama, num_layers=n))) for n in (32, 33))
    more = {part: beside[part] - whole[part] for part in whole.keys() - {"overhead"}}
    layer = {**dict.fromkeys(more, 0), **tensor_parallel.layer_bytes(training)}
    assert more == layer
    peak = moments.peak(moments.through_step(training)).held
    assert peak == {part: nbytes for part, nbytes in whole.items() if part != "overhead"}


@pytest.mark.parametrize("name", schedules.WHOLE)
@pytest.mark.parametrize(("p", "m"), [(2, 2), (4, 8), (3, 6)])
def test_a_pipeline_takes_as_long_in_a_step_on_a_clock_and_by_the_papers(name, p, m):
    """The papers have schedules of equal stages only; a step needs unequal ones in no time; a clock plays them all."""
    v, takes = 1 + (name in schedules.CHUNKED), {"F": 4.0, "I": 4.0, "W": 4.0}
    spec = replace(models.published("Llama 3 8B").spec, num_layers=p * v)
    server = nodes.cluster("DGX H100")
    micro = step.microbatch(step.Run(training=Training(spec=spec), cluster=server), axes.links(server, Layout()))
    equal = replace(micro, first=0.0, last=0.0, layer=12.0)
    size = {"num_microbatches": m, "chunks": v, "schedule": name}
    seconds = step.pipeline_seconds(equal, DataWait(0.0, 0.0, 0.0), step.stages_of(p * v, p, v), **size)
    assert seconds == timeline.play(schedules.make(name, p, m, v), takes).makespan
    assert seconds == m * v * 12 + bubble.waiting(name, p, m, takes)


@pytest.mark.parametrize("model", ["GPT-2 medium", "Llama 3 8B", "Llama 3.2 3B"])
@pytest.mark.parametrize("tp", [1, 4])
def test_the_products_of_a_layer_are_counted_listed_and_timed_alike(model, tp):
    """A formula for the model, a list with bytes for the roofline, sizes on a rank to time, pairs on a rank of cp."""
    spec, size = models.published(model).spec, {"batch": 2, "sequence": 512}
    counted = flops.forward(spec, **size, pairs="causal")
    listed = roofline.layer(spec, **size)
    layers = sum(counted.values()) - counted["head"]
    assert spec.num_layers * sum(work.flops for work in listed if not work.vector) == layers
    training = Training(spec=spec, layout=Layout(tp=tp), microbatch=2, sequence=512)
    timed = tp * sum(2 * rows * inner * columns for rows, inner, columns in products.matrices(training))
    assert spec.num_layers * timed == layers - counted["scores"]
    shared = context_parallel.attention(spec, length=512, ranks=4, tp=tp, batch=2)
    pairs = context_parallel.flops(shared, "zig-zag", largest=1)
    assert spec.num_layers * tp * sum(each["forward"] for each in pairs) == counted["scores"]


@pytest.mark.parametrize("overlap", EXPERT_OVERLAPS)
def test_experts_of_deepseek_v3_take_as_long_in_the_explorer_on_the_page_and_in_a_step(overlap):
    """One layer on 8 servers with ep = 64. `experts.forward` is the page's; a step has 61 layers, there and back."""
    state = {"experts": 256, "per_token": 8, "ep": 64, "tokens": 8192, "overlap": overlap}
    training, servers = explorers.training(**state), explorers.cluster("DGX H100")
    page = experts.forward(training, servers)
    shown = table(explorers.machine_view(**state, machine="DGX H100"))
    assert {part: number(shown[part][0]) for part in page} == pytest.approx(page, rel=0.01, abs=1e-9)
    alone = replace(training, layout=replace(training.layout, pp=1), imbalance=1.0)
    even = experts.forward(alone, servers)
    run = step.Run(training=alone, cluster=servers)
    travels = even["all-to-all, hidden"] + even["all-to-all, exposed"]
    waits = step.step(run).parts["expert parallel"] / 61
    assert even["all-to-all, exposed"] <= waits <= even["all-to-all, exposed"] + travels
    if overlap == "nothing":
        assert waits == pytest.approx(2 * travels)
    computes = step.microbatch(run, axes.links(servers, alone.layout)).forward
    assert sum(even[part] for part in EXPERT_OVERLAPS["another microbatch"]) == pytest.approx(computes)


def test_an_all_to_all_takes_as_long_in_a_formula_a_step_and_a_replay():
    """One latency, that of the farthest pair, since no message waits for another."""
    servers, spec = nodes.cluster("DGX H100", 8), mixtures.published("DeepSeek-V3").spec
    program = replace(DEEPSEEK_2024, expert_strategy="flat", expert_nodes=None)
    layout = Layout(dp=64, ep=64)
    for tokens in (1, 4096):
        training = Training(spec=spec, layout=layout, sequence=tokens, program=program)
        links = axes.links(servers, layout)
        trips = expert_parallel.sent_bytes(experts.token_traffic(training, servers), "flat").values()
        formula = sum(collectives.at_once(trip["across"]).seconds(links["ep across"]) for trip in trips)
        assert experts.trip_seconds(training, servers, links) == pytest.approx(formula)
        writers = [Writer(rank) for rank in range(64)]
        for writer in writers:
            for trip in trips:  # 56 of 64 ranks are on other servers
                writer.wait([writer.collective("all_to_all", trip["across"] * 64 / 56, range(64))])
        events = [event for writer in writers for event in writer.events]
        assert replay(events, servers).seconds == pytest.approx(formula, rel=1e-3)


def test_experts_of_published_models_are_as_wide_as_the_page_says_at_the_rate_of_products():
    """Behind another microbatch's experts: where a server suits all but one, and a network two."""
    page = (project.BOOK / "expert_parallel.md").read_text()
    assert "0.4 *" not in page
    assert "kernels.ordinary_flops(cluster.node.chip, precision)" in page
    widths = {name: each.spec.experts.expert_size for name, each in mixtures.PUBLISHED.items()}

    def narrow(cluster, ep, level, program):
        training = Training(spec=mixtures.published("DeepSeek-V3").spec, layout=Layout(dp=ep, ep=ep), program=program)
        rate, link = kernels.ordinary_flops(cluster.node.chip), axes.links(cluster, training.layout)[f"ep {level}"]
        traffic, rates = experts.token_traffic(training, cluster), {"rate": rate, "bandwidth": link.bandwidth}
        needed = hiding_width(traffic, program.expert_strategy, level=level, **rates)
        return {name for name, width in widths.items() if width < needed}

    servers, rack = nodes.cluster("DGX H100", 8), nodes.cluster("NVL72 rack")
    flat = replace(DEEPSEEK_2024, expert_strategy="flat", expert_nodes=None, expert_bytes=BF16)
    assert narrow(servers, 8, "inside", flat) == narrow(rack, 64, "inside", flat) == {"Qwen3-30B-A3B"}
    assert widths.keys() - narrow(servers, 64, "across", flat) == {"Mixtral 8x7B", "Mixtral 8x22B"}
    assert "DeepSeek-V3" in narrow(servers, 64, "across", DEEPSEEK_2024)


@pytest.mark.parametrize("machine", tensors.MACHINES)
def test_a_layer_of_the_tensor_explorer_is_a_layer_of_a_step(machine):
    for tp in (1, 4, 8, 32):
        shown = tensors.layer_on(tp, 8192, 1, machine, True)
        cluster = nodes.cluster(machine, max(1, tp // nodes.node(machine).gpus))
        run = step.Run(training=shown.training, cluster=cluster)
        links = axes.links(cluster, shown.training.layout)
        assert shown.seconds == pytest.approx(step.microbatch(run, links).layer)
        assert sum(shown.parts.values()) == pytest.approx(shown.seconds)


@pytest.mark.parametrize("link", contexts.LINKS)
def test_a_ring_waits_in_the_explorer_as_in_a_step(link):
    """A step goes through forward twice, because all of it is recomputed, and through backward once."""
    training, joined = contexts.training(2**17, 8, 8), hardware.link(contexts.LINKS[link])
    shown = contexts.times(2**17, 8, 8, link)
    cluster = network.uniform(8, joined, hardware.chip(contexts.CHIP))
    run = step.Run(training=training, cluster=cluster)
    micro = step.microbatch(run, {"tp": joined.reached, "cp": joined.reached, "replicas": joined.reached})
    assert shown["attention"] == micro.time.forward.attention
    layer = context_parallel.of(training)
    back = context_parallel.ring_seconds(
        layer, joined.reached, computing=micro.time.backward.attention, backward=True
    )
    assert micro.context == pytest.approx(2 * shown["messages, exposed"] + back)
    assert (link == "across servers") == (micro.context > 0.01 * shown["attention"])


def test_no_page_sets_the_share_of_the_peak_at_which_ranks_compute():
    """F is `Step.rate`, or the rate of products: pages take it from there."""
    pages = {page.stem: page.read_text() for page in project.BOOK.glob("*.md")}
    shares = r"(?<!link_)utilisation|0\.\d+ \* \w+\.peak"
    setting = {name for name, text in pages.items() for cell in CELL.findall(text) if re.search(shares, cell)}
    assert setting == MFU


def test_llama_3_has_as_many_tokens_a_second_as_a_run_and_as_a_step():
    """Its FLOP/s count the pairs that a causal mask leaves."""
    listed = [run for name, run in runs.RUNS.items() if name.startswith("Llama 3 405B, ")]
    for run, row in zip(listed, steps.of_table("Llama 3 405B"), strict=True):
        tokens = row.run.batch * row.run.training.tokens_per_sequence / row.run.cluster.gpus
        assert run.tokens_per_second == pytest.approx(tokens / row.seconds)


def test_llama_3_has_the_chunks_of_its_published_step_where_bytes_are_counted_by_axis():
    page = (project.BOOK / "composition.md").read_text()
    training = next(row.run.training for row in steps.of_table("Llama 3 405B") if row.run.cluster.gpus == 16_384)
    layout = training.layout
    batch = training.num_microbatches * layout.dp
    sizes = (batch, training.sequence, training.chunks, layout.tp, layout.pp, layout.dp)
    assert f'("DGX H100", {str(sizes)[1:]}' in page


def test_along_dp_what_is_not_whole_is_a_mean():
    """The average divides by the ranks; a sum would count a sample as often as there are replicas."""
    page = (project.BOOK / "composition.md").read_text()
    states = page.split("What is cut, and what is copied")[1].split(":::")[0]
    along_dp = [row.split("|")[4].strip() for row in states.splitlines() if row.startswith("| ")]
    assert along_dp.count("partial mean") == 4
    assert "partial sum" not in along_dp


def test_the_page_of_types_has_the_numbers_of_bugs_and_texts():
    page = (project.BOOK / "sharding.md").read_text()
    assert (len(BUGS), sum(not bug.refusal for bug in BUGS), len(METHODS)) == (20, 4, 13)
    counted = "Twenty bugs stand", "refuses sixteen of the twenty", "Four of the twenty bugs"
    for words in (*counted, "twelve of the thirteen texts"):
        assert words in page


def test_a_page_that_shards_layers_with_torch_shards_the_root_as_well():
    shard = re.compile(r"fully_shard\((\w+), mesh")
    for page in project.BOOK.glob("*.md"):
        for block in page.read_text().split("```"):
            sharded = set(shard.findall(block))
            assert not sharded or sharded & {"model", "part"}, page.name


def test_the_planners_page_has_the_knees_of_its_table_in_its_prose():
    inside = ("8B, 64 H100, ZeRO-3", "405B, 16,384 H100, tp 8, pp 16, dp 128", "70B, 64 H100, tp 8, dp 8")
    first, second, third = (8e-12 * studies.knee_of(studies.runs()[name]) for name in inside)
    text = (project.BOOK / "planner.md").read_text()
    assert f"have knees at {first:.1f}, {second:.1f} and {third:.1f} of the 3.2 Tb/s" in text


def test_the_planners_page_has_the_shares_of_its_figure_in_its_prose():
    shares = {name: studies.shares(run) for name, run in studies.runs().items()}
    text = (project.BOOK / "planner.md").read_text()
    fast, slow = shares["8B, 64 H100, ZeRO-3"], shares["8B, 64 H100, PCIe and one 400 Gb/s card, ZeRO-3"]
    after = f"{100 * fast['with overlap']:.0f} %"
    assert f"*Overlap* turns {100 * fast['without overlap']:.0f} % into {after}" in text
    assert f"waits for {after} with NVLink" in text
    assert f"and for {100 * slow['with overlap']:.0f} % with PCIe" in text
    card = "70B, 64 A100 (one 100 Gb/s card), tp 8, "
    deep, flat = (f"{100 * shares[card + cut]['with overlap']:.0f} %" for cut in ("pp 4, dp 2", "ZeRO-3"))
    fewest = "with four stages, the fewest that fit with ZeRO-1"
    assert f"waits for {deep} of the time {fewest}, and for {flat} without a pipeline" in text


def test_the_planners_formula_has_half_as_many_sums_again_where_all_layers_are_recomputed():
    run = studies.runs()["1T, 3,072 A100, tp 8, pp 64, dp 6"]
    shares = {}
    for recomputation in ("full", "none"):
        training = replace(run.training, recomputation=recomputation)
        shares[recomputation] = step.step(replace(run, training=training)).summary["tensor, context, experts"]
    assert shares["full"] == pytest.approx(3 / 2 * shares["none"])
    text = (project.BOOK / "planner.md").read_text()
    assert r"$1 + c$ becomes $\frac43 + \frac32\,c$" in text
    assert "3 / 2 * seconds * sending" in text


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("chunks", [1, 3])
def test_the_planners_formula_for_memory_is_what_the_first_stage_holds(chunks, cp, zero):
    """It counts P/(tp * pp) parameters; the first stage has the embedding besides, 3 % of GPT-3's."""
    spec = models.published("GPT-3 175B").spec
    training = Training(
        spec=spec, layout=Layout(tp=8, pp=8, dp=4, cp=cp, zero=zero, sequence_parallel=True), num_microbatches=64,
        schedule="interleaved" if chunks > 1 else "1F1B", chunks=chunks, dropout=True,
    )
    held = memory.per_rank(training)
    states = models.num_parameters(spec) / (8 * 8) * (4 + 12 / (4 * cp if zero else 1))
    tokens = spec.context_length / (8 * cp)
    kept = tokens * spec.num_layers * 34 * spec.hidden_size * (1 + 7 / (8 * chunks) * (chunks > 1))
    assert sum(held[part] for part in ("parameters", "gradients", "optimizer")) == pytest.approx(states, rel=0.04)
    assert held["activations"] == pytest.approx(kept, rel=0.01)


def test_gpt3_on_64_gpus_is_divided_alike_in_memory_and_pipelines():
    for page in ("memory", "pipeline"):
        text = (project.BOOK / f"{page}.md").read_text()
        cell = next(cell for cell in CELL.findall(text) if "Layout(tp=8, pp=8" in cell)
        assert "Layout(tp=8, pp=8, sequence_parallel=True)" in cell
        plain = re.sub(r'["=: ]+', " ", cell)
        for option in ("num_microbatches 64", "attention stored", "recomputation selective", "dropout True"):
            assert option in plain


def test_published_bus_bandwidths_have_one_share_of_what_is_allowed():
    """And eight GPUs whose switch adds have less of their wires: NCCL's own factor is what is missing."""
    runs = [run for run in bus_bandwidth.PUBLISHED if run.num_nodes == 1 and run.gpus == 8]
    shares = [100 * run.busbw / bus_bandwidth.bound(run) for run in runs]
    page = (project.BOOK / "collectives.md").read_text()
    assert f"are {min(shares):.0f} to {max(shares):.0f} % of what wires and switch allow" in page
    wires = [100 * run.busbw / nodes.rates_of_a_gpu(nodes.node(run.node))["NVLink"] / (8 / 9 * 14 / 8)
             for run in runs if run.adds]
    assert "these two reach {:.0f} and {:.0f} %".format(*wires) in page
    assert "most = bus_bandwidth.bound(run)" in page


def _activations(unfused):
    """Bytes per token, layer and unit of width of Llama 3, from 8B to 405B, from the least to the most."""
    runs = [Training(spec=models.published(f"Llama 3 {size}").spec, program=replace(BOOK, unfused=unfused))
            for size in ("8B", "70B", "405B")]
    return sorted(sum(activations.layer(run).values()) / run.tokens / run.spec.hidden_size for run in runs)


def _dropping(after, percent):
    """Hours after which a node slower by `percent` goes; `after`: samples of a replica then, by those before."""
    gain = 1 - after / (1 + percent / 100)
    return 600 / 3600 / gain if gain > 0 else None


def _halving_gains(save):
    """What half the save gains of a run that fails every three hours, less what half the restart gains."""
    def goodput(save, restart):
        run = interval.Reliability(between=10_800, save=save, restart=restart)
        return run.goodput(run.best_interval())
    return goodput(save / 2, 600) - goodput(save, 300)


def _halving_border():
    return next(save for save in range(60, 0, -1) if _halving_gains(save) < 0)


def _of_64(restart):
    """Of 64 GPUs: days between failures, hours between saves of a minute, and the share that is lost, in percent."""
    run = interval.Reliability(between=interval.between_failures(64, 50_000), save=60, restart=restart)
    every = run.best_interval()
    return run.between / 86_400, every / 3600, 100 * (1 - run.goodput(every))


def _gained_by_a_slow_swap(tokens):
    swap = offload.Swap(num_parameters=1e9, recomputes=True, tokens=tokens, chip=H100, link=hardware.host_link(H100))
    halves = [max(part * swap.compute, swap.transfer / 2) for part in (1 / 4, 3 / 4)]
    return 100 * (sum(halves) / swap.compute - 1)


def _tied():
    """How much slower a plan was predicted that was measured to be the faster of two: by tp, or by anything else."""
    wrong = {True: 0.0, False: 0.0}
    for sweep in sweeps.SWEEPS:
        for a, b in permutations(sweep.rows, 2):
            if a.seconds < b.seconds and a.predicted.seconds > b.predicted.seconds:
                differ = a.run.training.layout.tp != b.run.training.layout.tp
                wrong[differ] = max(wrong[differ], 100 * (a.predicted.seconds / b.predicted.seconds - 1))
    return wrong


def _sweep_errors():
    return [100 * abs(row.error) for sweep in sweeps.SWEEPS for row in sweep.rows]


def _accumulating():
    """How much longer GPT-2 XL takes where its batch of 64 fits, in percent, on one, two and four GPUs."""
    def seconds(ranks, pieces):
        size = {"microbatch": 64 // ranks // pieces, "num_microbatches": pieces}
        spec = models.published("GPT-2 XL").spec
        run = Training(spec=spec, layout=Layout(dp=ranks), program=BOOK, **size)
        taken = step.step(step.Run(training=run, cluster=nodes.cluster("DGX H100", 1)))
        return taken.fits, taken.seconds
    for ranks in (1, 2, 4):
        fitting = next(took for pieces in (1, 2, 4, 8) for fits, took in [seconds(ranks, pieces)] if fits)
        yield 100 * (fitting / seconds(ranks, 1)[1] - 1)


def _busbw_of_two_dgx_h100():
    events = [event for writer in _all_reduce(16, 2**33) for event in writer.events]
    played = replay(events, nodes.cluster("DGX H100", 2))
    return collectives.bus_bandwidth(2**33, played.seconds, 16) / 1e9


def _numbered(*order):
    """Seconds of the question's step in this order of axes, if the switches of four DGX H100 add."""
    sizes = {"microbatch": 8, "sequence": 4096, "program": placement.PROGRAM}
    run = Training(spec=models.published("Llama 3 8B").spec, layout=Layout(tp=8, dp=4), **sizes)
    four = nodes.cluster("DGX H100", 4)
    return replay(step.trace(step.Run(training=run, cluster=four), order), four, algorithm="switch").seconds


def _products(chip):
    return kernels.ordinary_flops(hardware.chip(chip))


def _rented_1b():
    run = Training(spec=models.published("Llama 3.2 1B").spec, layout=Layout(dp=16), sequence=4096, program=BOOK)
    return step.step(step.Run(training=run, cluster=nodes.cluster("GCP a2-highgpu-8g", 2))).memory / 1e9


def _all_reduce(ranks, nbytes):
    writers = [Writer(rank) for rank in range(ranks)]
    for writer in writers:
        writer.wait([writer.collective("all_reduce", nbytes, range(ranks))])
    return writers


def _along_dp_of_llama_3():
    training = Training(
        spec=models.published("Llama 3 405B").spec, layout=Layout(tp=8, pp=16, dp=128, sequence_parallel=True, zero=1),
        sequence=8192, num_microbatches=16, chunks=8, schedule="interleaved", program=BOOK,
        recipe=recipes.recipe("mixed, fp32 gradients"),
    )
    sent = {axis: sum(parts.values()) for axis, parts in composition.sent(training, stage=1).items()}
    return sent["tp"] / (sent["dp"] + sent["pp"])


def _book_of_a_million(offloaded):
    spec = replace(models.published("Llama 3 8B").spec, context_length=2**20)
    held = context_parallel.held(
        Training(spec=spec, sequence=2**20, layout=Layout(cp=8, zero=3), recomputation="full")
    )
    inputs = 2**20 / 8 * spec.hidden_size * 2 * spec.num_layers
    return (sum(held.values()) - offloaded * inputs) / 1e9


def _hidden_across(with_latency):
    """Tokens a GPU of Llama 3 405B with tp = 8 needs to hide a step of the ring that crosses servers."""
    spec, tp = models.published("Llama 3 405B").spec, 8
    chip, link = hardware.chip("H100 SXM 80 GB"), hardware.link("InfiniBand NDR")
    return context_parallel.hiding_tokens(
        context_parallel.attention(spec, length=2**17, ranks=16, tp=tp),
        rate=attention(NEWEST, chip).forward.long * chip.peak("bf16"),
        bandwidth=hardware.LINK_UTILISATION * link.bandwidth,
        latency=with_latency * link.latency,
        causal=True,
    )


def _seconds_for_qwen3():
    """Seconds of eight H100 for a step of Qwen3 8B on a million tokens, with the rates of the page's cell."""
    sizes = {"num_layers": 36, "ffn_size": 12_288, "vocab_size": 151_936, "context_length": 2**20}
    spec = replace(models.published("Llama 3 8B").spec, **sizes)
    chip = hardware.chip("H100 SXM 80 GB")
    forward = flops.forward(spec, batch=1, sequence=2**20, pairs="causal")
    scores, kernel = forward["scores"], attention(NEWEST, chip)
    seconds = (2 / kernel.forward.long + 2.5 / kernel.backward.long) * scores / chip.peak("bf16")
    return (seconds + 4 * (sum(forward.values()) - scores) / kernels.ordinary_flops(chip)) / 8


def _frozen_feed_forward():
    """Bytes per token and unit of width that up and down keep for their weights' gradients in a GPT: their inputs."""
    run = Training(spec=models.published("GPT-3 175B").spec, program=BOOK)
    up = activations.layer(run)["feed-forward: input"]
    return (up + 2 * run.tokens * run.spec.ffn) / (run.tokens * run.spec.hidden_size)


def _years_of_gpt3(passes):
    """Years of one V100 at its peak, for forward and backward (1), or for a second forward (1/3)."""
    v100, spec = hardware.chip("V100 SXM2 32 GB"), models.published("GPT-3 175B").spec
    return passes * TimeToTrain(spec=spec, tokens=300e9, chip=v100, utilisation=1).days / 365


def _deepseek(precision):
    return 100 * flops.six_n_d(37.6e9, 1e12) / (180_000 * 3600) / H100.peak(precision)


def _clear_sweeps():
    """Sweeps whose two fastest plans are farther apart than the 3 TFLOP/s to which their rates were read."""
    clear = 0
    for sweep in sweeps.SWEEPS:
        second, first = sorted(row.rate for row in sweep.rows)[-2:]
        if first - second > 3e12:
            assert sweep.regret == 0
            clear += 1
    return IN_WORDS[clear]


IN_WORDS = {6: "six", 9: "nine"}


STATED = [  # page, words with the number, the number
    ("memory", "becomes {:.0f}", lambda: _activations(())[0]),
    ("memory", "to {:.0f} with fused kernels", lambda: _activations(())[-1]),
    ("memory", "with fused kernels, and {:.0f}", lambda: _activations(("rotary", "SwiGLU"))[0]),
    ("memory", "to {:.0f} without", lambda: _activations(("norms", "rotary", "SwiGLU", "attention"))[-1]),
    ("memory", "save {:.0f} of the 34 bytes", _frozen_feed_forward),
    ("compute", "Of the 288 years {:.0f} are model", lambda: _years_of_gpt3(1)),
    ("compute", "at the peak and at most {:.0f} recomputation", lambda: _years_of_gpt3(1 / 3)),
    ("compute", "that is {:.0f} % in bf16", lambda: _deepseek("bf16")),
    ("compute", "in bf16 and {:.0f} % in fp8", lambda: _deepseek("fp8")),
    ("planner", "the fastest layout in all {} that are clear", _clear_sweeps),
    ("planner", "in {} sweeps the best leads by more", _clear_sweeps),
    ("composition", "sends almost {} times", lambda: IN_WORDS[round(_along_dp_of_llama_3())]),
    ("operations", "only with a spare, within {} hours", lambda: IN_WORDS[round(_dropping(1, 3))]),
    ("operations", "by the exact formula at {:.0f}", _halving_border),
    ("operations", "the border is at {:.0f} seconds", lambda: 1.5 * 600**2 / 10_800),
    ("operations", "less than {:.0f} seconds, restarts", _halving_border),
    ("operations", "something fails every {:.0f} days", lambda: _of_64(600)[0]),
    ("operations", "a minute every {:.1f} hours", lambda: _of_64(600)[1]),
    ("operations", "then loses {:.1f} %", lambda: _of_64(600)[2]),
    ("operations", "it loses {:.1f} %", lambda: _of_64(8 * 3600)[2]),
    ("compute", "its step takes {:.0f} % longer", lambda: _gained_by_a_slow_swap(4096)),
    ("planner", "up to {:.0f} % in the 95 steps", lambda: 100 * max(abs(row.error) for row in steps.STEPS)),
    ("planner", "up to {:.0f} % in those sweeps", lambda: max(_sweep_errors())),
    ("planner", "predicted {:.0f} % slower", lambda: _tied()[True]),
    ("planner", "by one pair measured, {:.0f} % where tp differs", lambda: _tied()[True]),
    ("zero", "a ring each rank would send {:.0f} bytes", lambda: 2 * 3 / 4 * 8 * 4),
    ("zero", "and needs {:.0f} for", lambda: (2 * 3 / 4 + 3 / 4) * 8 * 4),
    ("data_parallel", "which takes up to {:.0f} % longer; the figure", lambda: max(_accumulating())),
    ("placement", "the first numbering takes {:.2f} s", lambda: _numbered("tp", "dp", "pp")),
    ("placement", "the second one {:.1f} times as", lambda: _numbered("dp", "tp", "pp") / _numbered("tp", "dp", "pp")),
    ("placement", "products are {:.1f} times", lambda: _products("B200 SXM 180 GB") / _products("H100 SXM 80 GB")),
    ("replay", "It needs {:.0f} of the 40 GB", _rented_1b),
    ("replay", "our rings reach {:.0f}", _busbw_of_two_dgx_h100),
    ("context_parallel", "tokens, or {:,.0f} with latency", lambda: _hidden_across(with_latency=True)),
    ("context_parallel", "the sum above, of computing alone, gives {:.0f} s", _seconds_for_qwen3),
    ("context_parallel", "each GPU needs {:.0f} GB", lambda: _book_of_a_million(0)),
    ("context_parallel", "host's memory {:.0f} GB do", lambda: _book_of_a_million(1)),
]


@pytest.mark.parametrize(("page", "words", "number"), STATED)
def test_a_page_states_the_number_that_the_package_computes(page, words, number):
    assert words.format(number()) in (project.BOOK / f"{page}.md").read_text()
