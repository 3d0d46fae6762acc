"""The explorers of placement say what replays and the curve of the knee say."""

import re
from pathlib import Path

import pytest

from shardlab.costs import step
from shardlab.costs.facts import models, nodes
from shardlab.costs.traces import knee
from shardlab.costs.traces.replay import replay
from shardlab.costs.training import Training
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
    assert view.table[0][0].endswith(f"replayed on 4 × {state['machine']}")
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
            laid = [explorers._seconds(layout, explorers._laid(layout, order), machine) for order in orders]
            assert laid == seconds  # axes of one rank make no difference, and are not replayed again
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
    near, far = (
        replay(explorers._program(machine="DGX H100", order=order, **run), nodes.cluster("DGX H100", 4)).seconds
        for order in (AXES_3D, ("dp", "tp", "pp"))
    )
    assert f"{far:.2f} s instead of {near:.2f}" in text
    assert f">{near:.2f} s<" in drawn
    assert f">{far:.2f} s<" in drawn
    events = explorers._program(explorers.SMALL, Layout(dp=32), "DGX H100")
    at = 8e-12 * knee.knee(events, nodes.cluster("DGX H100", 4))
    assert f"lies at {at:.1f} Tb/s per server" in text


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


def run_on(name, model, layout, **sizes):
    """A run as the page makes them, on four rented nodes."""
    spec = models.published(model).spec
    training = Training(spec=spec, layout=layout, sequence=4096, program=explorers.PROGRAM, **sizes)
    return step.Run(training=training, cluster=nodes.cluster(name, 4))


@pytest.mark.parametrize(
    ("node", "seconds"),
    [
        ("Azure ND96asr A100 v4", 1.470),
        ("AWS p4d.24xlarge", 1.502),
        ("GCP a2-highgpu-8g", 3.004),
        ("Azure ND96isr H100 v5", 0.635),
    ],
)
def test_the_step_on_rented_nodes(node, seconds):
    """Four times the network gains two percent right of the knee; the a2, with one card, waits."""
    run = run_on(node, "Llama 3 8B", Layout(tp=8, dp=4), microbatch=8)
    assert replay(step.trace(run), run.cluster).seconds == pytest.approx(seconds, abs=5e-4)


def test_a_quarter_of_the_all_reduces_beats_a_wire_four_times_as_fast():
    """At 0.1 Tb/s, where the network decides; in four passes, less of the sending hides."""

    def seconds(bits, batch, passes):
        sizes = {"microbatch": batch // passes, "num_microbatches": passes}
        run = run_on("DGX H100", "Llama 3.2 3B", Layout(dp=32), **sizes)
        return replay(step.trace(run), knee.at_rate(run.cluster, bits / 8)).seconds / batch

    one, wire = seconds(0.1e12, 1, 1), seconds(0.4e12, 1, 1)
    in_passes, together = seconds(0.1e12, 4, 4), seconds(0.1e12, 4, 1)
    assert together < min(wire, in_passes)
    assert max(wire, in_passes) < one
    assert [one, wire, together] == pytest.approx([1.369, 0.4350, 0.3946], rel=1e-3)
