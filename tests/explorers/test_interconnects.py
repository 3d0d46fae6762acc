"""The explorers of interconnects say what wires and the formulas of the fabric say."""

import re

import pytest

from shardlab.costs.collectives import fabric
from shardlab.explorers import interconnects as explorers
from tests.explorers.views import number

BUSIEST, FABRICS = explorers.busiest(), explorers.fabrics()


@pytest.mark.parametrize("state", BUSIEST.states()[::9], ids=str)
def test_the_busiest_hop_is_the_one_that_is_busy_for_longest(state):
    view = BUSIEST.view(**state)
    busy = [number(seconds) for *_, seconds in view.table[1:]]
    told = number(re.search(r"<b>(.*?)</b>", view.sentence)[1])
    assert told == max(busy)
    for _, _, carries, rate, seconds in view.table[1:]:
        assert number(carries) / number(rate.removesuffix("/s")) == pytest.approx(number(seconds), rel=0.01)
    (bars,) = view.figure.data
    assert max(bars.x) == pytest.approx(1e3 * told, rel=0.01)


def test_the_wiring_decides_between_two_algorithms_of_equal_bytes():
    """Interconnects, the smallest run: seven times as long in a DGX-1V, and equal where all share a switch."""

    def least(machine, algorithm):
        sentence = BUSIEST.view(ranks=8, machine=machine, algorithm=algorithm).sentence
        return number(re.search(r"<b>(.*?)</b>", sentence)[1])

    assert least("DGX-1V", "ring") / least("DGX-1V", "halving-doubling") == pytest.approx(7.3, rel=0.01)
    assert least("DGX H100", "ring") == least("DGX H100", "halving-doubling")


@pytest.mark.parametrize("state", FABRICS.states()[::7], ids=str)
def test_the_fabric_leaves_what_the_formula_says(state):
    view = FABRICS.view(**state)
    share = fabric.crossing(state["nodes"], explorers.PODS[state["cabling"]], neighbours=False)
    told = re.search(r"<b>(.*?)/s</b>", view.sentence)[1]
    assert number(told) == pytest.approx(fabric.card_rate(50e9, share, state["oversubscription"]), rel=0.01)
    assert len(view.figure.data) == 2
    assert view.figure.layout.shapes[0].x0 == state["nodes"]


def test_a_ring_in_order_needs_few_cables_to_the_spines():
    """Takeaway of the section: one node of a pod sends across, so a pod of 32 could do with a 32nd."""
    view = FABRICS.view(oversubscription=7, nodes=256, cabling=next(iter(explorers.PODS)))
    assert "in order it reaches 50 GB/s" in view.sentence
    assert "<b>8.13 GB/s</b>" in view.sentence
