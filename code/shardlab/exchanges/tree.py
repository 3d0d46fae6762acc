"""Everything through one rank, and up and down a tree: the buffer travels as a whole.

Binomial trees: Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521.
"""

from .plan import ADD, COPY, Move, Plan, checked, powers

WHOLE = range(1)  # one piece


def naive_all_reduce(n: int) -> Plan:
    """All send to rank 0, one after the other; it adds, and sends the sum to all, one after the other."""
    others = range(1, checked(n))
    to_one = [[Move(rank, 0, WHOLE, ADD)] for rank in others]
    to_all = [[Move(0, rank, WHOLE, COPY)] for rank in others]
    return Plan("naive all-reduce", n, 1, to_one + to_all)


def binomial_reduce(n: int) -> Plan:
    """Sums climb a tree to rank 0: ranks 1, 3, 5 ... send to the one before them, then 2, 6, 10 ... to 0, 4, 8 ..."""
    steps = [[Move(rank, rank - d, WHOLE, ADD) for rank in range(d, n, 2 * d)] for d in powers(n)]
    return Plan("binomial reduce", n, 1, steps)


def binomial_broadcast(n: int) -> Plan:
    """Down the same tree from rank 0: the ranks that have the buffer double with every step."""
    steps = [[Move(rank - d, rank, WHOLE, COPY) for rank in range(d, n, 2 * d)] for d in reversed(powers(n))]
    return Plan("binomial broadcast", n, 1, steps)


def binomial_all_reduce(n: int) -> Plan:
    """Up the tree, and down again."""
    return Plan("binomial all-reduce", n, 1, binomial_reduce(n).steps + binomial_broadcast(n).steps)
