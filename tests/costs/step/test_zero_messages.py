"""The program of a rank under ZeRO sends the bytes of ZeRO, and takes as long as the step says."""

import re
from dataclasses import replace

import pytest

from shardlab.costs import step
from shardlab.costs.compute import kernels
from shardlab.costs.facts import hardware, models, network, nodes
from shardlab.costs.programs import BOOK, BOOK_ZERO
from shardlab.costs.traces.replay import replay
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

DGX = nodes.cluster("DGX H100", 1)


def run(stage, model="GPT-2 XL", ranks=8, **options):
    spec = models.published(model).spec
    layout = Layout(dp=ranks, zero=stage)
    training = Training(spec=spec, layout=layout, sequence=1024, program=BOOK_ZERO, **options)
    return step.Run(training=training, cluster=DGX)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("model", ["GPT-2 XL", "Llama 3 8B"])
@pytest.mark.parametrize("size", [{}, {"num_microbatches": 4}, {"microbatch": 4}], ids=str)
def test_a_step_takes_what_the_replay_of_all_ranks_takes(stage, model, size):
    """Within 1 %, also where the rank waits for most of the time."""
    one = run(stage, model, **size)
    assert replay(step.trace(one), DGX).seconds == pytest.approx(step.step(one).seconds, rel=0.01)


def test_one_rank_sends_nothing_and_computes_as_long():
    alone = run(3, ranks=1)
    events = step.trace(alone)
    assert {event.kind for event in events} == {"compute"}
    assert sum(event.seconds for event in events) == pytest.approx(step.step(alone).seconds)


def test_stage_3_hides_its_messages_from_so_many_tokens_of_a_microbatch():
    """Beyond the edge of the rule a step hardly waits; with half as many tokens it waits most of the difference."""
    rate = kernels.ordinary_flops(DGX.node.chip)
    edge = rate / (0.8 * 450e9)  # F / beta, where parameters and gradients take 16 bits
    shares = {}
    for times in (0.25, 4):
        taken = step.step(run(3, "Llama 3 8B", microbatch=max(1, round(times * edge / 1024))))
        shares[times] = taken.waiting / taken.seconds
    assert shares[4] < 0.05 < shares[0.25]


def test_a_layer_is_asked_for_before_the_one_before_it_computes_and_its_gradients_are_waited_for_a_layer_later():
    """Of three layers, as `ranks.zero` does it: G gathers, S scatters, C computes, and a wait names its message."""
    spec = replace(models.published("GPT-2 XL").spec, num_layers=3)
    one = run(3, ranks=2)
    one = replace(one, training=replace(one.training, spec=spec))
    letters = {"all_gather": "G", "reduce_scatter": "S", "forward": "C", "backward": "C", "update": "U"}
    names, written = {}, []
    for event in (event for event in step.trace(one, layers_at_a_time=1) if event.rank == 0):
        if event.kind == "idle":
            written.append(names[event.number].lower())
        elif event.seconds == 0 and event.kind == "compute":
            continue
        else:
            letter = letters[event.op]
            names[event.number] = letter + str(sum(name[0] == letter for name in names.values()))
            written.append(names[event.number] if event.kind == "communicate" else letter)
    text = re.sub("C+", "C", "".join(written))
    forward = "G0G1g0Cg1G2Cg2G3Cg3C"
    backward = "G4Cg4G5CS0g5G6CS1s0g6CS2s1CS3s2s3"
    assert text == forward + backward + "U"


BETWEEN = nodes.cluster("DGX H100", 2)
APART = network.uniform(8, hardware.link("InfiniBand NDR"), hardware.chip("H100 SXM 80 GB"))
TREE = nodes.cluster("PCIe box, 100 GbE", 1)  # two processors, with a link that a quarter of a lane's rate fills


@pytest.mark.parametrize(
    ("layout", "cluster", "size"),
    [
        (Layout(dp=2, tp=8), BETWEEN, {}),
        (Layout(dp=2, tp=8, zero=3), BETWEEN, {}),
        (Layout(dp=2, tp=8, zero=3, sequence_parallel=True), BETWEEN, {"num_microbatches": 2}),
        (Layout(dp=2, tp=4), TREE, {}),
        (Layout(dp=2, tp=4, zero=3), TREE, {}),
        (Layout(dp=4, tp=2, zero=3, sequence_parallel=True), TREE, {"num_microbatches": 2}),
        (Layout(dp=4, tp=2, zero=3), APART, {"sequence": 1024}),  # the same cards: waits hide nothing
    ],
    ids=str,
)
def test_messages_also_travel_while_ranks_of_tp_wait_over_links_with_room(layout, cluster, size):
    sizes = {"sequence": 4096, "program": BOOK, **size}
    training = Training(spec=models.published("Llama 3 8B").spec, layout=layout, **sizes)
    one = step.Run(training=training, cluster=cluster)
    assert replay(step.trace(one), cluster).seconds == pytest.approx(step.step(one).seconds, rel=0.01)
