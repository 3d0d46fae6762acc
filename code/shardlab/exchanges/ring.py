"""Around a ring: every rank talks to its two neighbours only, and sends a piece of 1/n of the buffer in every step.

Patarasuk and Yuan 2009, doi:10.1016/j.jpdc.2008.09.002; the broadcast: Thakur, Rabenseifner and Gropp 2005,
doi:10.1177/1094342005051521.
"""

from .plan import ADD, COPY, Move, Plan, Step, checked, powers


def ring_reduce_scatter(n: int) -> Plan:
    """Piece p walks from rank p + 1 around the ring, every rank adds its own, and rank p gets the sum at the end."""
    return Plan("ring reduce-scatter", n, n, [_turn(n, step, ADD) for step in range(1, checked(n))])


def ring_all_gather(n: int) -> Plan:
    """Every rank passes its own piece on, then what it has just received."""
    return Plan("ring all-gather", n, n, [_turn(n, step, COPY) for step in range(checked(n) - 1)])


def ring_all_reduce(n: int) -> Plan:
    """Reduce-scatter, then all-gather."""
    return Plan("ring all-reduce", n, n, ring_reduce_scatter(n).steps + ring_all_gather(n).steps)


def scatter_all_gather_broadcast(n: int) -> Plan:
    """For long messages: rank 0 deals the pieces down a tree, then they go around the ring."""
    scatter = [
        [Move(rank - d, rank, range(rank, min(rank + d, n)), COPY) for rank in range(d, n, 2 * d)]
        for d in reversed(powers(n))
    ]
    return Plan("scatter and all-gather broadcast", n, n, scatter + ring_all_gather(n).steps)


def _turn(n: int, step: int, action: str) -> Step:
    """Every rank sends the piece so many places before its own to the next rank."""
    return [Move(rank, (rank + 1) % n, _one((rank - step) % n), action) for rank in range(n)]


def _one(piece: int) -> range:
    return range(piece, piece + 1)
