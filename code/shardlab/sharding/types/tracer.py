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

from shardlab.files.arguments import Count, Number, checked, unchecked
from shardlab.trace import ring_bytes

from . import rules
from .redistribution import Redistribution, redistribute, redistribution, sent_bytes
from .repairs import Repair, Rule, repairs
from .states import Mesh, Sharding, Sizes, gradient, local_shape, parse

Call = tuple[str, str, float]  # a collective, the axis, bytes that a rank sends

_OWN = (__file__, unchecked.__code__.co_filename)  # files whose frames are not the method's


@dataclass(frozen=True)
@checked
class Line:
    """A line of a method, and the type of what it computes."""

    where: str
    result: Sharding
    forward: tuple[Call, ...] = ()
    backward: tuple[Call, ...] = ()


class Refusal(ValueError):
    """A line that is refused, with repairs that the rules accept, those with fewest bytes first.

    No redistribution changes a tensor, so a line that a repair makes acceptable is right.
    """

    def __init__(self, where: str, refused: rules.Refused, ranks: int, found: list[Repair]):
        """Take the line, why the rules refuse it, the ranks along the axis, and the repairs."""
        self.axis, self.states = refused.axis, refused.states
        self.repairs = found
        way = "; or ".join(map(str, found[:3])) or "nothing that one or two redistributions do"
        super().__init__(
            f"{where}\n{self.axis}={ranks}: {' with '.join(self.states)}: "
            f"{refused.reason.format(n=ranks)}\nredistribute {way}"
        )


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

    def function(self, name: str, x: Sharding, dim: str | None = None) -> Sharding:
        """Apply a function that is not linear to each number, or along a dim."""
        return self._line(lambda operands: rules.function(operands[0], dim), (x,))

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
            self.lines.append(Line(_where(), result, (("all_reduce", axis, sent),)))
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
        self.lines.append(Line(_where(), result, forward, backward))
        return result

    def redistribute(
        self, x: Sharding, axis: str, arrow: str, again: bool = False
    ) -> Sharding:
        """Change the state along `axis`, for instance by "P -> I".

        again: do it once more in backward, because the result is not kept until then.
        """
        change = redistribution(axis, arrow)
        self._ranks(axis)
        result = redistribute(x, change)
        forward, backward = sent_bytes(x, change, self.sizes, self.mesh, self.itemsize)
        calls = _calls(change, forward)
        back = () if x.fixed else _calls(change.mirror, backward)
        self.lines.append(Line(_where(), result, calls, calls * again + back))
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
        try:
            result = rule(operands)
        except rules.Refused as refused:
            found = repairs(rule, operands, self.sizes, self.mesh, self.itemsize)
            raise Refusal(_where(), refused, self.mesh[refused.axis], found) from None
        self.lines.append(Line(_where(), result))
        return result


def _calls(change: Redistribution, sent: float) -> tuple[Call, ...]:
    return ((change.verb, change.axis, sent),) if change.verb else ()


def _where() -> str:
    """Find the line of the method that is read, outside this package's own files."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename in _OWN and frame.f_back:
        frame = frame.f_back
    name, number = frame.f_code.co_filename, frame.f_lineno
    return f"line {number}: {linecache.getline(name, number).strip()}"
