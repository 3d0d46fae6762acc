"""Layers cut by hand compute what whole ones do, and some rank waits at any time."""

import pytest
import torch
from torch.nn import functional as F

from shardlab.launch import RankError, run
from shardlab.ranks.observe import ledger
from shardlab.ranks.tensor_parallel import by_hand


def layers(width=12):
    random = torch.Generator().manual_seed(0)
    return [
        tuple(
            torch.randn(*shape, dtype=torch.float64, generator=random)
            for shape in ((width, 4), (4, width))
        )
    ] * 3


def x():
    return torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def recorded(group):
    with ledger.Ledger() as book:
        y = by_hand.forward(x(), layers(), group, book.span)
    return y, book.events


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parity("tensor_parallel", "layers cut by hand, with a combiner, are the whole ones")
def test_pieces_and_a_combiner_compute_the_whole_and_wait_for_each_other(size):
    whole = x()
    for up, down in layers():
        whole = whole + F.linear(F.gelu(F.linear(whole, up)), down)
    seen = run(recorded, world_size=size)
    for y, _ in seen:
        torch.testing.assert_close(y, whole, rtol=0, atol=1e-12)
    *workers, combiner = [
        [event for event in events if event.kind == "compute"] for _, events in seen
    ]
    assert [event.op for event in combiner] == ["combine"] * 3
    for mine in workers:
        assert [event.op for event in mine] == ["piece"] * 3
        for piece, combine, following in zip(mine, combiner, [*mine[1:], None], strict=True):
            assert piece.end <= combine.start
            assert following is None or combine.end <= following.start
    sent = [sum(event.nbytes for event in events if event.op == "send") for _, events in seen]
    assert sent == [3 * x().nbytes] * (size - 1) + [3 * (size - 1) * x().nbytes]


def test_widths_that_workers_cannot_share_are_refused():
    with pytest.raises(
        RankError,
        match=r"2 ranks beside the last do not share layers of width \[7\]; use a divisor",
    ):
        run(lambda group: by_hand.forward(x(), layers(7), group), world_size=3)
    with pytest.raises(RankError, match="0 ranks beside the last"):
        run(lambda group: by_hand.forward(x(), layers(), group), world_size=1)
