"""The explorers of placement say what replays and the curve of the knee say."""

import re
from pathlib import Path

import pytest

from shardlab.costs.facts import nodes
from shardlab.costs.traces import knee
from shardlab.costs.traces.replay import replay
from shardlab.explorers import placement as explorers
from shardlab.sharding.layout import AXES_3D, Layout
from tests.explorers.views import number

ROOT = Path(__file__).parents[2]

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


def test_the_answer_about_the_orders():
    """tp, dp, pp is the fastest order on all four networks, which have full bisection; who else may be, and where."""
    orders = list(explorers.ORDERS)
    for machine in explorers.CLUSTERS:
        for layout in explorers.LAYOUTS:
            seconds = [explorers._seconds(layout, order, machine) for order in orders]
            assert seconds[0] == pytest.approx(min(seconds), rel=0.001), (machine, layout)
    deep = "tp=2, dp=4, pp=4"
    first = [explorers._seconds(deep, order, "DGX H100") for order in ("tp · dp · pp", "dp · tp · pp")]
    assert first[0] == pytest.approx(first[1])
    box = {layout: explorers._seconds(layout, orders[0], "PCIe box, 100 GbE") for layout in explorers.LAYOUTS}
    assert min(box, key=box.get) == deep


def test_the_chapter_says_what_is_replayed(monkeypatch):
    """In its minute, in its picture, and about knees."""
    text = (ROOT / "book" / "placement.md").read_text()
    drawn = (ROOT / "book" / "images" / "placement_minute.svg").read_text()
    monkeypatch.setattr(explorers, "TOGETHER", 1)
    run = {"model": explorers.LARGE, "layout": explorers.LAYOUTS["tp=8, dp=4"], "microbatch": 8}
    for machine, said in (("DGX H100", ".2f"), ("PCIe box, 100 GbE", ".1f")):
        cluster = nodes.cluster(machine, 4)
        near, far = (
            replay(explorers._program(machine=machine, order=order, **run), cluster).seconds
            for order in (AXES_3D, ("dp", "tp", "pp"))
        )
        assert f"{far:{said}} s instead of {near:{said}}" in text
        if machine == "DGX H100":
            assert f">{near:.2f} s<" in drawn
            assert f">{far:.2f} s<" in drawn
    at = {}
    for machine in ("DGX H100", "HGX B200"):
        events = explorers._program(explorers.SMALL, Layout(dp=32), machine)
        at[machine] = f"{8e-12 * knee.knee(events, nodes.cluster(machine, 4)):.1f}"
    assert f"lies at {at['DGX H100']} Tb/s per server" in text
    assert f"it lies at {at['DGX H100']} Tb/s on the H100 and at {at['HGX B200']} on the B200" in text


@pytest.mark.parametrize("state", KNEES.states()[::10], ids=str)
def test_the_knee_is_where_the_curve_says(state):
    view = KNEES.view(**state)
    *seconds, limit = explorers.curve(**state)
    needed, has = re.search(r"<b>(.*?)b/s</b>.* has (.*?)b/s", view.sentence).groups()
    assert number(f"{has}B") == pytest.approx(8 * nodes.node(state["machine"]).network_bandwidth)
    found = number(f"{needed}B") / 8
    assert next(each for rate, each in zip(explorers.RATES, seconds, strict=True) if rate >= found) <= 1.05 * limit
    assert [each for rate, each in zip(explorers.RATES, seconds, strict=True) if rate < found][-1] > 1.05 * limit
    assert len(view.figure.data[0].x) == len(explorers.RATES)
