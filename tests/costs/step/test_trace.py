"""A step's trace computes as long as the step does and sends the bytes of each axis where the layout puts them."""

from dataclasses import replace

import pytest

from shardlab.costs import composition, context_parallel
from shardlab.costs.facts import hardware, mixtures, models, network, nodes
from shardlab.costs.memory import shards
from shardlab.costs.programs import BOOK, BOOK_ZERO, MEGATRON_2022
from shardlab.costs.step import Run, layer_time, trace
from shardlab.costs.step import step as predicted
from shardlab.costs.traces import crossings, knee
from shardlab.costs.traces.replay import replay
from shardlab.costs.training import Training
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import AXES, AXES_3D, Layout, groups, together

SPEC = TransformerSpec(
    vocab_size=1000,
    context_length=64,
    hidden_size=64,
    num_layers=4,
    num_heads=8,
    num_kv_heads=4,
    ffn_size=192,
    style="llama",
)
LAYOUTS = [Layout(), Layout(dp=4), Layout(tp=4), Layout(pp=4), Layout(dp=2, tp=2, pp=2), Layout(dp=2, tp=4, pp=3)]
SLICED = Layout(dp=2, tp=2, pp=2, sequence_parallel=True)


def run_of(layout, spec=SPEC, cluster=None, **options):
    sizes = {"microbatch": 2, "num_microbatches": 3, "sequence": 32, "program": BOOK, **options}
    return Run(training=Training(spec=spec, layout=layout, **sizes), cluster=cluster or nodes.cluster("DGX H100", 3))


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("recomputation", ["none", "full"])
@pytest.mark.parametrize("layout", [*LAYOUTS, SLICED, Layout(cp=4), Layout(dp=2, tp=2, pp=2, zero=3)], ids=str)
def test_all_ranks_together_compute_as_long_as_the_step_does(layout, recomputation, together):
    """The seconds of a replica's stages are those of all its parts; nothing is computed twice, nothing is left out."""
    run = run_of(layout, recomputation=recomputation)
    events = trace(run, AXES, layers_at_a_time=together)
    parts = predicted(run).parts
    micro = layer_time.embedding_seconds(run.training, run.cluster.node.chip)
    ends = 3 * sum((*micro, *layer_time.head_seconds(run.training, run.cluster.node.chip)))
    names = ("matrices", "attention", "norms and residuals", "recomputation")
    each = layout.pp * sum(parts[name] for name in (*names, "update")) + ends
    computed = sum(event.seconds for event in events if event.kind == "compute")
    assert computed == pytest.approx(each * layout.ranks / layout.pp)
    assert {event.rank for event in events} == set(range(layout.ranks))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("layout", [*LAYOUTS, SLICED], ids=str)
@pytest.mark.parametrize("how", [BOOK, BOOK_ZERO], ids=lambda program: program.name)
@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_every_rank_sends_the_bytes_of_the_formulas(layout, tied, zero, how, recomputation):
    cut, spec = replace(layout, zero=zero), replace(SPEC, tied_head=tied)
    run = run_of(cut, spec, program=how, recomputation=recomputation)
    events = trace(run)
    for stage in range(layout.pp):
        rank = groups(layout)["pp"][0][stage]
        mine = composition.by_axis([event for event in events if event.rank == rank], layout)
        sent = composition.sent(run.training, stage)
        del sent["all"], sent["tp"]["loss"], sent["tp"]["gradients of copies"]  # too short to be written
        for axis, parts in sent.items():
            assert mine[axis] == pytest.approx(sum(parts.values()), rel=1e-4), axis


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_leave_in_the_order_in_which_backward_completes_them(tied):
    """The head's first and the embedding's last; a tied one is complete when the embedding has added its share."""
    spec = replace(SPEC, tied_head=tied)
    whole = replace(BOOK, bucket_bytes=None)
    events = trace(run_of(Layout(dp=2), spec, program=whole))
    sent = [event.nbytes for event in events if event.rank == 0 and event.op == "all_reduce"]
    table = 2 * spec.vocab_size * spec.hidden_size
    assert sent[-1] == table + 2 * models.learned_positions(spec) * spec.hidden_size
    assert (sent[0] == table) == (not tied)
    assert len(sent) == 2 * spec.num_layers + 2 - tied
    small = trace(run_of(Layout(dp=2), spec, program=replace(BOOK, bucket_bytes=1000)))
    pieces = [event.nbytes for event in small if event.rank == 0 and event.op == "all_reduce"]
    assert max(pieces) <= 1000
    assert sum(pieces) == pytest.approx(sum(sent), rel=0.01)


SHARED = [Layout(cp=2), Layout(cp=4), Layout(cp=2, dp=2, tp=2, pp=2)]


@pytest.mark.parametrize("layout", SHARED, ids=str)
def test_ranks_that_share_sequences_pass_the_bytes_of_a_ring(layout):
    events = trace(run_of(layout), AXES)
    layer = context_parallel.attention(SPEC, length=32, ranks=layout.cp, tp=layout.tp, batch=6)
    in_a_ring = sum(context_parallel.sent_bytes(layer, "ring").values()) * SPEC.num_layers // layout.pp
    rings = set(groups(layout, AXES)["cp"])
    sent = [event for event in events if event.op == "send" and event.group in rings]
    assert sum(event.nbytes for event in sent) == in_a_ring * layout.ranks
    averaged = {event.group for event in events if event.op == "all_reduce"} - set(groups(layout, AXES)["tp"])
    assert averaged == set(together(layout, ("dp", "cp"), AXES))


def without(events, ops):
    """The same traces without these communications, and without waiting for them."""
    gone = {(event.rank, event.number) for event in events if event.op in ops}
    return [event for event in events if (event.rank, event.number) not in gone]


@pytest.mark.parametrize("length", [512, 2048, 16_384])
def test_a_replayed_ring_waits_as_long_as_the_formula_has_it(length):
    """Four GPUs on one switch, first with every hop exposed, then with some, then with the way home alone."""
    spec = replace(MODEL, context_length=length, num_layers=2)
    link = hardware.link("NVLink 4")
    cluster = network.uniform(4, link, hardware.chip("H100 SXM 80 GB"))
    sizes = {"microbatch": 1, "num_microbatches": 1, "sequence": length}
    run = run_of(Layout(cp=4), spec, cluster, **sizes)
    events = without(trace(run, AXES), {"all_reduce"})
    waiting = replay(events, cluster).seconds - replay(without(events, {"send", "receive"}), cluster).seconds
    layer = context_parallel.attention(spec, length=length, ranks=4)
    time = layer_time.layer(run.training, cluster.node.chip)
    turns = {"forward": time.forward.attention, "backward": time.backward.attention}
    waits = context_parallel.exposed_seconds(layer, "ring", link.reached, **turns)
    assert waiting == pytest.approx(spec.num_layers * waits, rel=1e-6)


def test_what_is_not_written_is_refused():
    mixture = mixtures.published("Mixtral 8x7B").spec
    for options, message in (
        ({"layout": Layout(), "spec": mixture}, "a model without experts"),
        ({"layout": Layout(), "spec": replace(SPEC, blocks_at=(1, 3))}, "layers of two halves; leave blocks_at out"),
        ({"layout": Layout(pp=2), "schedule": "interleaved", "chunks": 2, "num_microbatches": 2}, "chunks=1"),
        ({"layout": Layout(), "program": MEGATRON_2022}, "Megatron-LM, 2022 overlaps other messages .*; use BOOK"),
    ):
        with pytest.raises(ValueError, match=message):
            trace(run_of(**options))
    with pytest.raises(ValueError, match="must name every axis; add pp"):
        trace(run_of(Layout()), ("tp", "dp"))


# ---- on a cluster ----------------------------------------------------------------------------------------------------

MODEL, LAYOUT = models.published("Llama 3 8B").spec, Layout(dp=4, tp=8)
CLUSTER = nodes.cluster("DGX H100", 4)


def step(order=AXES_3D, layout=LAYOUT, cluster=CLUSTER, microbatch=2, sequence=4096):
    run = run_of(layout, MODEL, cluster, microbatch=microbatch, num_microbatches=1, sequence=sequence)
    return trace(run, order, layers_at_a_time=8)


def test_tensor_parallelism_first_keeps_its_traffic_inside_the_nodes():
    """The other way round it goes over the network, and the step takes more than half as long again."""
    inside, across = ("tp", "dp", "pp"), ("dp", "tp", "pp")
    laid_out = [groups(LAYOUT, order) for order in (inside, across)]
    first, last = (
        crossings.busiest(step(order), CLUSTER, each)["network"]
        for order, each in zip((inside, across), laid_out, strict=True)
    )
    assert first["tp"] == 0 < first["dp"]
    assert last["tp"] > 2 * first["dp"]
    seconds = [replay(step(order), CLUSTER).seconds for order in (inside, across)]
    assert 1.5 < seconds[1] / seconds[0] < 2.5


def test_the_bytes_through_a_card_are_those_of_the_ring():
    gradients = 2 * sum(shards.parameters(MODEL, LAYOUT).values())
    carried = crossings.busiest(step(), CLUSTER, groups(LAYOUT))
    assert carried["network"]["dp"] == pytest.approx(2 * 3 / 4 * gradients)
    activations = 2 * 2 * 4096 * MODEL.hidden_size
    assert carried["NVLink"]["tp"] == pytest.approx((4 * MODEL.num_layers + 2) * 2 * 7 / 8 * activations)


def test_a_slower_network_never_helps_and_beyond_the_knee_a_faster_one_hardly_does():
    events, rates = step(), [10e9, 50e9, 400e9, 4000e9]
    seconds = knee.curve(events, CLUSTER, rates)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[2] == replay(events, CLUSTER).seconds  # 400 GB/s is what the node has
    at = knee.knee(events, CLUSTER)
    assert 50e9 < at < 400e9
    assert knee.curve(events, CLUSTER, [at])[0] == pytest.approx(1.05 * seconds[3], rel=0.01)


def test_a_knee_is_searched_between_the_rates_that_are_known():
    """The knee is the same, and rates that the known ones decide are not tried."""
    tried = []

    def seconds(rate):
        tried.append(rate)
        return 1 + 1e10 / rate

    alone = knee.of(seconds)
    known = {rate: 1 + 1e10 / rate for rate in (1e9, 1e11, 4e11, 1e12, knee.RANGE[1])}
    tried.clear()
    assert knee.of(seconds, known) == alone == pytest.approx(2e11, rel=0.01)
    assert tried
    assert all(1e11 < rate < 4e11 for rate in tried)
    assert knee.of(lambda rate: 1.0, {1e9: 1.0}) == 0


def test_fewer_all_reduces_need_a_slower_network():
    """Four times the tokens in a step, and still one all-reduce of the gradients: more to hide behind."""
    layout, cluster = Layout(dp=16), nodes.cluster("DGX H100", 2)
    knees = [knee.knee(step(layout=layout, cluster=cluster, microbatch=n), cluster) for n in (1, 4)]
    assert knees[0] > 2.5 * knees[1]
    assert knee.knee(step(layout=Layout(tp=8), cluster=cluster, microbatch=1, sequence=512), cluster) == 0


def test_a_node_without_cards_has_no_network_to_replace():
    alone = network.Cluster(node=nodes.node("Two RTX 4090"))
    with pytest.raises(ValueError, match="Two RTX 4090 has no network card"):
        knee.at_rate(alone, 1e9)


def test_a_network_at_another_rate():
    node = knee.at_rate(CLUSTER, 100e9).node
    assert node.network_bandwidth == pytest.approx(100e9)
    assert [wire for wire in node.wires if wire.link.kind != "network"] == [
        wire for wire in CLUSTER.node.wires if wire.link.kind != "network"
    ]
