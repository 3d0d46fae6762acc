"""The figures of expert parallelism draw every expert and every rank, to scale and with what is dropped."""

import pytest

from shardlab.figures import expert_parallel as figures
from shardlab.figures import memory, style
from tests.figures.drawn import data, lacks

HELD = {"ep = 8": {"parameters": 2e9, "gradients": 4e9, "optimizer": 3e9}}
TIMES = {"ep = 8": dict.fromkeys(figures.TIMES, 1e-3)}
LOAD = ([6, 4, 3, 1], [2, 0, 0, 0])


def above_time():
    return memory.above_time(HELD, TIMES, figures.TIMES, 80e9, title="one layer's forward (ms)", alt="what it shows")


def every_figure():
    return {
        "load": figures.load(*LOAD, 2),
        "memory above time": above_time(),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    assert lacks(every_figure()[name]) == []


def test_experts_and_ranks_carry_the_same_tokens():
    found = data(figures.load(*LOAD, 2))
    assert list(found["tokens that fit"].y) == [1.5, 1, 0.75, 0.25]  # of the even load, 4 tokens
    assert list(found["no slot left"].y) == [0.5, 0, 0, 0]
    assert list(found["computes"].x) == [1.25, 0.5]
    assert list(found["waits"].x) == [0, 0.75]
    assert found["computes"].xaxis == found["waits"].xaxis == "x2"
    assert set(found["even load"].y) == {1}


def test_memory_stands_above_time_in_its_unit():
    figure = above_time()
    found = data(figure)
    assert list(found["gradients"].x) == pytest.approx([4])
    assert list(found["routed experts"].x) == pytest.approx([1])
    assert found["attention"].xaxis == "x2"
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]
    assert found["capacity"].line.color == style.COLOR["limit"]
