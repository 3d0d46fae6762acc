"""Partners at distance 1, 2, 4 ...: about log2(n) steps, where a ring takes n.

Recursive doubling, and Rabenseifner's halving and doubling: Thakur, Rabenseifner and Gropp 2005,
doi:10.1177/1094342005051521. The number of ranks that take part, the core, is a power of two. Where n is none, some
ranks hand what they have to a neighbour before, and get the result from it after.
"""

from collections.abc import Sequence

from .plan import ADD, COPY, Move, Plan, Step, checked, powers

WHOLE = range(1)  # one piece


def recursive_doubling_all_reduce(n: int) -> Plan:
    """Partners swap all they have and add: neighbours first, then at twice the distance with every step."""
    core = _core(n)
    swaps = [[Move(core[j], core[j ^ d], WHOLE, ADD) for j in range(len(core))] for d in powers(len(core))]
    return Plan("recursive doubling all-reduce", n, 1, [*_before(n, ADD, WHOLE), *swaps, *_after(n, WHOLE)])


def halving_doubling_all_reduce(n: int) -> Plan:
    """Partners swap halves and add, then halves of these halves ...; then all the way back, copying."""
    core = _core(n)
    ends, pieces = range(len(core) + 1), range(len(core))  # one piece for each rank of the core
    steps = [*_before(n, ADD, pieces), *_halving(core, ends), *_doubling(core, ends), *_after(n, pieces)]
    return Plan("halving-doubling all-reduce", n, len(core), steps)


def halving_reduce_scatter(n: int) -> Plan:
    """The first half of that: rank r ends with the sum of piece r."""
    steps = [*_before(n, ADD, range(n)), *_halving(_core(n), _ends(n)), *_after(n)]
    return Plan("halving reduce-scatter", n, n, steps)


def doubling_all_gather(n: int) -> Plan:
    """The second half: what a rank has doubles with every step."""
    steps = [*_before(n, COPY), *_doubling(_core(n), _ends(n)), *_after(n, range(n))]
    return Plan("doubling all-gather", n, n, steps)


def dissemination_barrier(n: int) -> Plan:
    """Tell the rank 1, then 2, then 4 ... places on that you are here, and all of whom you have heard.

    Hensgen, Finkel and Manber 1988, doi:10.1007/BF01379320.
    """
    steps = [[Move(rank, (rank + d) % n, WHOLE, ADD) for rank in range(n)] for d in powers(n)]
    return Plan("dissemination barrier", n, 1, steps)


# ---- halving and doubling among the core -----------------------------------------------------------------------------


def _halving(core: Sequence[int], ends: Sequence[int]) -> list[Step]:
    """Send the half that your partner keeps. Rank j of the core ends with the pieces from ends[j] up to ends[j + 1]."""
    return [
        [Move(core[j], core[j ^ d], _block(ends, j ^ d, d), ADD) for j in range(len(core))]
        for d in reversed(powers(len(core)))
    ]


def _doubling(core: Sequence[int], ends: Sequence[int]) -> list[Step]:
    """Send all you have; your partner has the other half of the next larger block."""
    return [[Move(core[j], core[j ^ d], _block(ends, j, d), COPY) for j in range(len(core))] for d in powers(len(core))]


def _block(ends: Sequence[int], j: int, d: int) -> range:
    """The pieces of the d neighbours among whom rank j of the core is; blocks begin at multiples of d."""
    return range(ends[j // d * d], ends[j // d * d + d])


# ---- ranks outside the core ------------------------------------------------------------------------------------------


def _pairs(n: int) -> list[tuple[int, int]]:
    """(rank outside the core, its neighbour inside): as many as n is larger than a power of two."""
    return [(2 * i, 2 * i + 1) for i in range(n - 2 ** (checked(n).bit_length() - 1))]


def _core(n: int) -> list[int]:
    outside = {rank for rank, _ in _pairs(n)}
    return [rank for rank in range(n) if rank not in outside]


def _ends(n: int) -> list[int]:
    """Where the pieces of each rank of the core end, of n: its own, after that of the rank for which it stands."""
    return [0, *(rank + 1 for rank in _core(n))]


def _before(n: int, action: str, pieces: range | None = None) -> list[Step]:
    """Ranks outside hand over these pieces, or their own."""
    moves = [Move(out, core, pieces or range(out, out + 1), action) for out, core in _pairs(n)]
    return [moves] if moves else []


def _after(n: int, pieces: range | None = None) -> list[Step]:
    """They get these pieces, or their own."""
    moves = [Move(core, out, pieces or range(out, out + 1), COPY) for out, core in _pairs(n)]
    return [moves] if moves else []
