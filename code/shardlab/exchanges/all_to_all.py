"""All-to-all: every rank has another piece for each rank. The result is the transpose of the input.

In n - 1 rounds, one partner in each; NCCL sends to several at once, see
`costs.collectives.at_once`. Pairwise exchange: Thakur, Rabenseifner and Gropp 2005,
doi:10.1177/1094342005051521.
"""

from shardlab.files.arguments import Count, checked

from .plan import COPY, Move, Plan


@checked
def pairwise_all_to_all(n: Count) -> Plan:
    """Plan a pairwise exchange: in step s, rank r sends to rank r + s.

    Pieces 0 to n - 1 go out, pieces n to 2n - 1 come in.
    """
    steps = []
    for step in range(1, n):
        targets = [(rank + step) % n for rank in range(n)]
        steps.append([_send(rank, to, n) for rank, to in enumerate(targets)])
    return Plan(name="pairwise all-to-all", num_ranks=n, num_pieces=2 * n, steps=steps)


def _send(source: int, to: int, n: int) -> Move:
    """Send piece `to` of rank `source` to the place n + source of rank `to`."""
    piece = range(to, to + 1)
    return Move(source, to, piece, COPY, shift=n + source - to)
