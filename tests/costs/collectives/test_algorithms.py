"""The formulas of collectives cost what plans move and what lower bounds and nccl-tests say."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import exchanges as plans
from shardlab.costs import collectives
from shardlab.costs.facts import hardware
from shardlab.costs.units import GB, MB

LINK = hardware.link("NVLink 4")
ALL = [
    *collectives.ALL_REDUCES.values(),
    collectives.two_tree_all_reduce,
    collectives.reduce_scatter,
    collectives.all_gather,
    collectives.all_to_all,
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


FORMULAS = {  # formula -> plan that follows it move by move
    **{collectives.ALL_REDUCES[name]: plan for name, plan in plans.ALL_REDUCES.items()},
    collectives.reduce_scatter: plans.ring_reduce_scatter,
    collectives.all_gather: plans.ring_all_gather,
}


def follow(plan, nbytes):
    """The cost of a plan, added up move by move, for pieces of equal size."""
    piece, sent, received, serial = nbytes / plan.num_pieces, {}, {}, 0.0
    for step in plan.steps:
        serial += max(len(move.pieces) for move in step) * piece
        for move in step:
            sent[move.source] = sent.get(move.source, 0.0) + len(move.pieces) * piece
            received[move.to] = received.get(move.to, 0.0) + len(move.pieces) * piece
    most = max(sent.values(), default=0.0), max(received.values(), default=0.0)
    return len(plan.steps), *(pytest.approx(x) for x in (serial, *most))


def figures(cost):
    return cost.steps, cost.serial, cost.sent, cost.received


@pytest.mark.parametrize("ranks", [*range(1, 18), 31, 33, 64, 100])
@pytest.mark.counted("collectives", "steps and bytes of each formula, move by move of its plan")
def test_the_formulas_are_what_the_plans_move(ranks):
    for formula, plan in FORMULAS.items():
        assert figures(formula(MB, ranks)) == follow(plan(ranks), MB), formula
    rounds, *nbytes = follow(plans.pairwise_all_to_all(ranks), 2 * MB)
    assert figures(collectives.all_to_all(MB, ranks)) == (int(ranks > 1), *nbytes)  # none waits for another
    assert rounds == ranks - 1


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_bus_bandwidth_is_the_rate_of_the_links(ranks):
    """nccl-tests: the factor makes the result independent of n, for algorithms that leave no link idle."""
    free = replace(LINK, latency=0.0)
    busy = {
        "all_reduce": collectives.ring_all_reduce,
        "reduce_scatter": collectives.reduce_scatter,
        "all_gather": collectives.all_gather,
        "all_to_all": collectives.all_to_all,
    }
    for op, formula in busy.items():
        seconds = formula(1e9, ranks).seconds(free)
        assert collectives.bus_bandwidth(1e9, seconds, ranks, op) == pytest.approx(free.bandwidth)
    assert collectives.bus_bandwidth(1e9, 0.5, ranks, "broadcast") == collectives.algorithm_bandwidth(1e9, 0.5) == 2e9


@pytest.mark.parametrize(
    ("nbytes", "seconds", "ranks", "algbw", "busbw"),
    [
        (4218900, 1011.4e-6, 4, 4.17, 6.26),  # https://gist.github.com/kwen2501/89c28b6d12045b45ccf7e33816af2713
        (4218900, 993.6e-6, 4, 4.25, 6.37),
        (1073741824, 9306.7e-6, 2, 115.37, 115.37),  # https://github.com/NVIDIA/nccl-tests/issues/194
    ],
)
def test_bandwidths_are_those_that_nccl_tests_prints(nbytes, seconds, ranks, algbw, busbw):
    assert round(collectives.algorithm_bandwidth(nbytes, seconds) / GB, 2) == algbw
    assert round(collectives.bus_bandwidth(nbytes, seconds, ranks) / GB, 2) == busbw


@pytest.mark.parametrize(("ranks", "steps"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (1024, 10)])
def test_trees_double_those_who_know_in_every_step(ranks, steps):
    have = 1
    for _ in range(steps - 1):
        have *= 2
    assert have < ranks <= 2 * have
    assert follow(plans.binomial_broadcast(ranks), MB) == (steps, steps * MB, steps * MB, MB)
    assert follow(plans.binomial_reduce(ranks), MB) == (steps, steps * MB, MB, steps * MB)


def test_the_server_carries_everything_and_the_ring_hardly_grows():
    server = [collectives.naive_all_reduce(MB, n).busiest_link for n in (2, 4, 8, 64)]
    ring = [collectives.ring_all_reduce(MB, n).busiest_link for n in (2, 4, 8, 64)]
    assert server == [MB, 3 * MB, 7 * MB, 63 * MB]
    assert ring == [MB, 1.5 * MB, 1.75 * MB, 2 * 63 / 64 * MB]
    assert collectives.naive_all_reduce(MB, 8).steps == 14


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
    cost, sent, heights = collectives.two_tree_all_reduce(MB, ranks), dict.fromkeys(range(ranks), 0.0), []
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


@pytest.mark.parametrize("collective", ALL)
def test_bad_input_is_refused(collective):
    for nbytes, ranks, message in [(1, 0, "at least 1"), (1, 2.5, "whole number"), (-1, 2, "at least 0")]:
        with pytest.raises(ValueError, match=message):
            collective(nbytes, ranks)


def test_bad_measurements_are_refused():
    with pytest.raises(ValueError, match="seconds=0 must be a finite number above 0"):
        collectives.bus_bandwidth(1, 0, 2)
    with pytest.raises(ValueError, match=r"no factor for 'gather'; known: all_reduce, reduce_scatter"):
        collectives.bus_bandwidth(1, 1, 2, "gather")
