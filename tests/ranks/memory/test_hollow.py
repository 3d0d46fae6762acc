"""A hollow model holds one number a parameter until it is cut, and then trains like any other."""

import pytest
import torch

from shardlab.launch import run
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import train, transformer
from shardlab.ranks.memory import hollow
from shardlab.ranks.mesh import Mesh
from shardlab.schedules import make
from shardlab.sharding.layout import Layout
from tests.ranks import training
from tests.ranks.tolerance import EXACT

LAYOUTS = [
    Layout(),
    Layout(tp=2, pp=2),
    Layout(tp=4),
    Layout(dp=2, zero=1),
    Layout(dp=2, cp=2, zero=3),
]


def stored(model):
    """Count the numbers that parameters have room for, each storage once."""
    found = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() // p.itemsize for p in model.parameters()}
    return sum(found.values())


def trainers(group, layout, style):
    """Train two steps from the same numbers: in a model that was hollow, and in one that was whole."""
    torch.set_num_threads(1)
    plain, weights = training.plain(style, 2), {}
    for name, parameter in plain.named_parameters():
        weights[f"weights/{name}"] = parameter.detach().clone()
    model = hollow.build(training.spec(style, 2), torch.float64)
    before = stored(model), len(list(model.parameters()))
    found = []
    for each in (model, plain):
        trainer = train.Trainer(each, Mesh(layout, group), make("1F1B", layout.pp, 2), training.adamw)
        room = [state.nbytes()["parameters"] for state in trainer.states]
        for box in trainer.boxes():
            here = tuple(slice(at, at + n) for at, n in zip(box.offsets, box.tensor.shape, strict=True))
            box.tensor.copy_(weights[box.name][here])
        for state in trainer.states:
            state.refresh()
        for step in range(2):
            tokens, targets, weight = training.batch(trainer.mesh, style, step, 4)
            trainer.step(tokens, targets, weight)
        found.append((room, trainer.gather()))
    return before, found


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("style", training.STYLES)
def test_a_hollow_model_trains_like_a_whole_one_in_its_room(layout, style):
    for (numbers, parameters), found in run(trainers, layout, style, world_size=layout.ranks, ranks="threads"):
        assert numbers == parameters, "each has one number"
        (room, ours), (same, expected) = found
        assert room == same
        for name, tensor in expected.items():
            torch.testing.assert_close(ours[name], tensor, **EXACT)


def test_buffers_are_those_of_a_whole_model():
    """Experts that a bias balances have one of floating-point numbers, and one that counts tokens."""
    sizes = {"vocab_size": 13, "context_length": 6, "hidden_size": 8, "num_layers": 2, "num_heads": 2}
    experts = Experts(num_experts=4, per_token=2, expert_size=12, balance="bias")
    spec = TransformerSpec(**sizes, style="llama", experts=experts)
    expected = dict(transformer.Transformer(spec).double().named_buffers())
    found = dict(hollow.build(spec, torch.float64).named_buffers())
    assert {each.dtype for each in expected.values()} == {torch.float64, torch.int64}
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
