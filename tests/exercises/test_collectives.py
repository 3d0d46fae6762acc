"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import pytest
import torch
import torch.distributed as dist

from shardlab import comm, exchanges, exercises, launch
from shardlab.exercises import checker
from shardlab.exercises.shared.steps import steps
from shardlab.ranks import collectives
from shardlab.ranks.observe import ledger

from . import server
from .grading import Chapter, Graded, Mistake
from .solutions import collectives as solutions

CHAPTER = Chapter("collectives", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


def test_the_library_passes_its_own_exercises():
    def unchecked(verb, plan):
        return lambda x, group: verb(x, group, plan=plan, check=False)

    for name, verb, plan in (
        ("collectives.ring_all_reduce", collectives.all_reduce, exchanges.ring_all_reduce),
        ("collectives.reduce_scatter", collectives.reduce_scatter, exchanges.ring_reduce_scatter),
    ):
        assert exercises.check(name, unchecked(verb, plan))


@pytest.mark.parametrize("ranks", [3, 4, 5])
def test_steps_are_those_of_the_plan(ranks):
    """Counted from what ranks record, for algorithms whose steps are known."""
    plans = [make(ranks) for make in exchanges.ALL_REDUCES.values()]

    def record(group):
        programs = []
        for plan in plans:
            with ledger.Ledger() as book:
                collectives.all_reduce(torch.ones(8), group, lambda _, plan=plan: plan, check=False)
            programs.append(book.trace)
        return programs

    by_rank = launch.run(record, world_size=ranks)
    for number, plan in enumerate(plans):
        assert steps([programs[number] for programs in by_rank]) == len(plan.steps), plan.name


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

TENSOR, ONCE = "every rank has rank 0's tensor", "no rank receives more than one tensor"
LOG, DOUBLING = "it takes ceil(log2(n)) steps", "it takes log2(n) steps"
SAME, MESSAGES = "the input stays what it was", "ranks send messages to one rank at a time"
ROWS, SHARE = "every rank has the sum of its own rows", "no rank sends more than (n-1)/n of its tensor"
SUM, PIECES = "every rank has the sum", "no rank sends more than 2(n-1) pieces of 1/n"
TURNS = "it takes 2(n-1) steps"


@mistake("broadcast", LOG, at="4 ranks, 2 numbers", says="at most 2 steps (ceil(log2(n)))")
def sends_to_one_after_the_other(x, group):
    if group.rank():
        return comm.receive(x, group, source=0)
    for other in range(1, group.size()):
        comm.send(x, group, to=other)
    return x.clone()


@mistake("broadcast", LOG, at="4 ranks, 2 numbers", says="3 steps")
def passes_on_in_a_chain(x, group):
    y = comm.receive(x, group, source=group.rank() - 1) if group.rank() else x.clone()
    if group.rank() < group.size() - 1:
        comm.send(y, group, to=group.rank() + 1)
    return y


@mistake("broadcast", MESSAGES, LOG, ONCE, at="1 rank, 2 numbers", says="broadcast on rank 0")
def asks_the_library(x, group):
    return comm.broadcast(x, group)


CHAPTER.changes({
    "overwrites its input": Mistake("broadcast", {SAME}, at="2 ranks, 2 numbers", says="x has changed on rank 1",
        old="return y", new="return x.copy_(y)"),
    "works for powers of two only": Mistake("broadcast", {checker.RUNS}, at="3 ranks, a matrix", says="Deadlock",
        old=" and rank + distance < n:\n            comm.send(y, group, to=rank + distance)",
        new=":\n            comm.send(y, group, to=(rank + distance) % n)"),
})


@mistake("broadcast", LOG, ONCE, at="2 ranks, 2 numbers", says="2 steps")
def sends_everything_twice(x, group):
    solutions.my_broadcast(x, group)
    return solutions.my_broadcast(x, group)


@mistake("reduce_scatter", SHARE, at="2 ranks, 2 rows", says="16 bytes sent")
def reduces_everything_and_cuts(x, group):
    total = x.clone()
    for step in range(1, group.size()):
        n, rank = group.size(), group.rank()
        total += comm.exchange(x, group, to=(rank + step) % n, source=(rank - step) % n)
    return total.chunk(group.size())[group.rank()]


CHAPTER.changes({
    "keeps its neighbours rows": Mistake("reduce_scatter", {ROWS}, at="2 ranks, 2 rows", says="on rank 0",
        old="range(1, n)", new="range(n - 1)"),
})


@mistake("reduce_scatter", ROWS, at="4 ranks in groups of 2", says="on rank 2")
def uses_the_rank_in_the_world(x, group):
    return solutions.my_reduce_scatter(x, group) * (1 if dist.get_rank() < 2 or group.size() > 2 else 2)


@mistake("ring_all_reduce", PIECES, at="3 ranks, 3 numbers", says="48 bytes sent")
def sends_the_whole_tensor_at_each_hop(x, group):
    """The tutorial's ring: it passes everything on, n - 1 times."""
    rank, n, total, passing = group.rank(), group.size(), x.clone(), x
    for _ in range(n - 1):
        passing = comm.exchange(passing, group, to=(rank + 1) % n, source=(rank - 1) % n)
        total += passing
    return total


@mistake("ring_all_reduce", checker.RUNS, at="2 ranks, 3 numbers", says="on purpose")
def needs_equal_pieces(x, group):
    if x.numel() % group.size():
        raise ValueError("on purpose")
    return solutions.my_ring_all_reduce(x, group)


@mistake("ring_all_reduce", SUM, PIECES, at="2 ranks, 3 numbers", says="on rank 0")
def drops_the_tail(x, group):
    n = group.size()
    rest = x.flatten()[: x.numel() // n * n]
    total = torch.zeros(x.shape, dtype=x.dtype)
    total.view(-1)[: len(rest)] = solutions.my_ring_all_reduce(rest, group)
    return total


CHAPTER.changes({
    "stops after the reduce scatter": Mistake("ring_all_reduce", {SUM}, at="2 ranks, 2 numbers", says="on rank 0",
        old="range(n - 1)", new="range(0)"),
    "views what is transposed": Mistake("ring_all_reduce", {checker.RUNS},
        at="3 ranks, a transposed matrix of 7 rows", says="view size is not compatible",
        old="x.flatten()", new="x.view(-1)"),
    "sums in fp32": Mistake("ring_all_reduce", {SUM}, at="1 rank, 3 numbers", says="in torch.float32 instead of",
        old="x.flatten()", new="x.flatten().float()"),
    "forgets the shape": Mistake("ring_all_reduce", {SUM},
        at="3 ranks, a transposed matrix of 7 rows", says="of shape [14]",
        old=".view_as(x)", new=""),
})


@mistake("ring_all_reduce", PIECES, at="3 ranks, 3 numbers", says="by rank 0")
def asks_a_server(x, group):
    return server.mean_through_server(x, group) * group.size()


@mistake("ring_all_reduce", MESSAGES, PIECES, TURNS, at="1 rank, 3 numbers", says="all_reduce on rank 0")
def lets_gloo_do_it(x, group):
    return comm.all_reduce(x, group)


@mistake("doubling_all_reduce", DOUBLING, at="2 ranks, 3 numbers", says="2 steps")
def goes_around_a_ring(x, group):
    return solutions.my_ring_all_reduce(x, group)


@mistake("doubling_all_reduce", SUM, at="2 ranks, a matrix of 2 x 2", says="of shape [4] instead of [2, 2]")
def forgets_the_shape(x, group):
    return solutions.my_doubling_all_reduce(x.flatten(), group)


@mistake("doubling_all_reduce", DOUBLING, at="4 ranks, 3 numbers", says="3 steps")
def counts_by_one(x, group):
    total = x.clone()
    for distance in range(1, group.size()):
        total += comm.exchange(x, group, to=group.rank() ^ distance, source=group.rank() ^ distance)
    return total


CHAPTER.changes({
    "adds to its input": Mistake("doubling_all_reduce", {SAME}, at="2 ranks, 3 numbers", says="x has changed on rank 0",
        old="return total", new="return x.copy_(total)"),
})


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("broadcast")
def starts_its_messages(x, group):
    rank, n, y, distance = group.rank(), group.size(), x.clone(), 1
    while distance < n:
        sends = [(y, rank + distance)] if rank < distance and rank + distance < n else []
        receives = [(y, rank - distance)] if distance <= rank < 2 * distance else []
        for wait in comm.start_messages(sends, receives, group):
            wait()
        distance *= 2
    return y
