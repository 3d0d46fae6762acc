"""What tools/adapters/ gives to the tests of other courses equals one process, in float64."""

from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from adapters import cmu_hw5, cs336, cse234_pa2, cse234_pa3
from torch import nn

from shardlab import launch

RANKS = (1, 2, 3, 4)
EXACT = 1e-14


class Tied(nn.Module):
    """A layer that is used twice, a frozen one, and a parameter that no loss reaches."""

    def __init__(self):
        super().__init__()
        self.twice, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2), requires_grad=False)

    def forward(self, x):
        return self.twice(self.frozen(self.twice(x)).tanh())


def seeded(seed):
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    return Tied()


def three_steps(model, optimizer, x, after):
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        after(model, optimizer)
        optimizer.step()


def far(model, other):
    return max((a - b).abs().max().item() for a, b in zip(model.parameters(), other.parameters(), strict=True))


def nothing(*_):
    pass


def cs336_ddp(group):
    alone, x = seeded(0), torch.randn(12, 4)
    model = cs336.get_ddp(seeded(group.rank()))
    three_steps(alone, torch.optim.SGD(alone.parameters(), lr=0.1), x, nothing)
    own = x.tensor_split(group.size())[group.rank()]
    three_steps(model, torch.optim.SGD(model.parameters(), lr=0.1), own, cs336.ddp_on_after_backward)
    return far(model, alone)


def cs336_sharded_optimizer(group):
    alone, model, x = seeded(0), seeded(0), torch.randn(12, 4)
    options = {"lr": 0.1, "weight_decay": 0.1}
    three_steps(alone, torch.optim.AdamW(alone.parameters(), **options), x, nothing)
    three_steps(model, cs336.get_sharded_optimizer(model.parameters(), torch.optim.AdamW, **options), x, nothing)
    return far(model, alone)


def cmu_train_step(group):
    alone, model, x = seeded(0), seeded(0), torch.randn(12, 4)
    three_steps(alone, torch.optim.SGD(alone.parameters(), lr=0.1), x, nothing)
    optimizer, own = torch.optim.SGD(model.parameters(), lr=0.1), x.tensor_split(group.size())[group.rank()]
    for _ in range(3):
        cmu_hw5.train_step(model, optimizer, own, 0, lambda y, _: y.square().mean())
    return far(model, alone)


def cse234_columns(group):
    """Gather, reduce-scatter and split the last dim, against numpy on the whole arrays."""
    rank, size = group.rank(), group.size()
    mpi = SimpleNamespace(Get_rank=group.rank, Get_size=group.size)
    x = np.random.RandomState(0).randn(size, 2, 3, 2 * size)
    own = slice(2 * rank, 2 * rank + 2)
    pairs = [
        (cse234_pa2.naive_collect_forward_input(x[0][..., own], mpi, size), x[0]),
        (cse234_pa2.naive_collect_forward_output(x[0][..., own], mpi, size), x[0]),
        (cse234_pa2.naive_collect_backward_output(x[0], rank, size), x[0][..., own]),
        (cse234_pa2.naive_collect_backward_x(x[rank], mpi, size), x.sum(0)[..., own]),
    ]
    return max(abs(got - expected).max() for got, expected in pairs)


def cse234_mixture(group):
    """Two experts for a token, on two widths, against all experts in a loop."""
    rank, size, random = group.rank(), group.size(), np.random.RandomState(0)
    k = min(2, size)
    x, gates = random.randn(9, 5), random.rand(9, k)
    chosen = random.rand(9, size).argsort(1)[:, :k]
    worst = 0
    for wide in (3, 5, 7):
        matrices = random.randn(size, 5, wide)
        layer = SimpleNamespace(input_dim=5, output_dim=wide, topk=k, rank=rank, world_size=size)
        layer.router = lambda *_: (chosen, gates)
        layer.expert = lambda rows, own=matrices[rank]: rows @ own
        expected = sum(gates[:, [j]] * np.einsum("td,tdw->tw", x, matrices[chosen[:, j]]) for j in range(k))
        worst = max(worst, abs(cse234_pa3.forward(layer, x) - expected).max())
    return worst


METHODS = [cs336_ddp, cs336_sharded_optimizer, cmu_train_step, cse234_columns, cse234_mixture]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
@pytest.mark.parametrize("world_size", RANKS)
def test_an_adapter_equals_one_process(method, world_size):
    assert max(launch.run(method, world_size=world_size)) < EXACT


def unused_gradients(group):
    model = nn.ParameterDict({"used": torch.ones(2), "unused": torch.ones(2)})
    model["used"].grad = torch.full((2,), float(group.rank()))
    cmu_hw5.average_gradients(model)
    return model["used"].grad.tolist(), model["unused"].grad, dist.get_world_size()


def test_a_gradient_that_no_rank_has_stays_none():
    assert launch.run(unused_gradients, world_size=3) == [([1.0, 1.0], None, 3)] * 3


@pytest.mark.parametrize(("size", "ranks"), [(0, 3), (2, 5), (17, 3), (32, 2)])
def test_samples_are_dealt_once_and_evenly(size, ranks):
    parts = cmu_hw5.partition_indices(size, ranks, 7)
    assert sorted(chain(*parts)) == list(range(size))
    assert [len(part) for part in parts] == [size // ranks + (rank < size % ranks) for rank in range(ranks)]
    assert parts == cmu_hw5.partition_indices(size, ranks, 7)


@pytest.mark.parametrize(("size", "ranks"), [(-1, 2), (3, 0), (3, -1)])
def test_impossible_sizes_are_refused(size, ranks):
    for call in (cmu_hw5.partition_indices, cmu_hw5.clock_cycles):
        with pytest.raises(ValueError, match=str(min(size, ranks))):
            list(call(size, ranks))


@pytest.mark.parametrize(("microbatches", "stages"), [(0, 2), (1, 4), (7, 3), (3, 3)])
def test_a_wave_is_a_diagonal(microbatches, stages):
    waves = list(cmu_hw5.clock_cycles(microbatches, stages))
    ticks = range(microbatches + stages - 1 if microbatches else 0)
    assert waves == [[(t - s, s) for s in range(stages) if 0 <= t - s < microbatches] for t in ticks]


@pytest.mark.parametrize(("layer", "own"), [("fc_q", (256, 5)), ("fc_o", (128, 10))])
def test_ranks_of_a_replica_are_neighbours(layer, own):
    mpi = SimpleNamespace(Create_group=tuple, Get_group=lambda: SimpleNamespace(Incl=list))
    assert cse234_pa2.get_info(mpi, 5, 2, 4, layer, 256, 10) == (1, 2, (4, 5), (1, 3, 5, 7), *own)


def test_a_replica_shares_its_samples():
    x = np.arange(16).reshape(8, 2)
    for rank in range(8):
        for part in cse234_pa2.split_data(x, x, 2, 4, rank):
            assert (part == x[rank // 2 * 2 : rank // 2 * 2 + 2]).all()
