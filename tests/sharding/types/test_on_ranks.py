"""What types say holds on real ranks: what each holds before and after a redistribution."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from shardlab.launch import run
from shardlab.plain.tensor_parallel import CopyToRanks, SumOverRanks
from shardlab.ranks.players.redistributed import redistributed
from shardlab.ranks.players.spread import spread
from shardlab.ranks.tensor_parallel.conjugates import GatherFromRanks, ScatterToRanks
from shardlab.ranks.tensor_parallel.sequence import GatherSequence, ScatterSequence
from shardlab.sharding.types import states
from shardlab.sharding.types.redistribution import redistribution

from .shardings import MESH

PAIRS = {  # function of the package -> its arguments, and the redistribution that it is
    CopyToRanks: ((), "I -> R"),
    SumOverRanks: ((), "P -> I"),
    GatherFromRanks: ((1,), "S(S) -> I"),
    ScatterToRanks: ((1,), "I -> S(S)"),
    GatherSequence: ((), "S(S) -> R"),
    ScatterSequence: ((), "P -> S(S)"),
}


def through(group, function, arguments, x, grad):
    """Send this rank's numbers through a function of the package, and its gradient back."""
    x = x[group.rank()].clone().requires_grad_()
    y = function.apply(x, *(group, *arguments))
    y.backward(grad[group.rank()])
    return y.detach(), x.grad


@pytest.mark.parametrize("function", PAIRS)
def test_a_function_of_the_package_does_to_each_rank_what_a_redistribution_does(function):
    """Forward and backward, also to numbers that no type describes."""
    arguments, arrow = PAIRS[function]
    change = redistribution("tp", arrow)
    x = torch.arange(36.0).view(3, 1, 6, 2)
    y = redistributed(x, 0, change, ("B", "S", "h"))
    grad = torch.arange(1.0, 1 + y.numel()).view(y.shape)
    back = redistributed(grad, 0, change.mirror, ("B", "S", "h"))
    for rank, (result, gradient) in enumerate(run(through, function, arguments, x, grad, world_size=3)):
        assert torch.equal(result, y[rank])
        assert torch.equal(gradient, back[rank])


TYPES = ["[B/dp, S/tp]", "[S, B/dp/tp]", "[B/tp, S]", "[B, S/dp] R@tp"]


def distributed(group, texts):
    """Give each text to DTensor as placements; return what this rank holds."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    kinds = {"Shard": Shard, "Replicate": Replicate}
    whole = torch.arange(32.0).view(4, 8)
    placed = [[eval(text, kinds) for text in states.placements(states.parse(each), MESH)] for each in texts]
    return [distribute_tensor(whole, mesh, each).to_local() for each in placed]


def test_a_rank_holds_what_dtensor_gives_it():
    whole = torch.arange(32.0).view(4, 8)
    expected = [spread(whole, states.parse(text), MESH).flatten(0, 1) for text in TYPES]
    for rank, held in enumerate(run(distributed, TYPES, world_size=4)):
        for mine, all_ranks in zip(held, expected, strict=True):
            assert torch.equal(mine, all_ranks[rank])
