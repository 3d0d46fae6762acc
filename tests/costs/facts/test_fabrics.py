"""A fabric is as good as a point until its cables are fewer than the cards, and slows only what passes a spine."""

from dataclasses import replace

import pytest

from shardlab.costs.collectives import fabric as formulas
from shardlab.costs.facts import fabrics, hops, nodes
from shardlab.costs.facts.fabrics import Fabric
from shardlab.costs.step import axes
from shardlab.costs.traces import replay, traffic
from shardlab.costs.traces.writing import Writer
from shardlab.costs.units import GB
from shardlab.sharding.layout import Layout

POINT = nodes.cluster("DGX H100", 8)
FABRIC = Fabric(name="", pod=4, oversubscription=4, source="")
NARROW = replace(POINT, fabric=FABRIC)


def test_a_message_inside_a_pod_passes_no_spine():
    assert NARROW.path(0, 8) == POINT.path(0, 8)
    assert NARROW.path(0, 1) == POINT.path(0, 1)
    through = [hop.name for hop in NARROW.path(0, 4 * 8) if "spines" in hop.name]
    assert through == ["pod 0 leaf → spines", "spines → pod 1 leaf"]


def test_with_rails_another_card_is_behind_a_spine_even_in_the_same_pod():
    railed = replace(POINT, fabric=replace(FABRIC, rails=True))
    assert railed.path(0, 8) == POINT.path(0, 8)
    assert [hop.name for hop in railed.path(0, 9) if "spines" in hop.name] == [
        "pod 0 leaf of NIC 0 → spines",
        "spines → pod 0 leaf of NIC 1",
    ]


def test_one_message_has_the_cables_to_itself():
    assert hops.bandwidth(NARROW.path(0, 32)) == hops.bandwidth(POINT.path(0, 32)) == pytest.approx(50 * GB)


def test_an_all_to_all_gets_what_the_formula_says():
    every = range(POINT.gpus)
    reached = traffic.pairs(NARROW, every).bandwidth
    # The share of bytes to other nodes, and of those the share to the other pod.
    leaving = 56 / 63
    crossing = formulas.crossing(8, 4, neighbours=False)
    card = formulas.card_rate(50 * GB, crossing, 4)
    assert reached == pytest.approx(card / leaving)
    assert traffic.pairs(POINT, every).bandwidth == pytest.approx(50 * GB / leaving)


def test_full_bisection_is_as_good_as_a_point():
    every = range(POINT.gpus)
    full = replace(POINT, fabric=replace(FABRIC, oversubscription=1))
    assert traffic.pairs(full, every).bandwidth == traffic.pairs(POINT, every).bandwidth
    assert traffic.rings(NARROW, every).bandwidth == traffic.rings(POINT, every).bandwidth


def test_collisions_are_an_assumption_that_takes_its_share():
    every = range(POINT.gpus)
    hashed = replace(POINT, fabric=replace(FABRIC, without_collisions=0.5))
    assert traffic.pairs(hashed, every).bandwidth == pytest.approx(traffic.pairs(NARROW, every).bandwidth / 2)


def test_a_replay_waits_at_the_spines():
    group = tuple(range(POINT.gpus))
    events = []
    for rank in group:
        writer = Writer(rank)
        writer.wait([writer.collective("all_to_all", 1_000_000_000, group)])
        events += writer.events
    point, narrow = (replay.replay(events, cluster).seconds for cluster in (POINT, NARROW))
    assert narrow / point == pytest.approx(4 * formulas.crossing(8, 4, neighbours=False), rel=0.1)


def test_stages_in_other_pods_share_the_cables_and_neighbours_hardly_do():
    layout = Layout(tp=8, dp=4, pp=2)
    point, narrow = (axes.links(cluster, layout) for cluster in (POINT, NARROW))
    assert narrow["tp"] == point["tp"]
    assert narrow["replicas"].bandwidth == point["replicas"].bandwidth  # within a pod
    assert narrow["pp"].bandwidth == pytest.approx(point["pp"].bandwidth / 4)
    wide = Layout(dp=64)
    assert axes.links(NARROW, wide)["replicas"].bandwidth == axes.links(POINT, wide)["replicas"].bandwidth


def test_the_cluster_of_llama_3_has_a_seventh_between_its_pods():
    assert 8 * fabrics.LLAMA_3.pod == 3072
    assert fabrics.LLAMA_3.narrowing == 7


def test_fewer_cables_down_than_up_are_refused():
    with pytest.raises(ValueError, match="must be at least 1"):
        replace(FABRIC, oversubscription=0.5)
