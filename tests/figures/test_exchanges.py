"""The figure of a step shows whose numbers each piece holds, what has just arrived, and every move."""

import pytest

from shardlab import exchanges
from shardlab.figures import exchanges as figures
from shardlab.figures import style

RING = exchanges.ring_all_reduce(4)
HELD = exchanges.contents(RING, exchanges.everyones(RING))
ALL = [(0, 1, 2, 3)] * 4


def cells(figure):
    """(rank, piece) -> what is written there, the colour of the cell, the width of its frame."""
    bars = figure.data[0]
    looks = zip(bars.text, bars.marker.color, bars.marker.line.width, strict=True)
    return {(rank, piece): look for rank, (piece, _), look in zip(bars.x, bars.customdata, looks, strict=True)}


def test_every_cell_tells_whose_numbers_it_holds():
    found = cells(figures.step(HELD[1], ALL, RING.steps[0]))
    assert len(found) == 16
    assert found[1, 3][0] == "0, 1"
    assert found[0, 0][0] == "0"
    assert found[1, 3][1] != found[0, 0][1]  # the darker, the more
    assert style.GREEN not in {color for _, color, _ in found.values()}


def test_what_has_just_arrived_has_a_frame():
    found = cells(figures.step(HELD[1], ALL, RING.steps[0]))
    framed = {place for place, (_, _, width) in found.items() if width > 1}
    assert framed == {(move.to, move.pieces[0]) for move in RING.steps[0]} == {(1, 3), (2, 0), (3, 1), (0, 2)}


def test_what_is_finished_is_green():
    assert {color for _, color, _ in cells(figures.step(HELD[-1], ALL)).values()} == {style.GREEN}
    half = cells(figures.step(HELD[3], ALL))
    assert [place for place, (_, color, _) in half.items() if color == style.GREEN] == [(r, r) for r in range(4)]


@pytest.mark.parametrize("make", exchanges.ALL_REDUCES.values())
def test_there_is_an_arrow_for_each_move(make):
    plan = make(6)
    for step, held in zip(plan.steps, exchanges.contents(plan, exchanges.everyones(plan))[1:], strict=True):
        layout = figures.step(held, [tuple(range(6))] * plan.num_pieces, step).layout
        assert len(layout.annotations) == len(layout.shapes) == len(step)
        ends = {(line.y0, min(line.x0, line.x1), max(line.x0, line.x1)) for line in layout.shapes}
        assert len(ends) == len(step), "no arrow hides another"
        for move, head in zip(step, layout.annotations, strict=True):
            assert abs(head.x - move.to) < 0.5
            assert 0 < head.y < 1


def test_a_buffer_is_as_high_for_any_number_of_pieces():
    for plan in (RING, exchanges.naive_all_reduce(4)):
        bars = figures.step(exchanges.everyones(plan), ALL[: plan.num_pieces]).data[0]
        assert sum(bars.y) == pytest.approx(4 * 0.94)
        assert max(base + height for base, height in zip(bars.base, bars.y, strict=True)) <= 1


@pytest.mark.parametrize(
    ("cell", "words"),
    [((), ""), ((3,), "3"), ((0, 1), "0, 1"), ((0, 1, 2), "0-2"), ((0, 1, 2, 5, 7), "0-2, 5, 7"), ((1, 1), "1, 1")],
)
def test_ranks_in_a_row_are_a_range(cell, words):
    assert figures.named(cell) == words


def test_many_ranks_leave_short_lines():
    plan = exchanges.halving_doubling_all_reduce(8)
    held = exchanges.contents(plan, exchanges.everyones(plan))[2]
    texts = [text for text, _, _ in cells(figures.step(held, [tuple(range(8))] * 8)).values()]
    assert "0,2<br>4,6" in texts
    assert max(len(line) for text in texts for line in text.split("<br>")) <= 4
