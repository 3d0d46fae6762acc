"""The explorers of placement say what replays and the curve of the knee say."""

import re

import pytest

from shardlab.costs.facts import nodes
from shardlab.costs.traces import knee
from shardlab.explorers import placement as explorers
from tests.explorers.views import number

ORDERS, KNEES = explorers.orders(), explorers.knees()


@pytest.mark.parametrize("state", ORDERS.states()[::17], ids=str)
def test_an_order_is_compared_with_all_others(state):
    view = ORDERS.view(**state)
    times = {order: number(seconds) for order, seconds in view.table[1:]}
    assert set(times) == set(explorers.ORDERS)
    mine, best = times[state["order"]], min(times.values())
    assert view.table[0][0].endswith(f"replayed on 4 x {state['machine']}")
    if mine > 1.01 * best:
        ratio = re.search(r"([\d.]+) times as long", view.sentence)
        assert float(ratio[1]) == pytest.approx(mine / best, rel=0.02)
    elif mine < 1.002 * best:
        assert "no order is faster" in view.sentence


def test_tensor_parallelism_first_is_never_beaten_by_much():
    """Takeaway of the chapter: tensor parallelism inside the node, on a fast machine and on a slow one."""
    for machine in ("DGX H100", "PCIe box, 100 GbE"):
        for layout in explorers.LAYOUTS:
            view = ORDERS.view(layout=layout, order=next(iter(explorers.ORDERS)), machine=machine)
            seconds = {order: number(time) for order, time in view.table[1:]}
            assert min(seconds[o] for o in seconds if o.startswith("tp")) <= 1.03 * min(seconds.values())


@pytest.mark.parametrize("state", KNEES.states()[::10], ids=str)
def test_the_knee_is_where_the_curve_says(state):
    view = KNEES.view(**state)
    *seconds, limit = explorers.curve(**state)
    needed, has = re.search(r"<b>(.*?)b/s</b>.* has (.*?)b/s", view.sentence).groups()
    assert number(f"{has}B") == pytest.approx(8 * nodes.node(state["machine"]).network_bandwidth)
    found = knee.found(explorers.RATES, seconds, limit)
    assert number(f"{needed}B") == pytest.approx(8 * found, rel=0.01)
    assert next(each for rate, each in zip(explorers.RATES, seconds, strict=True) if rate >= found) <= 1.05 * limit
    assert len(view.figure.data[0].x) == len(explorers.RATES)


def test_the_knee_between_two_points():
    assert knee.found([1.0, 4.0], [1.15, 0.95], 1.0) == pytest.approx(2.0)  # half way between the logarithms
    assert knee.found([1.0, 4.0], [1.0, 1.0], 1.0) == 1.0
    assert knee.found([1.0, 4.0, 16.0, 64.0], [2.0, 1.0, 1.15, 0.95], 1.0) == pytest.approx(32.0)  # the last crossing
    assert knee.found([1e-300, 1e300], [1.15, 0.95], 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("rates", "seconds", "message"),
    [
        ([1.0, 2.0, 4.0], [4.0, 2.0, 1.0], r"seconds=1 at the last .*, 4 bytes/s, .* 1.05 times limit=0.5; add faster"),
        ([4.0, 1.0], [0.5, 0.4], r"rates=\[4.0, 1.0\] .* give rising rates"),
        ([1.0, 2.0], [0.5], "and the seconds at each"),
        ([], [], "must be points of a curve"),
    ],
)
def test_a_curve_without_a_knee_is_refused(rates, seconds, message):
    with pytest.raises(ValueError, match=message):
        knee.found(rates, seconds, 0.5)
