"""What all ranks hold after each line of a text, forward and backward, with its types beside it.

One redistribution may be left out, and put back before another line. Types are known up to the line
that the tracer refuses; the ranks go on with the wrong numbers.
"""

import linecache
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlab.sharding.types.methods.method import Method
from shardlab.sharding.types.redistribution import Redistribution, Refused, redistribution
from shardlab.sharding.types.states import Mesh, Sharding, Sizes
from shardlab.sharding.types.tracer import Refusal, Tracer

from .players import PlayedTensor, Players

_ARROW = re.compile(r'on\.redistribute\((.+), "\w+", "[^"]+"(?:, again=True)?\)')


@dataclass
class PlayedLine:
    """A line of a text: its code, the type of what it computes, and what the ranks hold of it."""

    code: str
    type: Sharding | None  # None from the refused line on
    held: Tensor

    def numbers(self) -> list[list[float]]:
        """Return what each rank holds, row by row: [ranks, local numbers]."""
        return self._of_ranks(self.held.detach())

    def gradients(self) -> list[list[float]]:
        """Return what each rank has of the gradient; [] where the loss does not depend on it."""
        grad = self.held.grad
        return [] if grad is None else self._of_ranks(grad)

    def _of_ranks(self, held: Tensor) -> list[list[float]]:
        found: list[list[float]] = held.reshape(2, -1).tolist()
        return found


@dataclass
class PlayedText:
    """A text as it was read: its lines, and where the tracer refused it."""

    lines: list[PlayedLine] = field(default_factory=list)
    inputs: int = 0  # the first lines, which are its inputs
    closed: int = -1  # the last line before backward
    gap: int = -1  # the line before which a redistribution is missing, from 0
    change: Redistribution | None = None  # what is missing
    refused: int = -1  # the line that the tracer refuses
    why: Refused | None = None
    placed: bool = False  # whether an operand could be redistributed where that was asked


def read(
    method: Method,
    mesh: Mesh,
    wholes: Mapping[str, Any],
    missing: int = 0,
    put: tuple[Redistribution, int] | None = None,
) -> PlayedText:
    """Read a text with types and with the numbers of two ranks.

    mesh: has two ranks in all. wholes: input -> nested list of its numbers. missing: which
    redistribution is left out, from 1. put: what is done to an operand before a line, from 0 as in
    `PlayedText.lines`, instead.
    """
    tensors = {name: torch.tensor(whole, dtype=torch.double) for name, whole in wholes.items()}
    sizes: dict[str, int] = {}
    for kind, whole in zip(method.types, tensors.values(), strict=True):
        sizes |= zip(kind.names, whole.shape, strict=True)
    reader = _Reader(mesh, sizes, missing, put)
    given = [reader.given(name, tensors[name], text) for name, text in method.inputs.items()]
    reader.reading.inputs = len(given)
    method(reader, *given)
    return reader.reading


@dataclass
class _Value:
    type: Sharding | None
    played: PlayedTensor


class _Reader:
    """Tracer and players at once."""

    def __init__(
        self, mesh: Mesh, sizes: Sizes, missing: int, put: tuple[Redistribution, int] | None
    ):
        self._tracer, self._players = Tracer(mesh, sizes), Players(mesh)
        self._missing, self._put = missing, put
        self._count = 0  # redistributions
        self._source: object = None  # the line of the file that is read
        self._instead: list[tuple[_Value, _Value]] = []
        self.reading = PlayedText()

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **others: self._call(name, arguments, others)

    def given(self, name: str, whole: Tensor, text: str) -> _Value:
        kind = self._tracer.given(text)
        played = self._players.given(whole, kind)
        self.reading.lines.append(PlayedLine(f"{name}: {text}", kind, played.held))
        return _Value(kind, played)

    def redistribute(self, x: _Value, axis: str, arrow: str, again: bool = False) -> _Value:
        """Redistribute in a line of its own, unless this one is missing."""
        self._count += 1
        code, _ = _where()
        inner = _ARROW.search(code)
        if inner and not inner[1].isidentifier():  # two lines in one
            self.reading.lines[-1].code = code.replace(inner[0], inner[1])
            code = code.replace(inner[1], code.partition(" = ")[0])
        if self._count == self._missing:
            self.reading.gap = len(self.reading.lines)
            self.reading.change = redistribution(axis, arrow)
            return x
        self._source = None
        result = self._call("redistribute", (x, axis, arrow, again), {})
        self.reading.lines[-1].code = code
        self._source = None
        return result

    def _call(self, name: str, arguments: Sequence[Any], others: Mapping[str, Any]) -> _Value:
        code, source = _where()
        lines = self.reading.lines
        number = len(lines) - (source == self._source)
        given = [self._operand(x, number) if isinstance(x, _Value) else x for x in arguments]
        kinds = [x.type if isinstance(x, _Value) else x for x in given]
        kind = None
        if not self.reading.why:
            try:
                kind = getattr(self._tracer, name)(*kinds, **others)
            except Refusal as refusal:
                self.reading.why, self.reading.refused = refusal.refused, number
        played = [x.played if isinstance(x, _Value) else x for x in given]
        result = getattr(self._players, name)(*played, **others)
        if name == "close":
            self.reading.closed = number
        elif result.held.requires_grad:
            result.held.retain_grad()
        lines[number:] = [PlayedLine(code, kind, result.held)]
        self._source = source
        return _Value(kind, result)

    def _operand(self, x: _Value, number: int) -> _Value:
        """Return an operand, or what it was redistributed to."""
        for old, new in self._instead:
            if old is x:
                return new
        if not self._put or self.reading.placed or number != self._put[1] or not x.type:
            return x
        change, _ = self._put
        try:
            kind = self._tracer.redistribute(x.type, change.axis, _arrow(change))
        except ValueError:
            return x
        played = self._players.redistribute(x.played, change.axis, _arrow(change))
        if played.held.requires_grad:
            played.held.retain_grad()
        self.reading.placed = True
        self._instead.append((x, _Value(kind, played)))
        return self._instead[-1][1]


def _arrow(change: Redistribution) -> str:
    return f"{change.source} -> {change.target}"


def _where() -> tuple[str, object]:
    """Return the text of the line that is read, and where it stands."""
    frame = sys._getframe(1)
    while Path(frame.f_code.co_filename).parent.name != "methods" and frame.f_back:
        frame = frame.f_back
    path, number = frame.f_code.co_filename, frame.f_lineno
    return linecache.getline(path, number).strip(), (frame, number)
