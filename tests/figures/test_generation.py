"""The figure of a trainer and a generator has both lanes above where the GPU-seconds go."""

import pytest

from shardlab.figures import generation as figures
from tests.figures.drawn import data, lacks

SPLIT = {"in turn": dict.fromkeys(figures.PARTS, 2000.0), "1/4 apart": {"generate": 500.0, "train": 1000.0}}


def test_lanes_share_their_steps_and_the_split_stands_below_in_shares():
    writing = [(0, 1.0), (0.3, 0.5), (0.4, 0.0)]
    figure = figures.lanes(writing, [(0.5, 0.8)], SPLIT, step="10 s", alt="Three steps.")
    assert lacks(figure) == []
    found = data(figure)
    assert list(found["slots that write"].y) == [100, 50, 0]
    assert (found["trainer busy"].base[0], found["trainer busy"].x[0]) == pytest.approx((0.5, 0.3))
    assert "10 s" in figure.layout.xaxis.title.text
    assert list(found["generate"].x) == [20, 5]
    assert list(found["wait for the other"].x) == [20, 0]
    assert figure.layout.yaxis3.domain[1] < figure.layout.yaxis2.domain[0]
