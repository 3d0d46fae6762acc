"""Everybody has something else for everybody: the transpose of what the ranks hold.

Pairwise exchange: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521.
"""

from .plan import COPY, Move, Plan, checked


def pairwise_all_to_all(n: int) -> Plan:
    """In step s rank r sends to rank r + s what it has for it. Pieces 0 to n - 1 go out, pieces n to 2n - 1 come in."""
    steps = [[_send(rank, (rank + step) % n, n) for rank in range(n)] for step in range(1, checked(n))]
    return Plan("pairwise all-to-all", n, 2 * n, steps)


def _send(source: int, to: int, n: int) -> Move:
    """Piece `to` of the source lands in the place n + source."""
    return Move(source, to, range(to, to + 1), COPY, shift=n + source - to)
