"""The figure of ZeRO draws memory at each stage, and the time of a step below it."""

from shardlab.figures import memory
from shardlab.figures import zero as figures
from tests.figures.drawn import alike, data, lacks

HELD = {f"stage {stage}": {"parameters": 2e9, "gradients": 2e9 / (stage + 1)} for stage in range(4)}
TIMES = {stage: {"computing": 3.0, "waiting": 0.5, "update": 0.1} for stage in HELD}


def test_the_chosen_stage_is_drawn_stronger_and_time_stands_below_memory():
    figure = figures.memory_and_time(HELD, TIMES, "stage 2", 80e9)
    assert lacks(figure) == []
    found = data(figure)
    assert {found[part].legend for part in TIMES["stage 0"]} == {"legend2"}  # beside its chart
    assert alike(figure.to_dict()) == []
    assert list(found["parameters"].marker.opacity) == [figures.FADED, figures.FADED, 1, figures.FADED]
    assert list(found["waiting"].x) == [0.5] * 4
    assert found["waiting"].xaxis == "x2"
    assert figure.layout.yaxis2.domain[1] < figure.layout.yaxis.domain[0]
    assert figure.layout.xaxis.range[1] > 80
    assert set(figures.TIMES) == set(TIMES["stage 0"])
    assert found["capacity"].line.color == memory.style.COLOR["limit"]
