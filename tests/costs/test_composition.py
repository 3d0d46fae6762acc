"""What goes along each axis is what ranks count; what leaves a node is what a transfer by transfer account says."""

from dataclasses import replace
from itertools import permutations

import pytest
import torch

from shardlab import launch, schedules
from shardlab.costs import composition, step
from shardlab.costs.facts import models, nodes
from shardlab.costs.facts.recipes import Recipe
from shardlab.costs.programs import BOOK
from shardlab.costs.traces import crossings
from shardlab.costs.training import Training
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.observe import ledger
from shardlab.ranks.train import Trainer
from shardlab.sharding.layout import AXES_3D, Layout, coordinates, groups

DOUBLE = Recipe(
    name="float64 Adam", parameters=8, gradients=8, optimizer=16, update_traffic=0, element=8, source="this test"
)
SIZES = {"vocab_size": 48, "context_length": 16, "hidden_size": 32, "num_layers": 4, "num_heads": 4}
GPT = TransformerSpec(**SIZES)
LLAMA = TransformerSpec(**SIZES, num_kv_heads=2, ffn_size=64, style="llama")
CASES = [  # sizes without padding
    (GPT, Layout(dp=2, tp=2, sequence_parallel=True), "1F1B"),
    (GPT, Layout(tp=2, pp=2, sequence_parallel=True), "1F1B"),
    (GPT, Layout(dp=2, pp=2, zero=2), "1F1B"),
    (LLAMA, Layout(dp=2, tp=2, zero=3), "1F1B"),
    (GPT, Layout(dp=2, pp=2, zero=3), "1F1B"),
    (LLAMA, Layout(dp=2, pp=2, zero=1), "GPipe"),
    (LLAMA, Layout(dp=2, pp=2, zero=2), "1F1B"),
    (LLAMA, Layout(tp=4, sequence_parallel=True), "1F1B"),
    (LLAMA, Layout(tp=4), "1F1B"),
    (LLAMA, Layout(tp=2, pp=2), "interleaved"),
    (LLAMA, Layout(pp=4), "1F1B"),
]
MICROBATCHES = 4


def training(spec, layout, schedule):
    chunks = 2 if schedule == "interleaved" else 1
    return Training(
        spec=spec, layout=layout, recipe=DOUBLE, microbatch=2, num_microbatches=MICROBATCHES, schedule=schedule,
        chunks=chunks, program=BOOK,
    )


def steps(group):
    """Every case: where this rank is, and what it sent along each axis."""
    found, known = [], {}
    for spec, layout, schedule in CASES:
        torch.manual_seed(0)
        mesh = Mesh(layout, group, known=known)
        plan = schedules.make(schedule, layout.pp, MICROBATCHES)
        trainer = Trainer(transformer.Transformer(spec).double(), mesh, plan, torch.optim.AdamW)
        tokens = torch.randint(48, (2 * MICROBATCHES, 17))
        trainer.pipeline.negotiate(tokens[:, :-1])
        trainer.pipeline.negotiated = tokens[:, :-1].shape
        with ledger.Ledger() as book:
            trainer.step(tokens[:, :-1], tokens[:, 1:])
        found.append((mesh.place["pp"], composition.by_axis(book.events, layout)))
    return found


@pytest.fixture(scope="module")
def counted():
    return launch.run(steps, world_size=4)


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda n: f"{CASES[n][0].style}-{CASES[n][1:]}")
@pytest.mark.counted("composition", "bytes that a rank sends along each axis")
def test_every_axis_carries_the_bytes_that_ranks_count(number, counted):
    for rank in counted:
        stage, found = rank[number]
        layout = CASES[number][1]
        parts = composition.sent(training(*CASES[number]), stage)
        predicted = {axis: sum(each.values()) for axis, each in parts.items()}
        for axis in AXES_3D:
            if getattr(layout, axis) == layout.ranks:
                predicted[axis] += predicted.pop(composition.ALL)
        assert {axis: found[axis] for axis in predicted} == pytest.approx(predicted)


def test_inputs_that_are_gathered_again_are_two_more_halves_of_the_eight_of_a_layer():
    cut = Layout(tp=4, sequence_parallel=True)
    kept, again = (
        composition.sent(Training(spec=LLAMA, layout=cut, program=replace(BOOK, keeps_gathered=keeps)))
        for keeps in (True, False)
    )
    assert again["tp"]["layers"] == 10 / 8 * kept["tp"]["layers"]
    assert again["tp"]["loss"] == kept["tp"]["loss"]


def test_keys_and_values_are_refused_and_not_left_out():
    with pytest.raises(ValueError, match=r"cp=2.* use cp=1, and add context_parallel\.sent_bytes"):
        composition.sent(Training(spec=LLAMA, layout=Layout(cp=2)))


# ---- leaving a node --------------------------------------------------------------------------------------------------

MODEL = models.published("Llama 3 8B").spec
LARGE = [Layout(tp=8, dp=4), Layout(tp=4, dp=4, pp=2), Layout(tp=2, dp=4, pp=4)]


@pytest.mark.parametrize("order", list(permutations(AXES_3D)), ids="-".join)
@pytest.mark.parametrize("layout", LARGE, ids=str)
def test_a_node_sends_what_its_eight_cards_do(layout, order):
    """Against `crossings`, which sends every transfer of a step's program over its wires."""
    cluster = nodes.cluster("PCIe box, 100 GbE", 4)  # one card, so that all that leaves a node leaves by it
    training = Training(spec=MODEL, layout=layout, sequence=4096, num_microbatches=4, program=BOOK)
    events = step.trace(step.Run(training=training, cluster=cluster), order, layers_at_a_time=8)
    by_card = crossings.busiest(events, cluster, groups(layout, order)).get("network", dict.fromkeys(AXES_3D, 0.0))
    left = composition.leaving(training, cluster.node.gpus, order)
    assert left["pp"] == pytest.approx(by_card["pp"])
    assert left["dp"] == pytest.approx(by_card["dp"], rel=0.001)
    assert left["tp"] == pytest.approx(by_card["tp"], rel=0.001)  # the program leaves out the loss


def test_one_node_keeps_everything():
    left = composition.leaving(Training(spec=MODEL, layout=Layout(tp=4, pp=2)), 8)
    assert left == dict.fromkeys(AXES_3D, 0.0)


@pytest.mark.parametrize(("spec", "chunks"), [(MODEL, 1), (MODEL, 2), (GPT, 1)], ids=["plain", "chunks", "tied"])
def test_the_messages_of_a_rank_are_what_it_sends(spec, chunks):
    layout = Layout(tp=2, dp=3, pp=2, zero=1)
    kind = {"schedule": "interleaved", "chunks": chunks} if chunks > 1 else {}
    training = Training(spec=spec, layout=layout, num_microbatches=4, program=BOOK, **kind)
    for order in permutations(AXES_3D):
        for axis, each in composition.messages(training, order).items():
            assert list(each) == groups(layout, order)[axis]
            for group, edges in each.items():
                assert {edge.to for edge in edges} == set(group)
                for rank in group:
                    stage = coordinates(rank, layout, order)["pp"]
                    sent = sum(composition.sent(training, stage)[axis].values())
                    assert sum(edge.nbytes for edge in edges if edge.source == rank) == pytest.approx(sent)
