"""Cut unequal layers into pipeline stages: the slowest one as fast as possible, all in memory.

With many microbatches a pipeline is as fast as its slowest stage. Dynamic programming over the
layers finds the best cut, as in PipeDream (Harlap et al. 2018, https://arxiv.org/abs/1806.03377).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import inf

from shardlab.files.arguments import checked, within

from .. import units

ROUNDING = 1 + 1e-12  # tolerance for sums of floats


@dataclass(frozen=True, kw_only=True)
@checked
class Layer:
    """One layer, or another unit that cannot be cut: embedding, head."""

    seconds: float  # of one microbatch, forward and backward
    states: float  # bytes: parameters, gradients, optimizer
    activations: float = 0.0  # bytes, of one microbatch


@dataclass(frozen=True, kw_only=True)
@checked
class Partition:
    """The layers of each stage, and what they take. Lists have one entry for each stage."""

    stages: list[range]
    seconds: list[float]  # of one microbatch
    nbytes: list[float]

    @property
    def waiting(self) -> float:
        """The share of stages' time spent waiting for the slowest, in the limit of many
        microbatches.
        """
        most = max(self.seconds)
        return 1 - sum(self.seconds) / (len(self.seconds) * most) if most else 0.0


@checked
def measure(
    layers: Sequence[Layer],
    stages: Sequence[range],
    in_flight: Sequence[int],
    beside: Sequence[float] | None = None,
) -> Partition:
    """Add up what each stage of a given cut takes.

    in_flight: the microbatches that each stage holds at its peak, as `Timeline.peaks` counts them.
    beside: bytes that each stage takes beside its layers; None: none.
    """
    for stage in stages:
        within("stages", max(stage, default=0), len(layers))
    beside = beside or [0.0] * len(stages)
    return Partition(
        stages=list(stages),
        seconds=[sum(layers[i].seconds for i in stage) for stage in stages],
        nbytes=[
            more + sum(layers[i].states + count * layers[i].activations for i in stage)
            for stage, count, more in zip(stages, in_flight, beside, strict=True)
        ],
    )


@checked
def split(
    layers: Sequence[Layer],
    in_flight: Sequence[int],
    memory: float | None = None,
    beside: Sequence[float] | None = None,
) -> Partition:
    """Find the cut whose slowest stage is fastest, and of those the one with the least memory.

    in_flight: the microbatches that each stage holds at its peak, such as p, p - 1, ... 1 for 1F1B.
    memory: bytes of a device; None: any number. beside: bytes that each stage takes beside its
    layers; None: none. Errors: ValueError where there are fewer layers than stages, and where no
    cut fits: which stage, and how much memory would do.
    """
    num_layers = len(layers)
    num_stages = len(in_flight)
    _check_lengths(num_layers, num_stages)
    time = _Sums([layer.seconds for layer in layers])
    space = _spaces(layers, in_flight, beside)
    memory = inf if memory is None else memory
    limit = memory * ROUNDING

    def seconds(stage: int, start: int, end: int) -> float:
        return time(start, end) if space[stage](start, end) <= limit else inf

    rows = _rows(num_layers, num_stages, seconds)
    slowest = rows[-1][num_layers].cost * ROUNDING
    if slowest == inf:
        enough = units.text(least_memory(layers, in_flight, beside), "B")
        raise ValueError(f"{_why(rows, space, memory)}; use more stages, or devices of {enough}")

    def nbytes(stage: int, start: int, end: int) -> float:
        return space[stage](start, end) if time(start, end) <= slowest else inf

    rows = _rows(num_layers, num_stages, nbytes)
    edges = [num_layers]
    for row in reversed(rows[1:]):
        edges.append(row[edges[-1]].start)
    return measure(layers, [range(a, b) for a, b in pairwise(reversed(edges))], in_flight, beside)


@checked
def least_memory(
    layers: Sequence[Layer], in_flight: Sequence[int], beside: Sequence[float] | None = None
) -> float:
    """Count the bytes that a device needs for some cut to fit.

    Errors: ValueError where there are fewer layers than stages.
    """
    _check_lengths(len(layers), len(in_flight))
    space = _spaces(layers, in_flight, beside)
    rows = _rows(len(layers), len(in_flight), lambda stage, *ends: space[stage](*ends))
    return rows[-1][-1].cost


def _check_lengths(num_layers: int, num_stages: int) -> None:
    if not 1 <= num_stages <= num_layers:
        raise ValueError(
            f"{num_layers} layers do not fill {num_stages} stages; use 1 to {num_layers} stages"
        )


class _Sums:
    """The sum over any range of numbers and what stands beside it, in constant time."""

    def __init__(self, numbers: Sequence[float], beside: float = 0.0) -> None:
        self.before = list(accumulate(numbers, initial=0.0))
        self.beside = beside

    def __call__(self, start: int, end: int) -> float:
        return self.before[end] - self.before[start] + self.beside


def _spaces(
    layers: Sequence[Layer], in_flight: Sequence[int], beside: Sequence[float] | None
) -> list[_Sums]:
    """Prepare the bytes of any range of layers, for each stage."""
    return [
        _Sums([layer.states + count * layer.activations for layer in layers], more)
        for count, more in zip(in_flight, beside or [0.0] * len(in_flight), strict=True)
    ]


@dataclass(frozen=True)
class _Best:
    cost: float = inf  # the largest cost of a stage, if the stages so far have the layers so far
    start: int = 0  # where the last of these stages starts


def _rows(
    num_layers: int, num_stages: int, cost: Callable[[int, int, int], float]
) -> list[list[_Best]]:
    """Fill rows[k][n]: the best way to give the first n layers to the first k stages.

    cost: of (stage, start, end).
    """
    rows = [[_Best(0.0), *[_Best()] * num_layers]]
    for stage in range(num_stages):
        before = [(way.cost, n) for n, way in enumerate(rows[-1]) if way.cost < inf]
        row = [_Best()]
        for end in range(1, num_layers + 1):
            ways = (_Best(max(most, cost(stage, n, end)), n) for most, n in before if n < end)
            row.append(min(ways, key=lambda way: way.cost, default=_Best()))
        rows.append(row)
    return rows


def _why(rows: list[list[_Best]], space: Sequence[_Sums], memory: float) -> str:
    """Name the stage that cannot hold what the stages before it leave at best."""
    reach = [
        max((count for count, best in enumerate(row) if best.cost < inf), default=-1)
        for row in rows
    ]
    stage = reach.index(-1) - 1 if -1 in reach else len(space) - 1
    start = reach[stage]
    end = len(rows[0]) - 1
    if -1 in reach:
        needed = _of(space[stage](start, start + 1), memory)
        return f"stage {stage} cannot hold even layer {start}: {needed}"
    before = f"the stages before it hold layers 0 to {start - 1} at most, and " if start else ""
    left = f"layers {start} to {end - 1} take" if end - start > 1 else f"layer {start} takes"
    needed = _of(space[stage](start, end), memory)
    return f"stage {stage} cannot fit: {before}{left} {needed}"


def _of(nbytes: float, memory: float) -> str:
    return f"{units.text(nbytes, 'B')} of {units.text(memory, 'B')}"
