"""A tracer reads the text of a method with types: it records each line, or refuses it.

    def mlp(on, x, up, down):                           # [B, S, h], [h, f/tp], [f/tp, h]
        x = on.redistribute(x, "tp", "I -> R")          # backward sums its gradient
        hidden = on.function("gelu", on.product("B S f", x, up))
        y = on.product("B S h", hidden, down)           # P: f is cut, and summed away
        return on.redistribute(y, "tp", "P -> I")

The collectives of backward follow from those of forward, in the opposite order and in a mirror. So
the list of a step exists before anything runs. After `close` the step goes on: it takes gradients,
sums them, updates parameters and logs numbers, and all of that is checked too.
"""

import linecache
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from shardlab.files.arguments import Count, Number, checked, unchecked
from shardlab.trace import ring_bytes

from . import rules
from .redistribution import (
    Redistribution,
    Refused,
    possible,
    redistribute,
    redistribution,
    sent_bytes,
)
from .repairs import Rule, repairs
from .states import Mesh, Sharding, Sizes, along, gradient, local_shape, parse

Call = tuple[str, str, float]  # a collective, the axis, bytes that a rank sends

_OWN = (str(Path(__file__).parent), str(Path(unchecked.__code__.co_filename).parent))


@dataclass(frozen=True)
@checked
class Line:
    """A line of a method, and the type of what it computes."""

    where: str
    result: Sharding
    forward: tuple[Call, ...] = ()
    backward: tuple[Call, ...] = ()


class Refusal(ValueError):
    """A line that is refused: where, why, which lines set the states that met, and repairs.

    A repair of the line alone makes the rules accept the line. One of a whole text, from `advice`,
    makes them accept the text to its end.
    """

    def __init__(self, told: str, refused: Refused, repairs: Sequence[Any], way: str):
        """Take all but the way out as text, the rules' refusal, the repairs, and the way out."""
        self.told, self.refused, self.repairs = told, refused, list(repairs)
        self.axis, self.states = refused.axis, refused.states
        super().__init__(f"{told}\n{way}")


@checked
class Tracer:
    """Operations on types; `ranks.players` has the same on tensors.

    Each returns the type of its result. Errors: Refusal where the rules refuse the line.
    """

    def __init__(self, mesh: Mesh, sizes: Sizes, itemsize: Count = 2):
        """Take the ranks along each axis, the size of each dim, and the bytes of a number."""
        self.mesh = mesh
        self.sizes = sizes
        self.itemsize = itemsize
        self.lines: list[Line] = []
        self.closed = 0  # lines before backward

    def given(self, text: str) -> Sharding:
        """Read the type of an input, such as "[B/dp, S]". Errors: as `parse` and `local_shape`."""
        sharding = parse(text)
        local_shape(sharding, self.sizes, self.mesh)
        return sharding

    def product(self, names: str, *factors: Sharding) -> Sharding:
        """Multiply, keep the dims `names`, and sum over all others."""
        return self._line(lambda operands: rules.product(names, operands), factors)

    def add(self, x: Sharding, y: Sharding) -> Sharding:
        """Add; one of them may lack dims."""
        return self._line(lambda operands: rules.add(*operands), (x, y))

    def scale(self, x: Sharding, number: Number) -> Sharding:
        """Multiply with a number that all ranks know."""
        return self._line(lambda operands: operands[0], (x,))

    def mean(self, x: Sharding, dim: str) -> Sharding:
        """Sum over a dim, and divide by its whole size: P where ranks cut it.

        Errors: ValueError for a dim that x lacks.
        """
        if dim not in x.names:
            raise ValueError(f"unknown dim {dim} of {x}; use {', '.join(x.names)}")
        names = [name for name in x.names if name != dim]
        total = self._line(lambda operands: rules.product(" ".join(names), operands), (x,))
        return self.scale(total, 1 / self.sizes[dim])

    def function(self, name: str, x: Sharding, *dims: str) -> Sharding:
        """Apply one of `rules.FUNCTIONS` to each number, or along the dims that it needs.

        Errors: ValueError for another function, or another number of dims.
        """
        if name not in rules.FUNCTIONS:
            raise ValueError(f"unknown function {name}; use {', '.join(rules.FUNCTIONS)}")
        if len(dims) != rules.FUNCTIONS[name]:
            raise ValueError(
                f"{name} needs all numbers along {rules.FUNCTIONS[name]} dims, got "
                f"{len(dims)} dims {dims}; name them after x"
            )
        return self._line(lambda operands: rules.function(operands[0], *dims), (x,))

    def average(self, x: Sharding, axis: str) -> Sharding:
        """Average over the ranks of an axis, as a reducer does that divides by the ranks."""
        ranks = self._ranks(axis)
        result = self._line(lambda operands: rules.average(operands[0], axis), (x,))
        nbytes = prod(local_shape(result, self.sizes, self.mesh)) * self.itemsize
        calls = (("all_reduce", axis, ring_bytes("all_reduce", nbytes, ranks)),)
        self.lines.append(Line(where(), result, calls, () if x.fixed else calls))
        return result

    def look_up(self, table: Sharding, tokens: Sharding) -> Sharding:
        """Take the rows of `table` that `tokens` number."""
        return self._line(lambda operands: rules.look_up(*operands), (table, tokens))

    def rename(self, x: Sharding, old: str, new: str) -> Sharding:
        """Give a dim another name, as that of the keys, which are the positions of the queries."""
        return self._line(lambda _: rules.renamed(x, old, new), (x,))

    def detach(self, x: Sharding) -> Sharding:
        """Take the numbers without their gradient."""
        return self._line(lambda operands: replace(operands[0], fixed=True), (x,))

    def largest(self, x: Sharding, dim: str) -> Sharding:
        """Find the largest number along a dim; where ranks cut it, the largest of all ranks.

        Errors: ValueError for x with a gradient, or without the dim.
        """
        result = self._line(lambda operands: rules.largest(operands[0], dim), (x,))
        nbytes = prod(local_shape(result, self.sizes, self.mesh)) * self.itemsize
        for axis in x.dims[x.names.index(dim)].axes:
            sent = ring_bytes("all_reduce", nbytes, self.mesh[axis])
            self.lines.append(Line(where(), result, (("all_reduce", axis, sent),)))
        return result

    def ring(
        self, axis: str, q: Sharding, k: Sharding, v: Sharding, turns: Count | None = None
    ) -> Sharding:
        """Attend to keys and values that go round an axis; None: as many turns as it has ranks."""
        ranks = self._ranks(axis)
        met = ranks if turns is None else turns
        result = self._line(lambda operands: rules.ring(axis, met, ranks, operands), (q, k, v))
        numbers = sum(prod(local_shape(x, self.sizes, self.mesh)) for x in (k, v))
        sent = float(numbers * self.itemsize)
        forward, backward = (("send", axis, sent),) * met, (("send", axis, 2 * sent),) * met
        self.lines.append(Line(where(), result, forward, backward))
        return result

    def redistribute(self, x: Sharding, axis: str, arrow: str, again: bool = False) -> Sharding:
        """Change the state along `axis`, for instance by "P -> I".

        again: do it once more in backward, because the result is not kept until then.
        """
        change = redistribution(axis, arrow)
        self._ranks(axis)
        result = self._derive(lambda operands: redistribute(operands[0], change), (x,), change)
        forward, backward = sent_bytes(x, change, self.sizes, self.mesh, self.itemsize)
        calls = _calls(change, forward)
        back = () if x.fixed else _calls(change.mirror, backward)
        self.lines.append(Line(where(), result, calls, calls * again + back))
        return result

    # ---- the end of the step -------------------------------------------------------------------

    def close(self, loss: Sharding) -> Sharding:
        """Let backward start here."""
        result = self._line(lambda operands: rules.close(operands[0]), (loss,))
        self.closed = len(self.lines)
        return result

    def gradient(self, x: Sharding) -> Sharding:
        """Take the gradient of an input after backward. Errors: ValueError before `close`."""
        if x.fixed or not self.closed:
            raise ValueError(f"{x} has no gradient; close a loss that depends on it first")
        return self._line(lambda _: replace(gradient(x), fixed=True), (x,))

    def update(self, parameter: Sharding, step: Sharding) -> Sharding:
        """Subtract a step, such as a gradient that is whole."""
        return self._line(lambda operands: rules.update(*operands), (parameter, step))

    def log(self, number: Sharding) -> Sharding:
        """Show a number, which all ranks must know."""
        return self._line(lambda operands: rules.log(operands[0]), (number,))

    def collectives(self) -> list[Call]:
        """List what ranks communicate in forward, backward and the end of the step.

        Backward of a line that no loss depends on is listed too.
        """
        last = self.closed or len(self.lines)
        before, after = self.lines[:last], self.lines[last:]
        calls = [line.forward for line in before]
        calls += [line.backward for line in reversed(before)]
        calls += [line.forward for line in after]
        return [call for line in calls for call in line]

    def _ranks(self, axis: str) -> int:
        if axis not in self.mesh:
            raise ValueError(f"unknown axis {axis}; use {', '.join(self.mesh)}")
        return self.mesh[axis]

    def _line(self, rule: Rule, operands: Sequence[Sharding]) -> Sharding:
        result = self._derive(rule, operands)
        self.lines.append(Line(where(), result))
        return result

    def _derive(
        self, rule: Rule, operands: Sequence[Sharding], change: Redistribution | None = None
    ) -> Sharding:
        """Apply a rule, and note which line set each state. Errors: Refusal."""
        try:
            result = rule(operands)
        except Refused as refused:
            raise self._refusal(refused, rule, operands, change) from None
        since = {}
        for axis in self.mesh:
            state = along(result, axis)
            lines = [x.since.get(axis, "") for x in operands if along(x, axis) == state]
            since[axis] = next(filter(None, lines), "") if lines else where()
        return replace(result, since=since)

    def _refusal(
        self,
        refused: Refused,
        rule: Rule,
        operands: Sequence[Sharding],
        change: Redistribution | None,
    ) -> Refusal:
        axis, ranks = refused.axis, self.mesh[refused.axis]
        told = [where(), f"{axis}={ranks}: {' with '.join(refused.states)}: "]
        told[1] += refused.reason.format(n=ranks)
        for number, operand in enumerate(operands, start=1):
            if operand.since.get(axis):
                state = f"operand {number} is {along(operand, axis)}"
                told.append(f"{state} since {operand.since[axis]}")
        if change:
            found = []
            ways = [f"write {each}" for each in fitting(operands[0], change, self.mesh)]
            way = "; or ".join([*ways, "leave it out"])
        else:
            found = repairs(rule, operands, self.sizes, self.mesh, self.itemsize)
            ways = [str(each) for each in found[:3]]
            way = "; or ".join(ways) or "nothing that one or two redistributions do"
            way = f"redistribute {way}"
        return Refusal("\n".join(told), refused, found, way)


@checked
def fitting(sharding: Sharding, change: Redistribution, mesh: Mesh) -> list[Redistribution]:
    """List what may be meant by an arrow that does not fit: another axis, or another source."""
    return [
        each
        for axis in mesh
        for each in possible(sharding, axis)
        if each.target == change.target and (axis == change.axis or each.source == change.source)
    ]


def _calls(change: Redistribution, sent: float) -> tuple[Call, ...]:
    return ((change.verb, change.axis, sent),) if change.verb else ()


def where() -> str:
    """Find the line of the method that is read, outside this package's own files."""
    frame = sys._getframe(1)
    while str(Path(frame.f_code.co_filename).parent) in _OWN and frame.f_back:
        frame = frame.f_back
    path, number = Path(frame.f_code.co_filename), frame.f_lineno
    file = f"{path.name} " if path.exists() else ""  # a cell has no file
    return f"{file}line {number}: {linecache.getline(str(path), number).strip()}"
