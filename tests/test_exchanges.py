"""Plans, followed on paper: after the last step every rank holds what it should, whatever the number of ranks."""

from dataclasses import replace

import pytest

from shardlab import exchanges
from shardlab.exchanges import ADD, COPY, Move, Plan

RANKS = [*range(1, 18), 33, 64]
LEVELS = {f"two levels of {size}": size for size in (1, 2, 3, 4, 8)}


def all_reduces(n):
    plans = {name: make(n) for name, make in exchanges.ALL_REDUCES.items()}
    fitting = {name: size for name, size in LEVELS.items() if n % size == 0}
    return plans | {name: exchanges.hierarchical_all_reduce(n, size) for name, size in fitting.items()}


def every_plan(n):
    makes = [getattr(exchanges, name) for name in exchanges.__all__ if name.startswith(("binomial", "ring", "scatter"))]
    makes += [exchanges.halving_reduce_scatter, exchanges.doubling_all_gather, exchanges.pairwise_all_to_all]
    return [*all_reduces(n).values(), *(make(n) for make in makes)]


def after(plan, start):
    return exchanges.contents(plan, start)[-1]


def sums(plan):
    """What each rank holds at the end when all bring their own numbers."""
    return after(plan, exchanges.everyones(plan))


@pytest.mark.parametrize("n", RANKS)
def test_an_all_reduce_leaves_every_rank_once_in_every_piece(n):
    for name, plan in all_reduces(n).items():
        assert sums(plan) == [[tuple(range(n))] * plan.num_pieces] * n, name


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("make", [exchanges.ring_reduce_scatter, exchanges.halving_reduce_scatter])
def test_a_reduce_scatter_leaves_each_rank_its_own_sum(make, n):
    held = sums(make(n))
    assert [held[rank][rank] for rank in range(n)] == [tuple(range(n))] * n


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("make", [exchanges.ring_all_gather, exchanges.doubling_all_gather])
def test_an_all_gather_leaves_all_pieces_everywhere(make, n):
    assert after(make(n), exchanges.one_piece_each(make(n))) == [[(rank,) for rank in range(n)]] * n


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("make", [exchanges.binomial_broadcast, exchanges.scatter_all_gather_broadcast])
def test_a_broadcast_reaches_everybody(make, n):
    plan = make(n)
    assert after(plan, exchanges.only(plan, 0)) == [[(0,)] * plan.num_pieces] * n


@pytest.mark.parametrize("n", RANKS)
def test_a_reduce_leaves_the_sum_on_the_root(n):
    assert sums(exchanges.binomial_reduce(n))[0] == [tuple(range(n))]


@pytest.mark.parametrize("n", RANKS)
def test_an_all_to_all_transposes(n):
    here = [[(n * rank + to,) for to in range(n)] for rank in range(n)]
    own = [[here[rank][rank] if place == rank else () for place in range(n)] for rank in range(n)]
    held = after(exchanges.pairwise_all_to_all(n), [out + into for out, into in zip(here, own, strict=True)])
    assert [row[n:] for row in held] == [[here[source][rank] for source in range(n)] for rank in range(n)]


@pytest.mark.parametrize("n", RANKS)
def test_a_rank_sends_and_receives_at_most_one_message_in_a_step(n):
    for plan in every_plan(n):
        for step in plan.steps:
            assert step
            assert len({move.source for move in step}) == len({move.to for move in step}) == len(step), plan.name
            assert all(move.pieces and move.source != move.to for move in step)


# ---- a copy may land early -------------------------------------------------------------------------------------------


def knowing(plan, rank, number, until):
    """Who knows, before step `until`, that this rank has finished step `number`."""
    known = {rank}
    for step in plan.steps[number + 1 : until]:
        known |= {move.to for move in step if move.source in known}
    return known


def uses(plan, rank, piece, until):
    """(who has finished with it, in which step) of every earlier message from or into this piece of this rank."""
    for number, step in enumerate(plan.steps[:until]):
        yield from ((m.to, number) for m in step if m.source == rank and piece in m.pieces)
        yield from ((rank, number) for m in step if m.to == rank and piece in m.landing and m.action == ADD)


def too_early(plan):
    """Copies whose sender cannot know that the piece they overwrite is no longer needed."""
    return [
        (number, move, piece)
        for number, step in enumerate(plan.steps)
        for move in step
        if move.action == COPY
        for piece in move.landing
        for user, used in uses(plan, move.to, piece, number)
        if move.source not in knowing(plan, user, used, number)
    ]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 12])
def test_what_is_copied_comes_from_somebody_who_knows_that_its_place_is_free(n):
    """Ranks ask for copies ahead of time, and let them land in place."""
    for plan in every_plan(n):
        assert not too_early(plan), plan.name


def test_a_copy_that_could_land_too_early_is_seen():
    """Rank 2 overwrites what rank 0 may still be sending to rank 1."""
    first, second = Move(0, 1, range(1), ADD), Move(2, 0, range(1), COPY)
    hasty = Plan(name="hasty", num_ranks=3, num_pieces=1, steps=[[first], [second]])
    assert too_early(hasty) == [(1, second, 0)]


# ---- small things ----------------------------------------------------------------------------------------------------


def test_the_examples_in_the_docstrings():
    plan = Plan(name="any", num_ranks=2, num_pieces=3, steps=[])
    assert exchanges.everyones(plan) == [[(0,), (0,), (0,)], [(1,), (1,), (1,)]]
    assert exchanges.only(plan) == [[(0,), (0,), (0,)], [(), (), ()]]
    assert exchanges.one_piece_each(replace(plan, num_pieces=2)) == [[(0,), ()], [(), (1,)]]
    assert Move(0, 2, range(2, 3), COPY, shift=1).landing == range(3, 4)


def test_the_ring_is_the_textbooks():
    """Three ranks: piece 2 leaves rank 0, rank 1 adds to it, rank 2 owns it."""
    plan = exchanges.ring_all_reduce(3)
    assert exchanges.in_words(plan, 1) == [
        "step 1: send piece 0 to rank 2, add piece 2 of rank 0",
        "step 2: send piece 2 to rank 2, add piece 1 of rank 0",
        "step 3: send piece 1 to rank 2, copy piece 0 of rank 0",
        "step 4: send piece 0 to rank 2, copy piece 2 of rank 0",
    ]
    first = exchanges.contents(plan, exchanges.everyones(plan))[1]
    assert first[1] == [(1,), (1,), (0, 1)]


def test_words_name_ranges_and_idle_steps():
    words = exchanges.in_words(exchanges.halving_doubling_all_reduce(5), 0)
    assert words[0] == "step 1: send pieces 0 to 3 to rank 1"
    assert words[1:-1] == [f"step {number}: nothing" for number in range(2, 6)]
    assert words[-1] == "step 6: copy pieces 0 to 3 of rank 1"


def test_two_levels_cross_with_a_fraction_only():
    plan = exchanges.hierarchical_all_reduce(8, 4)
    crossing = [move for step in plan.steps for move in step if move.source // 4 != move.to // 4]
    assert {len(move.pieces) for move in crossing} == {1}
    assert len(crossing) == 8 * 2  # of 8 pieces, each rank sends two across


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exchanges.ring_all_reduce(0), "n=0 must be a whole number of at least 1"),
        (lambda: exchanges.naive_all_reduce(-1), "at least 1"),
        (lambda: exchanges.halving_doubling_all_reduce(0), "at least 1"),
        (lambda: exchanges.hierarchical_all_reduce(6, 4), "6 ranks do not split into groups of 4; use .* 1, 2, 3, 6"),
    ],
)
def test_bad_input_names_the_way_out(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- mistakes are seen -----------------------------------------------------------------------------------------------


def changed(plan, step, **fields):
    """The plan with the first move of a step changed."""
    steps = [list(moves) for moves in plan.steps]
    steps[step][0] = steps[step][0]._replace(**fields)
    return replace(plan, steps=steps)


@pytest.mark.parametrize("name", all_reduces(6))
def test_one_wrong_move_is_seen(name):
    plan = all_reduces(6)[name]
    for step, moves in enumerate(plan.steps):
        other = COPY if moves[0].action == ADD else ADD
        assert sums(changed(plan, step, action=other)) != sums(plan)
