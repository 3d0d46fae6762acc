"""Muon over ranks, predicted: work, bytes and momentum of four ways to orthogonalise matrices.

`plain.muon` has the ways as programs: "redundant", "gathered", "owned" and "all-to-all". Shapes are
rows and columns of the matrices; the number of ranks divides the rows. Bytes are those of the
plain programs: an engine may reduce a gradient to its owner alone; `owned` sums it everywhere.
"""

from collections import Counter
from collections.abc import Sequence
from math import ceil

from shardlab.files.arguments import Count, checked

ROUNDS = 5  # of the iteration: Jordan 2024, https://kellerjordan.github.io/posts/muon/
WAYS = ("redundant", "gathered", "owned", "all-to-all")
Shape = tuple[Count, Count]


@checked
def flops(shape: Shape) -> int:
    """Count the FLOPs that orthogonalise a matrix, turned so that it has no more rows than columns.

    A round multiplies the matrix and its square each with itself, and their sum with the matrix.
    """
    short, long = sorted(shape)
    return ROUNDS * (4 * short * short * long + 2 * short**3)


@checked
def work(shapes: Sequence[Shape], *, ranks: Count, way: str) -> int:
    """Count the FLOPs of the rank that has most; the others wait for it."""
    _known(way)
    if way in ("redundant", "gathered"):
        return sum(map(flops, shapes))
    if way == "owned":
        return max(sum(map(flops, each)) for each in by_owner(shapes, ranks))
    return sum(ceil(count / ranks) * flops(shape) for shape, count in Counter(shapes).items())


@checked
def idle(shapes: Sequence[Shape], *, ranks: Count, way: str) -> float:
    """Return the share of all ranks' time of this work that does nothing new: waits, or repeats."""
    done = ranks * work(shapes, ranks=ranks, way=way)
    return 1 - sum(map(flops, shapes)) / done if done else 0.0


@checked
def momentum(shapes: Sequence[Shape], *, ranks: Count, way: str) -> int:
    """Count the numbers of momentum on the rank that keeps most."""
    _known(way)
    if way == "owned":
        return max(sum(map(_size, each)) for each in by_owner(shapes, ranks))
    whole = sum(map(_size, shapes))
    return whole if way == "redundant" else whole // ranks


@checked
def sent(shapes: Sequence[Shape], *, ranks: Count, way: str) -> float:
    """Count the numbers that a rank sends in a step, on average, with the sums of gradients."""
    _known(way)
    share = (ranks - 1) / ranks
    whole = sum(map(_size, shapes))
    if way == "all-to-all":
        filled = sum(ceil(count / ranks) * _size(shape) for shape, count in Counter(shapes).items())
        return share * (2 * whole + 2 * filled)
    return share * {"redundant": 2, "gathered": 2, "owned": 3}[way] * whole


@checked
def by_owner(shapes: Sequence[Shape], ranks: Count) -> list[list[Shape]]:
    """Deal matrices to ranks, the largest first, each to the rank that has least."""
    owned: list[list[Shape]] = [[] for _ in range(ranks)]
    for shape in sorted(shapes, key=_size, reverse=True):
        min(owned, key=lambda each: sum(map(_size, each))).append(shape)
    return owned


def _size(shape: Shape) -> int:
    rows, columns = shape
    return rows * columns


def _known(way: str) -> None:
    if way not in WAYS:
        raise ValueError(f"way={way!r} must be one of {', '.join(WAYS)}")
