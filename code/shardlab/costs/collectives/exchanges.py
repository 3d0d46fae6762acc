"""What a plan costs, to the byte: counted move by move, for pieces of unequal length."""

from collections import Counter
from collections.abc import Sequence

from shardlab.exchanges import Move, Plan
from shardlab.files.arguments import Count, checked
from shardlab.sharding.deal import deal

from .algorithms import Cost


@checked
def cost(plan: Plan, length: int, element: Count) -> Cost:
    """Count the cost of `plan` on a buffer of `length` elements of `element` bytes each."""
    sizes = piece_bytes(plan, length, element)
    sent, received = bytes_by_rank(plan, sizes)
    longest = [max(_move_bytes(move, sizes) for move in step) for step in plan.steps]
    return Cost(
        steps=sum(map(bool, longest)),
        serial=sum(longest),
        sent=max(sent),
        received=max(received),
    )


def _move_bytes(move: Move, sizes: Sequence[float]) -> float:
    return sum(sizes[piece] for piece in move.pieces)


@checked
def piece_bytes(plan: Plan, length: int, element: Count) -> list[int]:
    """Count the bytes of every piece, unpadded: the first pieces may have one element more."""
    return [element * len(piece) for piece in deal(length, plan.num_pieces)]


@checked
def bytes_by_rank(plan: Plan, sizes: Sequence[float]) -> tuple[list[float], list[float]]:
    """Count what every rank sends, and what it receives, for pieces of `sizes` bytes."""
    if len(sizes) != plan.num_pieces:
        raise ValueError(f"sizes={list(sizes)} must give the bytes of {plan.num_pieces} pieces")
    sent = [0.0] * plan.num_ranks
    received = [0.0] * plan.num_ranks
    for step in plan.steps:
        for move in step:
            nbytes = _move_bytes(move, sizes)
            sent[move.source] += nbytes
            received[move.to] += nbytes
    return sent, received


@checked
def between_groups(plan: Plan, size: Count) -> float:
    """Count the buffers that cross, one after the other, the busiest link between groups.

    Each group of `size` neighbours has one link to the others, with two directions.
    """
    crossed = 0
    for step in plan.steps:
        load: Counter[tuple[str, int]] = Counter()
        for move in step:
            left = move.source // size
            entered = move.to // size
            if left != entered:
                load["out", left] += len(move.pieces)
                load["in", entered] += len(move.pieces)
        crossed += max(load.values(), default=0)
    return crossed / plan.num_pieces
