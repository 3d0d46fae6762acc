from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs import collectives, hardware
from shardlab.costs.units import GB, MB

LINK = hardware.link("NVLink 4")
ALL = [
    collectives.ring_all_reduce,
    collectives.tree_all_reduce,
    collectives.reduce_scatter,
    collectives.all_gather,
    collectives.broadcast,
    collectives.parameter_server,
]


@pytest.mark.parametrize("collective", ALL)
def test_one_rank_has_nobody_to_talk_to(collective):
    cost = collective(1e9, 1)
    assert (cost.steps, cost.serial, cost.busiest_link, cost.seconds(LINK)) == (0, 0, 0, 0)


@given(st.integers(2, 5000), st.floats(1, 1e12))
def test_a_ring_meets_the_lower_bound(ranks, nbytes):
    """Patarasuk and Yuan 2009, theorem 1: 2(n-1)/n of the buffer must leave (and enter) some rank."""
    cost = collectives.ring_all_reduce(nbytes, ranks)
    assert cost.sent == cost.received == cost.serial == pytest.approx(2 * (ranks - 1) / ranks * nbytes)
    assert cost.steps == 2 * (ranks - 1)
    assert cost.busiest_link < 2 * nbytes


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_bus_bandwidth_is_the_rate_of_the_links(ranks):
    """nccl-tests: the factor 2(n-1)/n makes the result independent of n."""
    free = replace(LINK, latency=0.0)
    seconds = collectives.ring_all_reduce(1e9, ranks).seconds(free)
    assert collectives.bus_bandwidth(1e9, seconds, ranks) == pytest.approx(free.bandwidth)


def test_eight_a100s_reach_what_nccl_expects_of_them():
    """NCCL's tuning model caps the bus bandwidth of A100 servers at 235 GB/s (src/graph/tuning.cc, compCap80)."""
    expected = hardware.LINK_UTILISATION * hardware.link("NVLink 3").bandwidth
    assert expected == pytest.approx(235 * GB, rel=0.03)


@pytest.mark.parametrize(("ranks", "steps"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)])
def test_a_broadcast_doubles_its_readers_in_every_step(ranks, steps):
    have = 1
    for _ in range(steps - 1):
        have *= 2
    assert have < ranks <= 2 * have
    cost = collectives.broadcast(MB, ranks)
    assert (cost.steps, cost.serial, cost.sent, cost.received) == (steps, steps * MB, steps * MB, MB)


def test_the_server_carries_everything_and_the_ring_hardly_grows():
    server = [collectives.parameter_server(MB, n).busiest_link for n in (2, 4, 8, 64)]
    ring = [collectives.ring_all_reduce(MB, n).busiest_link for n in (2, 4, 8, 64)]
    assert server == [MB, 3 * MB, 7 * MB, 63 * MB]
    assert ring == [MB, 1.5 * MB, 1.75 * MB, 2 * 63 / 64 * MB]
    assert collectives.parameter_server(MB, 8).steps == 14


def two_trees(ranks):
    """The parent of each rank in two binary trees over ranks 0 to n-1; the second is the first, shifted by one."""

    def tree(low, count, parent):  # ranks low to low + count - 1; every second one, from `low` on, is a leaf
        if not count:
            return {}
        left = 2 ** (count.bit_length() - 1) - 1
        root = low + left
        return {root: parent, **tree(low, left, root), **tree(root + 1, count - left - 1, root)}

    first = tree(0, ranks, None)
    shifted = {(rank + 1) % ranks: None if above is None else (above + 1) % ranks for rank, above in first.items()}
    return first, shifted


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 7, 8, 64, 100])
def test_the_trees_carry_what_is_counted_on_two_real_ones(ranks):
    """Half of the buffer goes up and down each edge of each tree."""
    cost, sent, heights = collectives.tree_all_reduce(MB, ranks), dict.fromkeys(range(ranks), 0.0), []
    for tree in two_trees(ranks):
        for rank, parent in tree.items():
            depth, above = 0, parent
            while above is not None:
                depth, above = depth + 1, tree[above]
            heights.append(depth)
            if parent is not None:
                sent[rank] += MB / 2  # up
                sent[parent] += MB / 2  # down
    assert max(sent.values()) <= cost.sent == cost.received == cost.serial == 2 * MB
    assert ranks < 5 or max(sent.values()) == cost.sent
    assert 2 * max(heights) <= cost.steps


@given(st.integers(1, 3000), st.floats(0, 1e11), st.sampled_from(sorted(hardware.LINKS)))
def test_an_all_reduce_is_never_slower_than_the_ring(ranks, nbytes, name):
    link = hardware.link(name)
    seconds = collectives.all_reduce_seconds(nbytes, ranks, link)
    ring = collectives.ring_all_reduce(nbytes, ranks)
    assert seconds <= ring.seconds(link)
    assert seconds >= ring.serial / link.bandwidth  # the lower bound holds for trees too
    if ranks <= 3:
        assert seconds == ring.seconds(link)


def test_long_messages_take_the_ring_and_short_ones_on_many_ranks_the_tree():
    one = replace(LINK, latency=1e-3, bandwidth=1e6)
    assert collectives.all_reduce_seconds(1e9, 64, one) == collectives.ring_all_reduce(1e9, 64).seconds(one)
    assert collectives.all_reduce_seconds(1e3, 64, one) == pytest.approx(12 * 1e-3 + 2e-3)
    unlike = replace(one, longest_latency=2e-3)  # a tree waits for the slowest hop of each level
    assert collectives.all_reduce_seconds(1e3, 64, unlike) == pytest.approx(24 * 1e-3 + 2e-3)


def test_a_latency_for_each_step_and_a_bandwidth_for_each_byte():
    link = replace(LINK, latency=1e-3, bandwidth=1e6)
    assert collectives.ring_all_reduce(4e6, 4).seconds(link) == pytest.approx(6 * 1e-3 + 6.0)


def test_a_ring_through_servers_uses_every_network_card():
    network = hardware.link("InfiniBand NDR")

    def through(gpus, cards):
        return collectives.ring_through_servers(LINK, network, gpus=gpus, cards=cards)

    assert through(8, 8).bandwidth == 8 * network.bandwidth < LINK.bandwidth
    assert through(8, 1).bandwidth == network.bandwidth
    assert through(16, 16).bandwidth == LINK.bandwidth
    assert through(8, 8).latency == pytest.approx((7 * LINK.latency + network.latency) / 8)
    assert through(8, 8).slowest_hop == network.latency > LINK.slowest_hop == LINK.latency
    assert through(1, 1).slowest_hop == network.latency
    assert (through(1, 1).bandwidth, through(1, 1).latency) == (network.bandwidth, network.latency)


@pytest.mark.parametrize("collective", ALL)
def test_bad_input_is_refused(collective):
    for nbytes, ranks, message in [(1, 0, "at least 1"), (1, 2.5, "whole number"), (-1, 2, "at least 0")]:
        with pytest.raises(ValueError, match=message):
            collective(nbytes, ranks)


def test_bad_measurements_and_servers_are_refused():
    with pytest.raises(ValueError, match="measure longer"):
        collectives.bus_bandwidth(1, 0, 2)
    with pytest.raises(ValueError, match="at least 1 of each"):
        collectives.ring_through_servers(LINK, LINK, gpus=8, cards=0)
