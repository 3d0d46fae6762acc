"""The figures of ZeRO draw every rank's blocks in their places, and bytes beside what was counted."""

import pytest

from shardlab.figures import memory, style
from shardlab.figures import zero as figures
from tests.figures.drawn import data, lacks

PIECES = [{"parameters": (0, 1), "gradients": (0, 1), "optimizer": (rank / 2, (rank + 1) / 2)} for rank in range(2)]
HELD = {f"stage {stage}": {"parameters": 2e9, "gradients": 2e9 / (stage + 1)} for stage in range(4)}
TIMES = {stage: {"computing": 3.0, "waiting": 0.5, "update": 0.1} for stage in HELD}
SENT = {"stage 0": {"average gradients": 4e9}, "stage 1": {"cut gradients": 2e9, "gather after the step": 2e9}}


def every_figure():
    return {
        "redundancy": figures.redundancy({"stage 1": PIECES}),
        "traffic": figures.traffic(SENT),
        "memory_and_time": figures.memory_and_time(HELD, TIMES, "stage 2", 80e9),
    }


@pytest.mark.parametrize("name", every_figure())
def test_every_figure_says_what_its_axes_are_and_what_it_shows(name):
    figure = every_figure()[name]
    layout = figure.layout
    assert lacks(figure) == []
    assert layout.legend.orientation == "h"


def test_every_rank_has_its_blocks_in_their_places():
    found = data(figures.redundancy({"stage 1": PIECES, "stage 0": PIECES[:1] * 2}))
    areas = {part: [y for y in found[part].y if y is not None] for part in figures.STATES}
    assert len(areas["optimizer"]) == 5 * 4  # corners of a rank's block, for two ranks at two stages
    assert (areas["optimizer"][0], areas["optimizer"][2]) == (0, -0.5)  # the first rank's half is at the top
    assert (areas["optimizer"][5], areas["optimizer"][7]) == (-0.5, -1)
    assert (areas["parameters"][5], areas["parameters"][7]) == (0, -1)
    left = [x for x in found["optimizer"].x if x is not None]
    assert 0 < min(left[:5]) < max(left[:5]) < 1 < min(left[5:10])
    assert [found[part].fillcolor for part in figures.STATES] == [style.COLOR[part] for part in figures.STATES]


def test_traffic_is_stacked_in_its_unit_with_counts_beside():
    found = data(figures.traffic(SENT, {"stage 1": 4e9}))
    assert list(found["average gradients"].x) == [4, 0]
    assert list(found["gather after the step"].x) == [0, 2]
    assert (list(found["counted"].x), list(found["counted"].y)) == ([4], ["stage 1"])
    assert "GB" in figures.traffic(SENT).layout.xaxis.title.text
    assert "kB" in figures.traffic({"a": {"cut gradients": 3e3}}).layout.xaxis.title.text


def test_the_chosen_stage_is_drawn_stronger_and_time_stands_below_memory():
    figure = figures.memory_and_time(HELD, TIMES, "stage 2", 80e9)
    found = data(figure)
    assert list(found["parameters"].marker.opacity) == [figures.FADED, figures.FADED, 1, figures.FADED]
    assert list(found["waiting"].x) == [0.5] * 4
    assert found["waiting"].xaxis == "x2"
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]
    assert figure.layout.xaxis.range[1] > 80
    assert figure.layout.xaxis2.range[1] > 3.6
    assert set(figures.TIMES) == set(TIMES["stage 0"])
    assert found["capacity"].line.color == memory.style.COLOR["limit"]
