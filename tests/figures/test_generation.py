"""The figure of a trainer and a generator has both lanes above where the GPU-seconds go."""

from shardlab.figures import generation as figures
from tests.figures.drawn import data, lacks

SPLIT = {"in turn": dict.fromkeys(figures.PARTS, 2000.0), "1/4 apart": {"generate": 500.0, "train": 1000.0}}


def test_lanes_share_their_seconds_and_the_split_stands_below():
    figure = figures.lanes([(0, 1.0), (3, 0.5), (4, 0.0)], [(5.0, 8.0)], SPLIT, alt="Three steps.")
    assert lacks(figure) == []
    found = data(figure)
    assert list(found["slots that write"].y) == [100, 50, 0]
    assert (found["trainer busy"].base[0], found["trainer busy"].x[0]) == (5, 3)
    assert figure.layout.xaxis.range[1] > 8
    assert list(found["generate"].x) == [2, 0.5]
    assert list(found["wait for the other"].x) == [2, 0]
    assert figure.layout.yaxis3.domain[1] < figure.layout.yaxis2.domain[0]
