"""Fused tensors are combined as single ones are, in as few buffers as fit."""

import pytest
import torch

from shardlab import exchanges
from shardlab.launch import run
from shardlab.ranks.collectives import fusion
from shardlab.ranks.observe import ledger

SHAPES = [(3,), (2, 5), (), (0,), (4, 1), (7,)]


def tensors(rank):
    """Make tensors of many shapes and dtypes, one of them transposed."""
    random = torch.Generator().manual_seed(rank)
    found = [torch.randint(100, shape, generator=random).to(torch.float64) for shape in SHAPES]
    return [*found, torch.randint(9, (3, 2), generator=random).t(), torch.ones(2, dtype=torch.bfloat16) * rank]


def test_what_fits_travels_together():
    a, b, c, d = (torch.zeros(count, dtype=torch.float64) for count in (2, 4, 1, 9))
    whole = torch.zeros(3, dtype=torch.int64)
    assert fusion.fuse([a, b, c, d], 24) == [[0, 2], [1], [3]]
    assert fusion.fuse([a, whole, b], 1000) == [[0, 2], [1]]
    assert fusion.fuse([a, b], 0) == [[0], [1]]
    assert fusion.fuse([], 10) == []
    with pytest.raises(ValueError, match="fusion_bytes=-1 is negative; use 0 for no fusion"):
        fusion.fuse([a], -1)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parity("collectives", "fused or one by one, all-reduced tensors are the sums")
def test_fused_or_not_the_result_is_the_sum(world_size):
    def reduce_all(group):
        before = [x.clone() for x in tensors(group.rank())]
        mine = tensors(group.rank())
        fused = fusion.all_reduce_fused(mine, group)
        apart = fusion.all_reduce_fused(mine, group, exchanges.halving_doubling_all_reduce, fusion_bytes=0)
        assert all(torch.equal(x, y) for x, y in zip(mine, before, strict=True))
        return fused, apart

    expected = [sum(each) for each in zip(*map(tensors, range(world_size)), strict=True)]
    for results in run(reduce_all, world_size=world_size):
        for result in results:
            assert [(x.shape, x.dtype) for x in result] == [(x.shape, x.dtype) for x in expected]
            assert all(torch.equal(x, y) for x, y in zip(result, expected, strict=True))


def test_fused_tensors_share_their_messages():
    def count(group, fusion_bytes):
        with ledger.Ledger() as book:
            fusion.all_reduce_fused([torch.ones(10)] * 5, group, fusion_bytes=fusion_bytes)
        return sum(event.op == "send" for event in book.events)

    alone, together, rest = (run(count, size, world_size=2)[0] for size in (0, 1000, 80))
    assert (alone, together, rest) == (5 * 3, 3, 3 * 3)  # a check and two steps of a ring each
