"""Ranks send what the plan says: the receiver, the step and the bytes of each message."""

import pytest
import torch

from shardlab import exchanges
from shardlab.costs.collectives import exchanges as costs
from shardlab.launch import run
from shardlab.ranks import collectives
from shardlab.ranks.collectives import exchanges as executed
from shardlab.ranks.collectives import verbs
from shardlab.ranks.observe import ledger
from tests.rank_types import rank_type

LENGTHS = [0, 1, 5, 8, 100]
ELEMENT = 8  # bytes of a float64


def plans(n):
    """Make every algorithm for n ranks, by name."""
    sizes = [size for size in (2, 3) if n % size == 0]
    found = [make(n) for make in exchanges.ALL_REDUCES.values()]
    found += [exchanges.hierarchical_all_reduce(n, size) for size in sizes]
    found += [
        make(n)
        for make in (
            exchanges.binomial_reduce,
            exchanges.binomial_broadcast,
            exchanges.scatter_all_gather_broadcast,
            exchanges.ring_reduce_scatter,
            exchanges.halving_reduce_scatter,
            exchanges.ring_all_gather,
            exchanges.doubling_all_gather,
            exchanges.pairwise_all_to_all,
        )
    ]
    return {plan.name: plan for plan in found}


def messages(book, op):
    """List the peer and the bytes of each message in a ledger, in the order in which it was started."""
    return [(event.peer, event.nbytes) for event in book.events if event.op == op]


def lengths(plan):
    """List the lengths to try; an all-to-all needs equal pieces."""
    return [0, plan.num_pieces, 8 * plan.num_pieces] if "all-to-all" in plan.name else LENGTHS


def watch(group):
    """Return what this rank sent and received, by plan and length."""
    seen = {}
    for name, plan in plans(group.size()).items():
        for length in lengths(plan):
            x = torch.arange(length, dtype=torch.float64)
            with ledger.Ledger() as book:
                executed.execute(plan, x, torch.empty_like(x), group)
            seen[name, length] = messages(book, "send"), messages(book, "receive")
    return seen


def planned(plan, rank, length):
    """List the messages that the plan has for one rank, sent and received, without empty ones."""
    sizes = costs.piece_bytes(plan, length, ELEMENT)
    moves = [(move, sum(sizes[piece] for piece in move.pieces)) for step in plan.steps for move in step]
    sent = [(move.to, nbytes) for move, nbytes in moves if move.source == rank and nbytes]
    return sent, [(move.source, nbytes) for move, nbytes in moves if move.to == rank and nbytes]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 7])
@pytest.mark.counted("collectives", "each message of each algorithm: to whom, in which order, how many bytes")
def test_ranks_send_what_the_plan_says(world_size):
    by_rank = run(watch, world_size=world_size, ranks=rank_type(world_size))
    for name, plan in plans(world_size).items():
        for length in lengths(plan):
            predicted = costs.bytes_by_rank(plan, costs.piece_bytes(plan, length, ELEMENT))
            for rank, seen in enumerate(by_rank):
                counted = seen[name, length]
                assert counted == planned(plan, rank, length), (name, length, rank)
                assert [sum(nbytes for _, nbytes in side) for side in counted] == [side[rank] for side in predicted]


def test_a_long_message_travels_in_parts():
    def parts(group, plan, num_parts):
        x = torch.ones(int(num_parts * executed.PART_BYTES) // 4)
        with ledger.Ledger() as book:
            executed.execute(plan, x, torch.empty_like(x), group)
        return [nbytes / executed.PART_BYTES for _, nbytes in messages(book, "send")]

    broadcast, ring = exchanges.binomial_broadcast(2), exchanges.ring_all_reduce(2)
    assert run(parts, broadcast, 2.25, world_size=2) == [[1, 1, 0.25], []]
    assert run(parts, ring, 3, world_size=2) == [[1, 0.5, 1, 0.5]] * 2  # two pieces of one and a half
    assert run(parts, ring, 1, world_size=2) == [[0.5, 0.5]] * 2


def test_a_send_completes_before_its_place_changes():
    """Recursive doubling adds to what it is sending, and eight megabytes take time to leave."""

    def swap_all(group):
        executed.PART_BYTES = 2**30  # in one part
        x = torch.full((2**20,), 2.0**group.rank(), dtype=torch.float64)
        plan, found = exchanges.recursive_doubling_all_reduce(group.size()), []
        for _ in range(3):
            y = torch.empty_like(x)
            executed.execute(plan, x, y, group)
            found.append(y.unique().tolist())
        return found

    assert run(swap_all, world_size=4) == [[[15.0]] * 3] * 4


def test_the_check_costs_what_is_documented():
    """`agree` gathers the descriptions of all ranks' calls, by doubling."""

    def checked(group, check):
        with ledger.Ledger() as book:
            collectives.all_reduce(torch.ones(4), group, check=check)
        return [nbytes for _, nbytes in messages(book, "send")]

    with_check, without = (run(checked, check, world_size=4) for check in (True, False))
    words = verbs.CALL_BYTES
    for more, plain in zip(with_check, without, strict=True):
        assert more == [words, 2 * words, *plain]


def test_a_receive_takes_no_message_of_another_collective():
    """Two collectives of different lengths run back to back; early receives belong to their own collective."""

    def twice(group):
        first = collectives.all_reduce(torch.full((5,), 1.0), group, exchanges.binomial_all_reduce, check=False)
        second = collectives.all_reduce(torch.full((7,), 2.0), group, exchanges.naive_all_reduce, check=False)
        return first.tolist(), second.tolist()

    assert run(twice, world_size=4) == [([4.0] * 5, [8.0] * 7)] * 4
