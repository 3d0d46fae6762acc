"""A placed step does the work of the model and sends the bytes of each axis where the layout puts them."""

from dataclasses import replace

import pytest

from shardlab.costs import context_parallel
from shardlab.costs.compute import flops
from shardlab.costs.facts import hardware, models, network, nodes
from shardlab.costs.facts.hardware import LINK_UTILISATION
from shardlab.costs.memory import shards
from shardlab.costs.traces import crossings, knee, matching, placement
from shardlab.costs.traces.replay import UTILISATION, replay
from shardlab.layout import AXES, AXES_3D, Layout, groups, together
from shardlab.spec import TransformerSpec

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


@pytest.mark.parametrize("together", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_all_ranks_together_do_the_work_of_the_model(layout, together):
    """FLOPs over all ranks are those of the whole batch; nothing is computed twice, nothing is left out."""
    events = placement.step(
        SPEC, layout, batch=6, num_microbatches=3, sequence=32, layers_at_a_time=together
    )
    work = flops.model_flops(SPEC, batch=6 * layout.dp, sequence=32)
    assert sum(event.flops for event in events) == pytest.approx(work, rel=1e-4)  # rounded to whole FLOPs
    assert {event.rank for event in events} == set(range(layout.ranks))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_axis_carries_the_bytes_of_its_formula(layout):
    events = placement.step(SPEC, layout, batch=6, num_microbatches=3, sequence=32)
    by_axis, meetings = groups(layout), matching.meetings(events)
    activations = 2 * 6 * 32 * SPEC.hidden_size  # bytes of all microbatches
    sent = {axis: 0 for axis in AXES_3D}
    for meeting in meetings:
        group = events[meeting.events[0]].group
        sent[next(axis for axis, every in by_axis.items() if group in every and len(group) > 1)] += meeting.nbytes
    others = {axis: layout.ranks // getattr(layout, axis) for axis in AXES_3D}
    assert sent["tp"] == (layout.tp > 1) * 4 * SPEC.num_layers * activations * others["tp"] // layout.pp
    assert sent["pp"] == 2 * (layout.pp - 1) * activations * others["pp"]
    held = sum(sum(shards.parameters(SPEC, layout, stage).values()) for stage in range(layout.pp))
    assert sent["dp"] == pytest.approx((layout.dp > 1) * 2 * held * layout.tp, rel=1e-3)


@pytest.mark.parametrize("tied", [False, True])
def test_gradients_leave_in_the_order_in_which_backward_completes_them(tied):
    """The head's first and the embedding's last; a tied one is complete when the embedding has added its share."""
    spec = replace(SPEC, tied_head=tied)
    events = placement.step(spec, Layout(dp=2), sequence=32)
    sent = [event.nbytes for event in events if event.rank == 0 and event.op == "all_reduce"]
    table = 2 * spec.vocab_size * spec.hidden_size
    assert sent[-1] == table + 2 * models.learned_positions(spec) * spec.hidden_size
    assert (sent[0] == table) == (not tied)
    assert len(sent) == spec.num_layers + 2 - tied


SHARED = [Layout(cp=2), Layout(cp=4), Layout(cp=2, dp=2, tp=2, pp=2)]


@pytest.mark.parametrize("layout", SHARED, ids=str)
def test_ranks_that_share_sequences_do_the_same_work_and_pass_the_bytes_of_a_ring(layout):
    events = placement.step(SPEC, layout, order=AXES, batch=6, num_microbatches=3, sequence=32)
    work = flops.model_flops(SPEC, batch=6 * layout.dp, sequence=32)
    assert sum(event.flops for event in events) == pytest.approx(work, rel=1e-4)
    layer = context_parallel.attention(SPEC, length=32, ranks=layout.cp, tp=layout.tp, batch=6)
    in_a_ring = sum(context_parallel.sent_bytes(layer, "ring").values()) * SPEC.num_layers // layout.pp
    rings = set(groups(layout, AXES)["cp"])
    sent = [event for event in events if event.op == "send" and event.group in rings]
    assert sum(event.nbytes for event in sent) == in_a_ring * layout.ranks
    averaged = {event.group for event in events if event.op == "all_reduce"} - set(groups(layout, AXES)["tp"])
    assert averaged == set(together(layout, ("dp", "cp"), AXES))


def without(events, ops):
    """The same programs without these communications, and without waiting for them."""
    gone = {(event.rank, event.number) for event in events if event.op in ops}
    return [event for event in events if (event.rank, event.number) not in gone]


@pytest.mark.parametrize("length", [512, 2048, 16_384])
def test_a_replayed_ring_waits_as_long_as_the_formula_has_it(length):
    """Four GPUs on one switch, first with every hop exposed, then with some, then with the way home alone."""
    spec = replace(MODEL, context_length=length, num_layers=2)
    link = hardware.link("NVLink 4")
    cluster = network.uniform(4, link, hardware.chip("H100 SXM 80 GB"))
    events = without(placement.step(spec, Layout(cp=4), order=AXES, sequence=length), {"all_reduce"})
    waiting = replay(events, cluster).seconds - replay(without(events, {"send", "receive"}), cluster).seconds
    layer = context_parallel.attention(spec, length=length, ranks=4)
    scores = flops.forward(spec, batch=1, sequence=length)["scores"] / spec.num_layers / 4
    forward = scores / (UTILISATION * cluster.node.chip.peak_flops)
    reached = replace(link, bandwidth=LINK_UTILISATION * link.bandwidth)
    waits = context_parallel.exposed_seconds(layer, "ring", reached, forward=forward, backward=2 * forward)
    assert waiting == pytest.approx(spec.num_layers * waits, rel=1e-6)


def test_bad_batches_are_refused():
    for options in ({"batch": 3, "num_microbatches": 2}, {"layout": Layout(cp=3)}):
        with pytest.raises(ValueError, match="split evenly"):
            placement.step(SPEC, **{"layout": Layout(), "sequence": 32, **options})


# ---- on a cluster ----------------------------------------------------------------------------------------------------

MODEL, LAYOUT = models.published("Llama 3 8B").spec, Layout(dp=4, tp=8)
CLUSTER = nodes.cluster("DGX H100", 4)


def step(order=AXES_3D, layout=LAYOUT):
    return placement.step(MODEL, layout, order=order, batch=2, sequence=4096, layers_at_a_time=8)


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
    assert carried["NVLink"]["tp"] == pytest.approx(4 * MODEL.num_layers * 2 * 7 / 8 * activations)


def test_a_slower_network_never_helps_and_beyond_the_knee_a_faster_one_hardly_does():
    events, rates = step(), [10e9, 50e9, 400e9, 4000e9]
    seconds = knee.curve(events, CLUSTER, rates)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[2] == replay(events, CLUSTER).seconds  # 400 GB/s is what the node has
    at = knee.knee(events, CLUSTER)
    assert 50e9 < at < 400e9
    assert knee.curve(events, CLUSTER, [at])[0] == pytest.approx(1.05 * seconds[3], rel=0.01)


def test_fewer_all_reduces_need_a_slower_network():
    """Four times the tokens in a step, and still one all-reduce of the gradients: more to hide behind."""
    layout, cluster = Layout(dp=16), nodes.cluster("DGX H100", 2)
    steps = [placement.step(MODEL, layout, batch=n, sequence=4096, layers_at_a_time=8) for n in (1, 4)]
    knees = [knee.knee(events, cluster) for events in steps]
    assert knees[0] > 2.5 * knees[1]
    assert knee.knee(placement.step(MODEL, Layout(tp=8), batch=1, sequence=512), cluster) == 0


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
