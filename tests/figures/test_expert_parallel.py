"""The figures of expert parallelism draw every expert and every rank, to scale and with what is dropped."""

import pytest

from shardlab.figures import expert_parallel as figures
from shardlab.figures import memory, style
from tests.figures.drawn import data, lacks

HELD = {"ep = 8": {"parameters": 2e9, "gradients": 4e9, "optimizer": 3e9}}
TIMES = {"ep = 8": dict.fromkeys(figures.TIMES, 1e-3)}
LOSSES = {"loss": [4, 2, 2, 1], "bias": [4, 3, 2, 2], "dense": [5, 3, 3, 3]}
LOADS = {"loss": [0.75, 0.25], "bias": [0.5, 0.5]}
LOAD = ([6, 4, 3, 1], [2, 0, 0, 0])


def above_time():
    return memory.above_time(HELD, TIMES, figures.TIMES, 80e9, title="one layer's forward (ms)", alt="what it shows")


def every_figure():
    return {
        "load": figures.load(*LOAD, 2),
        "copies": figures.copies([8, 16], {"flat": [0, 4], "nodes": [0, 1]}),
        "learning": figures.learning(LOSSES, LOADS, window=2),
        "memory above time": above_time(),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    assert lacks(every_figure()[name]) == []


def test_experts_and_ranks_carry_the_same_tokens():
    found = data(figures.load(*LOAD, 2))
    assert list(found["tokens that fit"].y) == LOAD[0]
    assert list(found["no slot left"].y) == LOAD[1]
    assert list(found["computes"].x) == [10, 4]
    assert list(found["waits"].x) == [0, 6]
    assert found["computes"].xaxis == found["waits"].xaxis == "x2"
    assert set(found["even load"].y) == {4.0}


def test_every_way_has_a_line_of_its_own():
    found = data(figures.copies([8, 16], {"flat": [0, 4], "nodes": [0, 1]}))
    assert list(found["flat"].y) == [0, 4]
    assert len({(line.line.color, line.line.dash) for line in found.values()}) == 2


def test_a_training_and_the_load_of_its_experts_share_a_colour():
    lines, bars = figures.learning(LOSSES, LOADS, window=2).data[:3], figures.learning(LOSSES, LOADS).data[3:]
    assert [list(each.y) for each in lines] == [[3, 1.5], [3.5, 2], [4, 3]]
    assert list(lines[0].x) == [1, 3]
    assert {bar.name: list(bar.y) for bar in bars} == {"loss": [75, 25], "bias": [50, 50]}
    assert [bar.marker.color for bar in bars] == [each.line.color for each in lines[:2]]
    assert {bar.xaxis for bar in bars} == {"x2"}


def test_memory_stands_above_time_in_its_unit():
    figure = above_time()
    found = data(figure)
    assert list(found["gradients"].x) == pytest.approx([4])
    assert list(found["routed experts"].x) == pytest.approx([1])
    assert found["attention"].xaxis == "x2"
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]
    assert found["capacity"].line.color == style.COLOR["limit"]
