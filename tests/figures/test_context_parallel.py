"""The figures of context parallelism draw every tile once, in its rank's look, and the work of each rank to scale."""

import pytest

from shardlab.costs import context_parallel as costs
from shardlab.figures import context_parallel as figures
from shardlab.figures import memory, style
from tests.figures.drawn import data, lacks

WORK = costs.turns(16, 4, "contiguous")
HELD = {"cp = 8": {"parameters": 2e9, "activations": 30e9, "buffers": 3e9}}
TIMES = {"cp = 8": {"attention": 2e-3, "messages, hidden": 1e-3, "messages, exposed": 0.5e-3}}


def tiles(figure):
    return [trace for trace in figure.data if trace.type == "scatter" and trace.fill == "toself"]


def above_time():
    return memory.above_time(HELD, TIMES, figures.TIMES, 80e9, title="one layer's forward (ms)", alt="what it shows")


def every_figure():
    return {
        "ring": figures.ring(WORK, 16, 1),
        "memory above time": above_time(),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    assert lacks(every_figure()[name]) == []


def test_every_tile_is_drawn_once_and_in_the_look_of_its_rank():
    areas = tiles(figures.ring(WORK, 16))
    assert sum(sum(x is None for x in area.x) for area in areas) == 10  # of 16, those a query sees
    assert [area.name for area in areas if area.showlegend] == [f"rank {rank}" for rank in range(4)]
    for rank, turns in enumerate(WORK):
        mine = [area for area in areas if area.name == f"rank {rank}"]
        assert len(mine) == sum(map(bool, turns))
        assert {area.fillcolor for area in mine} == {style.RANKS[rank]}
    (first,) = (area for area in areas if area.name == "rank 0")
    assert (first.x[0], first.x[1], first.y[0], first.y[2]) == (0, 4, 0, 4)


def test_the_present_turn_is_drawn_strongest():
    areas = [area for area in tiles(figures.ring(WORK, 16, 1)) if area.name == "rank 3"]
    assert [area.opacity for area in areas] == [figures.FADED, 1.0, figures.CLEAR, figures.CLEAR]
    assert {area.opacity for area in tiles(figures.ring(WORK, 16))} == {1.0}


def test_bars_and_waiting_together_are_as_long_for_every_rank():
    bars = [trace for trace in figures.ring(WORK, 16, 1).data if trace.type == "bar"]
    for rank in range(4):
        mine = [bar for bar in bars if bar.y[0] == f"rank {rank}"]
        assert sum(bar.x[0] for bar in mine) == 3 * 16 + 10  # half of the tile on the diagonal
        assert sum(bar.x[0] for bar in mine if bar.name == "waits") == (3 - rank) * 16


def test_memory_stands_above_time_in_its_unit():
    figure = above_time()
    found = data(figure)
    assert list(found["activations"].x) == pytest.approx([30])
    assert list(found["attention"].x) == pytest.approx([2])
    assert found["attention"].xaxis == "x2"
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]
    assert set(figures.TIMES) == set(TIMES["cp = 8"])
    assert found["capacity"].line.color == style.COLOR["limit"]
