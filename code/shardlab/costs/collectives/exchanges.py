"""What a plan costs, to the byte: counted move by move, for pieces that need not be equally long."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from shardlab.exchanges import Plan, cuts

from .algorithms import Cost


def cost(plan: Plan, length: int, element: int) -> Cost:
    """For a buffer of so many numbers, of so many bytes each."""
    sizes = piece_bytes(plan, length, element)
    sent, received = bytes_by_rank(plan, sizes)
    longest = [max(sum(sizes[piece] for piece in move.pieces) for move in step) for step in plan.steps]
    return Cost(steps=sum(map(bool, longest)), serial=sum(longest), sent=max(sent), received=max(received))


def piece_bytes(plan: Plan, length: int, element: int) -> list[int]:
    """The length of every piece. Nothing is padded: where numbers do not divide, the first pieces have one more."""
    return [element * (end - begin) for begin, end in pairwise(cuts(length, plan.num_pieces))]


def bytes_by_rank(plan: Plan, sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    """What every rank sends, and what it receives, for pieces of these sizes."""
    sent, received = [0.0] * plan.num_ranks, [0.0] * plan.num_ranks
    for move in (move for step in plan.steps for move in step):
        nbytes = sum(sizes[piece] for piece in move.pieces)
        sent[move.source] += nbytes
        received[move.to] += nbytes
    return sent, received


def uneven_bytes(plan: Plan, length: int, element: int) -> float:
    """What the busiest rank sends beyond the formula of equal pieces, because the numbers do not divide into such."""
    equal, _ = bytes_by_rank(plan, [element * length / plan.num_pieces] * plan.num_pieces)
    return cost(plan, length, element).sent - max(equal)


def between_groups(plan: Plan, size: int) -> float:
    """Buffers in a row over the one link, of two directions, that each group of `size` neighbours has to the others."""
    crossed = 0
    for step in plan.steps:
        load: Counter[tuple[str, int]] = Counter()
        for move in step:
            leaves, enters = move.source // size, move.to // size
            if leaves != enters:
                load["out", leaves] += len(move.pieces)
                load["in", enters] += len(move.pieces)
        crossed += max(load.values(), default=0)
    return crossed / plan.num_pieces
