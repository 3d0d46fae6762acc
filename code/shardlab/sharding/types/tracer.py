"""A tracer reads the text of a method with types: it records each line, or refuses it.

    def mlp(on, x, up, down):                           # [B, S, h], [h, f/tp], [f/tp, h]
        x = on.redistribute(x, "tp", "I -> R")          # backward sums its gradient
        hidden = on.function("gelu", on.product("B S f", x, up))
        y = on.product("B S h", hidden, down)           # P: f is cut, and summed away
        return on.redistribute(y, "tp", "P -> I")

The collectives of backward follow from those of forward, in the opposite order and in a mirror. So
the list of a step exists before anything runs.
"""

import linecache
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from shardlab.arguments import Count, Number, checked, unchecked

from . import rules
from .redistribution import Redistribution, redistribute, redistribution, sent_bytes
from .repairs import Repair, Rule, repairs
from .states import Mesh, Sharding, Sizes, local_shape, parse

_OWN = (__file__, unchecked.__code__.co_filename)  # files whose frames are not the method's


@dataclass(frozen=True)
@checked
class Line:
    """A line of a method, and the type of what it computes."""

    where: str
    result: Sharding
    change: Redistribution | None = None
    sent: tuple[float, float] = (0.0, 0.0)  # bytes by a rank, in forward and in backward


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

    def close(self, loss: Sharding) -> Sharding:
        """Let backward start here."""
        return self._line(lambda operands: rules.close(operands[0]), (loss,))

    def redistribute(self, x: Sharding, axis: str, arrow: str) -> Sharding:
        """Change the state along `axis`, for instance by "P -> I"."""
        change = redistribution(axis, arrow)
        if axis not in self.mesh:
            raise ValueError(f"unknown axis {axis}; use {', '.join(self.mesh)}")
        result = redistribute(x, change)
        sent = sent_bytes(x, change, self.sizes, self.mesh, self.itemsize)
        self.lines.append(Line(_where(), result, change, sent))
        return result

    def collectives(self) -> list[tuple[str, str, float]]:
        """List what ranks communicate in a forward and a backward: the verb, the axis, bytes sent.

        Backward of a line that no loss depends on is listed too.
        """
        forward = [(line.change, line.sent[0]) for line in self.lines]
        gradients = [line for line in reversed(self.lines) if not line.result.fixed]
        backward = [(line.change and line.change.mirror, line.sent[1]) for line in gradients]
        return [
            (change.verb, change.axis, sent)
            for change, sent in forward + backward
            if change and change.verb
        ]

    def _line(self, rule: Rule, operands: Sequence[Sharding]) -> Sharding:
        try:
            result = rule(operands)
        except rules.Refused as refused:
            found = repairs(rule, operands, self.sizes, self.mesh, self.itemsize)
            raise Refusal(_where(), refused, self.mesh[refused.axis], found) from None
        self.lines.append(Line(_where(), result))
        return result


def _where() -> str:
    """Find the line of the method that is read, outside this package's own files."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename in _OWN and frame.f_back:
        frame = frame.f_back
    name, number = frame.f_code.co_filename, frame.f_lineno
    return f"line {number}: {linecache.getline(name, number).strip()}"
