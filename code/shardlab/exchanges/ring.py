"""A ring: in every step each rank sends 1/n of the buffer to the next rank.

Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002; the broadcast: Thakur, Rabenseifner and
Gropp 2005, doi:10.1177/1094342005051521.
"""

from shardlab.files.arguments import Count, checked

from .plan import ADD, COPY, Move, Moves, Plan, powers


@checked
def ring_reduce_scatter(n: Count) -> Plan:
    """Plan a reduce-scatter: every rank adds its numbers to each piece it receives.

    Piece p starts on rank p + 1, passes every rank, and ends on rank p as the sum.
    """
    steps = [_turn(n, step, ADD) for step in range(1, n)]
    return Plan(name="ring reduce-scatter", num_ranks=n, num_pieces=n, steps=steps)


@checked
def ring_all_gather(n: Count) -> Plan:
    """Plan an all-gather: every rank passes on its own piece, then what arrives."""
    steps = [_turn(n, step, COPY) for step in range(n - 1)]
    return Plan(name="ring all-gather", num_ranks=n, num_pieces=n, steps=steps)


@checked
def ring_all_reduce(n: Count) -> Plan:
    """Plan an all-reduce: a reduce-scatter, then an all-gather."""
    steps = ring_reduce_scatter(n).steps + ring_all_gather(n).steps
    return Plan(name="ring all-reduce", num_ranks=n, num_pieces=n, steps=steps)


@checked
def scatter_all_gather_broadcast(n: Count) -> Plan:
    """Plan a broadcast of long messages: scatter the pieces down a tree, then pass them around."""
    scatter = []
    for d in reversed(powers(n)):
        step = []
        for rank in range(d, n, 2 * d):
            pieces = range(rank, min(rank + d, n))
            step.append(Move(rank - d, rank, pieces, COPY))
        scatter.append(step)
    steps = scatter + ring_all_gather(n).steps
    return Plan(name="scatter and all-gather broadcast", num_ranks=n, num_pieces=n, steps=steps)


def _turn(n: int, step: int, action: str) -> Moves:
    """Send piece rank - step of every rank to the next rank."""
    moves = []
    for rank in range(n):
        piece = (rank - step) % n
        moves.append(Move(rank, (rank + 1) % n, range(piece, piece + 1), action))
    return moves
