"""Whole buffers through one rank, or up and down a tree.

Binomial trees: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521.
"""

from shardlab.files.arguments import Count, checked

from .plan import ADD, COPY, Move, Moves, Plan, powers

WHOLE = range(1)  # one piece


@checked
def naive_all_reduce(n: Count) -> Plan:
    """Plan an all-reduce through rank 0: the others send to it, and get the sum, one by one."""
    others = range(1, n)
    to_one = [[Move(rank, 0, WHOLE, ADD)] for rank in others]
    to_all = [[Move(0, rank, WHOLE, COPY)] for rank in others]
    return _plan("naive all-reduce", n, to_one + to_all)


@checked
def binomial_reduce(n: Count) -> Plan:
    """Plan a reduce to rank 0: ranks 1, 3, 5 ... send to the rank before them, then 2, 6, 10 ..."""
    steps = []
    for d in powers(n):
        steps.append([Move(rank, rank - d, WHOLE, ADD) for rank in range(d, n, 2 * d)])
    return _plan("binomial reduce", n, steps)


@checked
def binomial_broadcast(n: Count) -> Plan:
    """Plan a broadcast from rank 0: the ranks that have the buffer double with every step."""
    steps = []
    for d in reversed(powers(n)):
        steps.append([Move(rank - d, rank, WHOLE, COPY) for rank in range(d, n, 2 * d)])
    return _plan("binomial broadcast", n, steps)


@checked
def binomial_all_reduce(n: Count) -> Plan:
    """Plan an all-reduce: a reduce up the tree, and a broadcast down again."""
    up = binomial_reduce(n).steps
    down = binomial_broadcast(n).steps
    return _plan("binomial all-reduce", n, up + down)


def _plan(name: str, n: int, steps: list[Moves]) -> Plan:
    return Plan(name=name, num_ranks=n, num_pieces=1, steps=steps)
