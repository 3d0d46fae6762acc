"""Flows share hops max-min fairly: nobody gets more without taking from one that has less."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs.traces.sharing import Flow, Wires


def rates(capacities, *uses):
    wires, flows = Wires(capacities), [Flow(i, use, 100.0, 0.0) for i, use in enumerate(uses)]
    for flow in flows:
        wires.add(flow)
    wires.settle(0.0)
    return [flow.rate for flow in flows]


def test_one_flow_has_its_slowest_hop_to_itself():
    assert rates([10, 4], [(0, 1.0), (1, 1.0)]) == [4]
    assert rates([10, 4], [(0, 4.0), (1, 1.0)]) == [2.5]  # 4 bytes through hop 0 for each byte handed on


def test_what_one_flow_cannot_use_the_others_get():
    """Hop 0 (10) carries a and b; b also crosses hop 1 (2), with c: b and c get 1 each, a all that is left."""
    assert rates([10, 2], [(0, 1.0)], [(0, 1.0), (1, 1.0)], [(1, 1.0)]) == [9, 1, 1]


def test_a_flow_that_weighs_more_uses_more():
    """At the same rate both, one byte of a puts three on the hop."""
    assert rates([8], [(0, 3.0)], [(0, 1.0)]) == [2, 2]


def test_rates_change_when_flows_come_and_go():
    wires, a, b = Wires([10.0]), Flow(0, [(0, 1.0)], 100.0, 0.0), Flow(1, [(0, 1.0)], 20.0, 0.0)
    wires.add(a)
    assert wires.settle(0.0) == [a]
    assert a.end == 10
    wires.add(b)
    assert set(wires.settle(2.0)) == {a, b}  # 80 bytes of a are left
    assert (a.rate, a.left, a.end, b.end) == (5, 80, 18, 6)
    wires.remove(b)
    assert wires.settle(6.0) == [a]
    assert a.end == 12
    wires.remove(a)
    assert wires.settle(12.0) == []
    assert wires.rates[0] == [(0.0, 10.0), (12.0, 0.0)]  # the hop was full all the time


def test_flows_that_meet_nobody_are_left_alone():
    wires, a, b = Wires([1.0, 1.0]), Flow(0, [(0, 1.0)], 5.0, 0.0), Flow(1, [(1, 1.0)], 5.0, 0.0)
    wires.add(a)
    wires.settle(0.0)
    wires.add(b)
    assert wires.settle(1.0) == [b]
    assert (a.version, a.since) == (1, 0.0)


SHARES = st.sampled_from([0.125, 0.5, 1.0, 2.0])
USES = st.lists(st.tuples(st.integers(0, 5), SHARES), min_size=1, max_size=4, unique_by=lambda use: use[0])


@given(st.lists(st.floats(0.5, 100), min_size=6, max_size=6), st.lists(USES, min_size=1, max_size=8))
def test_nobody_could_get_more_without_taking_from_somebody_who_has_less(capacities, uses):
    """The definition of max-min fairness: every flow has a full hop on which nobody is faster; no hop is overfull."""
    found = rates(capacities, *uses)
    load, fastest = [0.0] * 6, [0.0] * 6
    for use, rate in zip(uses, found, strict=True):
        for hop, share in use:
            load[hop] += share * rate
            fastest[hop] = max(fastest[hop], rate)
    assert all(total <= capacity * (1 + 1e-9) for total, capacity in zip(load, capacities, strict=True))
    for use, rate in zip(uses, found, strict=True):
        assert any(load[h] == pytest.approx(capacities[h]) and rate >= fastest[h] * (1 - 1e-9) for h, _ in use)
