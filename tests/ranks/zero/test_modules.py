"""ZeRO shards any module, recomputed layers too, and has parameters only while they compute."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab.launch import run
from shardlab.ranks import zero
from shardlab.ranks.memory import recompute
from tests.ranks.tolerance import EXACT
from tests.ranks.zero.training import (
    OPTIMIZERS,
    build,
    error,
    tokens_of,
)

# ---- other modules -------------------------------------------------------------------------------


class Odd(nn.Module):
    """A module with shared and frozen weights, keywords, two outputs, a buffer and a branch."""

    class Layer(nn.Module):
        def __init__(self, shared, train=True):
            super().__init__()
            self.shared, self.own = shared, nn.Linear(5, 5).requires_grad_(train)

        def forward(self, x, *, gain):
            h = torch.tanh(self.own(x) + self.shared(x)) * gain
            return h, h.sum()

    def __init__(self):
        super().__init__()
        shared = nn.Linear(5, 5)
        self.first = nn.Linear(3, 5).requires_grad_(False)
        self.layers = nn.ModuleDict({"a": self.Layer(shared), "b": self.Layer(shared, train=False)})
        self.branch = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mean", torch.randn(5))
        self.double()

    def forward(self, x, way):
        x, total = self.first(x) + self.mean, 0.0
        for layer in self.layers.values():
            x, more = layer(x, gain=self.gain)
            total = total + more
        return {"y": self.branch[way](x), "total": total}


def odd(seed):
    torch.manual_seed(seed)
    return Odd()


def odd_loss(model, x, way):
    found = model(x, way)
    return found["y"].pow(2).mean() + 1e-2 * found["total"] / len(x)


def odd_steps(model, states, x):
    """Take two steps; the second leaves the parameters of the first's branch without gradients."""
    for way in (0, 1):
        states.zero_grad()
        odd_loss(model, x, way).backward()
        states.step()


def shard_odd(group):
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    found = []
    for stage in (1, 2, 3):
        model = odd(group.rank())
        states = zero.shard(model, group, stage=stage, optimizer=OPTIMIZERS["AdamW"])
        odd_steps(model, states, x.chunk(group.size())[group.rank()])
        with torch.no_grad():
            value = odd_loss(model, x, 1)
        found.append((states.full_state_dict(), value))
    return found


def test_any_module():
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    model = odd(0)
    odd_steps(model, OPTIMIZERS["AdamW"]([p for p in model.parameters() if p.requires_grad]), x)
    value = odd_loss(model, x, 1).detach()
    for stages in run(shard_odd, world_size=4):
        for state, ours in stages:
            torch.testing.assert_close(ours, value, **EXACT)
            assert list(state) == list(model.state_dict())
            for name, tensor in model.state_dict().items():
                torch.testing.assert_close(state[name], tensor, **EXACT)


def recomputed(group):
    """Recompute layers in backward, with our checkpoint and with torch's around the whole layer."""
    found = []
    for way in ("plain", "ours", "torch's"):
        model = build("llama")
        states = zero.shard(model, group, stage=3, optimizer=OPTIMIZERS["Adam"])
        if way == "ours":
            recompute.wrap(model.blocks)
        if way == "torch's":
            model.blocks = nn.ModuleList([Around(block) for block in model.blocks])
        error(model, tokens_of(0).chunk(group.size())[group.rank()]).backward()
        found.append([each.average for each in states.gradients])
        assert not any(flat.is_whole for flat in states.flats)
    return found


class Around(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def test_recomputed_layers():
    for plain, ours, theirs in run(recomputed, world_size=2):
        for expected, one, other in zip(plain, ours, theirs, strict=True):
            torch.testing.assert_close(one, expected, **EXACT)
            torch.testing.assert_close(other, expected, **EXACT)


# ---- parameters are there when they compute, and only then ---------------------------------------


def watched(group):
    """Return what a reader sees between steps, and the order of gathering and computing."""
    model, order = build("llama"), []
    states = zero.shard(model, group, stage=3, optimizer=OPTIMIZERS["Adam"])
    outside = (
        [bool(p.isnan().all()) for p in model.parameters()],
        [p.shape for p in model.parameters()],
    )
    for number, unit in enumerate(states.gathering.units):
        unit.gather = functools.partial(
            lambda number, go: (order.append(f"gather {number}"), go()), number, unit.gather
        )
        unit.module.register_forward_pre_hook(
            lambda *_, number=number: order.append(f"forward {number}")
        )
        unit.module.register_full_backward_pre_hook(
            lambda *_, number=number: order.append(f"backward {number}")
        )
    error(model, tokens_of(group.rank())).backward()
    return outside, order, [flat.is_whole for flat in states.flats]


def test_the_next_layer_is_gathered_before_this_one_computes():
    for (gone, shapes), order, whole in run(watched, world_size=2):
        assert all(gone)
        assert shapes == [p.shape for p in build("llama").parameters()]
        assert not any(whole)
        forward, backward = order[: order.index("backward 2")], order[order.index("backward 2") :]
        for number in (0, 1):
            assert forward.index(f"gather {number + 1}") < forward.index(f"forward {number}")
        for number in (2, 1):
            assert backward.index(f"gather {number - 1}") < backward.index(f"backward {number - 1}")
        assert backward.index("gather 1") < backward.index("backward 1")
