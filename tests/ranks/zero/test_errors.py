"""What ZeRO cannot shard is refused with advice, and a failed backward leaves nothing behind."""

import contextlib
import copy
import functools

import pytest
import torch
from torch import nn

from shardlab.launch import RankError, run
from shardlab.ranks import zero
from tests.ranks.tolerance import EXACT
from tests.ranks.zero.training import (
    OPTIMIZERS,
    build,
    error,
    tokens_of,
)


def fails_once(group):
    """Run a backward that fails on all ranks, then zero_grad, then one that does not fail."""
    model = build("gpt2")
    states = zero.shard(model, group, stage=3, optimizer=OPTIMIZERS["SGD"])
    loss = error(model, tokens_of(0).chunk(group.size())[group.rank()])

    def fail(grad):
        raise ArithmeticError

    model.blocks[1].register_forward_hook(
        lambda _module, _inputs, y: y.register_hook(fail) and None
    )
    with contextlib.suppress(ArithmeticError):
        error(model, tokens_of(1)).backward()
    model.blocks[1]._forward_hooks.popitem()
    states.zero_grad()
    loss = error(model, tokens_of(0).chunk(group.size())[group.rank()])
    loss.backward()
    states.step()
    return states.full_state_dict()


def test_zero_grad_drops_what_a_failed_backward_left():
    model = build("gpt2")
    plain = OPTIMIZERS["SGD"]([p for p in model.parameters() if p.requires_grad])
    error(model, tokens_of(0)).backward()
    plain.step()
    for state in run(fails_once, world_size=2):
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, **EXACT)


class Half(nn.Module):
    """A layer of which one half is never used."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})]
        )

    def forward(self, x):
        return self.layers[0]["used"](x)


def half_used(group):
    """Step with gradients for half of a unit, while torch fills uninitialized memory with NaN."""
    torch.use_deterministic_algorithms(True)
    module = Half()
    states = zero.shard(
        module, group, stage=1, optimizer=functools.partial(torch.optim.SGD, lr=0.1)
    )
    before = states.full_state_dict()
    module(torch.ones(1, 2)).sum().backward()
    states.step()
    return {name: tensor - before[name] for name, tensor in states.full_state_dict().items()}


def test_parameters_that_no_backward_reached_count_as_zero():
    for moved in run(half_used, world_size=2):
        used = {name for name, difference in moved.items() if difference.any()}
        assert used == {"layers.0.used.weight", "layers.0.used.bias"}


def shard_anything(group, module, stage=2, **options):
    states = zero.shard(
        copy.deepcopy(module), group, stage=stage, optimizer=torch.optim.Adam, **options
    )
    states.module(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"module": Half()},
            r"no gradient to 2 parameters.*layers.0.idle.weight.*freeze them.*no_sync",
        ),
        (
            {"module": nn.Linear(2, 2), "stage": 0},
            "stages 1, 2 and 3, not 0; without any, use DataParallel",
        ),
        (
            {"module": nn.Linear(2, 2), "layers": [nn.Linear(2, 2)]},
            "layer 0 is not inside the module",
        ),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises(RankError, match=message):
        run(lambda group: shard_anything(group, **options), world_size=2)


def test_layers_inside_each_other_are_refused():
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="layer 1 is inside another"):
        zero.units.split(nn.ModuleList([module]), [module, module[0]])


def test_a_weight_that_is_used_outside_of_its_layer_belongs_to_the_rest():
    module = nn.ModuleDict(
        {"layers": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "head": nn.Linear(2, 2)}
    )
    module["head"].weight = module["layers"][0].weight
    (_, first), (_, second), (whole, rest) = zero.units.split(module, list(module["layers"]))
    assert list(first) == ["layers.0.bias"]
    assert list(second) == ["layers.1.weight", "layers.1.bias"]
    assert whole is module
    assert list(rest) == ["layers.0.weight", "head.bias"]


def test_a_sparse_gradient_is_refused():
    module = nn.Sequential(nn.Embedding(4, 2, sparse=True))

    def call(group):
        zero.shard(module, group, stage=1, optimizer=OPTIMIZERS["SGD"])
        module(torch.tensor([1])).sum().backward()
        flat = zero.Flat({"x": module[0].weight}, group)
        zero.gradients.Gradients(flat).take(0)

    with pytest.raises(RankError, match="sparse=False"):
        run(call, world_size=1)
