"""The joined pieces of all ranks are the whole tensor, and a piece is a copy."""

import pytest
import torch

from shardlab.launch import run
from shardlab.ranks.tensor_parallel import shards
from shardlab.sharding.cuts import Cut

CUTS = {
    "rows": ((12, 3), 0, None),
    "columns": ((3, 12), 1, None),
    "padded rows": ((7, 2), 0, None),
    "padded columns": ((2, 7), 1, None),
    "whole": ((5,), None, None),
    "one piece for all": ((4, 2), 0, 1),
    "two pieces": ((4, 2), 0, 2),
}


def cut(name, size):
    shape, dim, count = CUTS[name]
    return Cut(shape=shape, ranks=size, dim=dim, pieces=1 if dim is None else count or size)


def whole(name):
    return torch.arange(1.0, 1 + torch.tensor(CUTS[name][0]).prod()).reshape(CUTS[name][0])


def there_and_back(group):
    seen = {}
    for name in CUTS:
        plan = cut(name, group.size())
        piece = shards.take(whole(name), plan, group.rank())
        seen[name] = piece, shards.join(piece, plan, group)
    return seen


@pytest.mark.parametrize("size", [2, 4])
def test_there_and_back(size):
    for rank, seen in enumerate(run(there_and_back, world_size=size)):
        for name, (piece, joined) in seen.items():
            plan = cut(name, size)
            assert tuple(piece.shape) == plan.local_shape
            assert torch.equal(joined, whole(name)), name
            assert piece.is_contiguous()
            if plan.dim is not None:
                held = plan.held(rank)
                expected = whole(name).index_select(plan.dim, torch.tensor(held, dtype=torch.int64))
                assert torch.equal(piece.narrow(plan.dim, 0, len(held)), expected)
                assert not piece.narrow(plan.dim, len(held), plan.size - len(held)).any(), (
                    "padding is not zero"
                )


def test_a_piece_is_a_copy_without_history():
    x = torch.ones(4, 2, requires_grad=True)
    piece = shards.take(x * 2, cut("two pieces", 2), 1)
    assert not piece.requires_grad
    piece += 1
    assert torch.equal(x, torch.ones(4, 2))
    assert piece.untyped_storage().nbytes() == 2 * 2 * 4


def test_another_shape_is_refused():
    with pytest.raises(
        ValueError, match=r"expected shape \(4, 2\), got \(3, 2\); pass the whole tensor"
    ):
        shards.take(torch.ones(3, 2), cut("two pieces", 2), 0)
