"""Partners at distance 1, 2, 4 ...: about log2(n) steps, where a ring takes n.

Recursive doubling, and Rabenseifner's halving and doubling: Thakur, Rabenseifner and Gropp 2005,
doi:10.1177/1094342005051521. The ranks that take part, the core, are a power of two. Where n is
not, each of the others hands its buffer to a neighbour first, and gets the result from it at the
end.
"""

from collections.abc import Sequence

from shardlab.files.arguments import Count, checked

from .plan import ADD, COPY, Move, Moves, Plan, powers

WHOLE = range(1)  # one piece


@checked
def recursive_doubling_all_reduce(n: Count) -> Plan:
    """Plan swaps of whole buffers between partners, at twice the distance in every step."""
    core = _core(n)
    steps = _before(n, ADD, WHOLE)
    for d in powers(len(core)):
        steps.append([Move(rank, core[j ^ d], WHOLE, ADD) for j, rank in enumerate(core)])
    steps += _after(n, WHOLE)
    return Plan(name="recursive doubling all-reduce", num_ranks=n, num_pieces=1, steps=steps)


@checked
def halving_doubling_all_reduce(n: Count) -> Plan:
    """Plan swaps of halves, then of halves of these halves ..., added; then all the way back."""
    core = _core(n)
    count = len(core)  # one piece for each rank of the core
    ends = range(count + 1)
    steps = [
        *_before(n, ADD, range(count)),
        *_halving(core, ends),
        *_doubling(core, ends),
        *_after(n, range(count)),
    ]
    return Plan(name="halving-doubling all-reduce", num_ranks=n, num_pieces=count, steps=steps)


@checked
def halving_reduce_scatter(n: Count) -> Plan:
    """Plan the first half of a halving-doubling all-reduce: rank r ends with the sum of piece r."""
    core = _core(n)
    steps = [*_before(n, ADD, range(n)), *_halving(core, _ends(core)), *_after(n)]
    return Plan(name="halving reduce-scatter", num_ranks=n, num_pieces=n, steps=steps)


@checked
def doubling_all_gather(n: Count) -> Plan:
    """Plan the second half: what a rank has doubles with every step."""
    core = _core(n)
    steps = [*_before(n, COPY), *_doubling(core, _ends(core)), *_after(n, range(n))]
    return Plan(name="doubling all-gather", num_ranks=n, num_pieces=n, steps=steps)


# ---- halving and doubling among the core ---------------------------------------------------------


def _halving(core: Sequence[int], ends: Sequence[int]) -> list[Moves]:
    """Send the half that your partner keeps: core[j] ends with pieces ends[j] to ends[j + 1]."""
    steps = []
    for d in reversed(powers(len(core))):
        step = []
        for j, rank in enumerate(core):
            partner = j ^ d
            step.append(Move(rank, core[partner], _block(ends, partner, d), ADD))
        steps.append(step)
    return steps


def _doubling(core: Sequence[int], ends: Sequence[int]) -> list[Moves]:
    """Send all you have; your partner has the other half of the next larger block."""
    steps = []
    for d in powers(len(core)):
        step = []
        for j, rank in enumerate(core):
            step.append(Move(rank, core[j ^ d], _block(ends, j, d), COPY))
        steps.append(step)
    return steps


def _block(ends: Sequence[int], j: int, d: int) -> range:
    """Return the pieces of the `d` neighbours that core[j] is among, from a multiple of `d` on."""
    first = j // d * d
    return range(ends[first], ends[first + d])


# ---- ranks outside the core ----------------------------------------------------------------------


def _pairs(n: int) -> list[tuple[int, int]]:
    """List (rank outside the core, its neighbour inside) for the ranks beyond a power of two."""
    core = 2 ** (n.bit_length() - 1)
    return [(2 * i, 2 * i + 1) for i in range(n - core)]


def _core(n: int) -> list[int]:
    """List the ranks of the core: of 6 ranks, 1, 3, 4 and 5, where 0 and 2 stay outside."""
    outside = {rank for rank, _ in _pairs(n)}
    return [rank for rank in range(n) if rank not in outside]


def _ends(core: Sequence[int]) -> list[int]:
    """Return where the pieces of each rank of the core end: its neighbour's, then its own."""
    return [0, *(rank + 1 for rank in core)]


def _before(n: int, action: str, pieces: range | None = None) -> list[Moves]:
    """Hand `pieces` of the ranks outside, or each one's own piece, to their neighbours inside."""
    step = [Move(out, core, pieces or _own(out), action) for out, core in _pairs(n)]
    return [step] if step else []


def _after(n: int, pieces: range | None = None) -> list[Moves]:
    """Give `pieces`, or each one's own piece, back to the ranks outside."""
    step = [Move(core, out, pieces or _own(out), COPY) for out, core in _pairs(n)]
    return [step] if step else []


def _own(rank: int) -> range:
    return range(rank, rank + 1)
