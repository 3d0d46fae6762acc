"""Programs that lack a redistribution, with the numbers of two ranks on each line.

missing.js draws a program; the reader chooses the line before which the redistribution belongs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.states import along, gradient

from .moving import MovingPicture, moving
from .page import table

# method -> axis of two ranks, all others have one -> which redistributions go missing
PUZZLES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "tensor parallel mlp": {"tp": (1, 2)},
    "tensor parallel attention": {"tp": (1, 2)},
    "sequence parallel mlp": {"tp": (3, 1, 2)},
    "vocabulary parallel embedding": {"tp": (1,)},
    "vocabulary parallel loss": {"tp": (1, 2), "dp": (3, 4)},
    "data parallel step": {"dp": (3, 1, 2)},
    "zero 1": {"dp": (5, 1)},
    "zero 3": {"dp": (3, 2)},
    "normalized step": {"tp": (1, 6, 7), "dp": (3, 4)},
}
SIZES = {"B": 1, "S": 1, "h": 2, "f": 2, "H": 2, "e": 1, "V": 4}
LONGER = {
    "tensor parallel attention": {"S": 2, "h": 1},  # one key would have no gradient
    "sequence parallel mlp": {"S": 4, "h": 1},  # can be cut twice
}
SMALL, LARGE = 1e-3, 100  # below the first a number is near 0, from the second on it is whole
Read = Callable[..., Any]  # `ranks.players.lines.read`, which needs torch


@dataclass(frozen=True)
class Puzzle:
    """A method without one of its redistributions, on two ranks along its axis."""

    read: Read
    name: str
    axis: str
    number: int

    def reading(self, *changes: Any) -> Any:
        """Read the method on small integers, with `changes` as `read` takes them."""
        method = METHODS[self.name]
        mesh = {axis: 1 + (axis == self.axis) for kind in method.types for axis in kind.axes}
        sizes = SIZES | {"B": 1 + (self.axis == "dp")} | LONGER.get(self.name, {})
        wholes = {
            name: whole(name, [sizes[dim] for dim in kind.names], None if kind.fixed else place)
            for place, (name, kind) in enumerate(zip(method.inputs, method.types, strict=True))
        }
        return self.read(method, mesh, wholes, *changes)

    @cached_property
    def right(self) -> Any:
        """Return the reading of the method as it is."""
        return self.reading()

    @cached_property
    def wrong(self) -> Any:
        """Return the reading without the redistribution."""
        return self.reading(self.number)

    @property
    def arrow(self) -> str:
        """Say what is missing."""
        change = self.wrong.change
        return f"{change.source} → {change.target} along {self.axis}"

    @cached_property
    def pairs(self) -> list[tuple[Any, Any]]:
        """Pair each line with the same line of the method as it is."""
        lines = self.right.lines
        gap = self.wrong.gap
        return list(zip(self.wrong.lines, lines[:gap] + lines[gap + 1 :], strict=True))

    def state(self, line: Any) -> str:
        """Return the state of what a line computes, along the axis."""
        return along(line.type, self.axis)

    def red(self) -> Iterator[tuple[bool, int, int]]:
        """Yield (whether backward, line, rank) of each wrong number, in the order of the run.

        A value that is right in another state than in the method as it is is not wrong.
        """
        every = list(enumerate(self.pairs))
        before, after = every[: self.wrong.closed + 1], every[self.wrong.closed + 1 :]
        for backward, lines in ((False, before), (True, before[::-1]), (False, after)):
            for at, pair in lines:
                if pair[0].type and self.state(pair[0]) != self.state(pair[1]):
                    continue
                held = [map(text, numbers(backward)(line)) for line in pair]
                for rank, (has, should) in enumerate(zip(*held, strict=True)):
                    if has != should:
                        yield backward, at, rank

    def line(self, at: int) -> str:
        """Name a line: by what is given, or by its number from 1."""
        inputs = self.wrong.inputs
        return f"line {at - inputs + 1}" if at >= inputs else list(METHODS[self.name].inputs)[at]

    @property
    def told(self) -> str:
        """Say which number is wrong first."""
        backward, at, rank = next(self.red())
        line, other = self.pairs[at]
        has, should = (text(numbers(backward)(each)[rank]) for each in (line, other))
        kind = gradient(other.type) if backward else other.type
        whose = "its term is" if along(kind, self.axis) == "P" else "one process has"
        what = f"gradient of {self.line(at)}" if backward else self.line(at)
        return f"{what[0].upper()}{what[1:]}: rank {rank} has {has} where {whose} {should}."

    @property
    def why(self) -> str:
        """Say why the program is refused."""
        refused = self.wrong.why
        states = " with ".join(refused.states)
        return f"{self.line(self.wrong.refused)} reads {states}: {refused.reason.format(n=2)}."

    def helps(self, at: int) -> int:
        """Put the redistribution before a line, and return the line that is then refused.

        -1 where none is; 0 where the line reads nothing in the state from which the arrow starts.
        """
        try:
            put = self.reading(self.number, (self.wrong.change, at))
        except ValueError:
            return int(at - self.wrong.inputs + 1)
        if not put.placed:
            return 0
        refused: int = put.refused - self.wrong.inputs + 1
        return refused if put.why else -1

    def drawn(self) -> dict[str, object]:
        """Return what missing.js draws; the numbers of the method as it is where they differ."""
        red = [0] * len(self.pairs)
        for backward, at, rank in self.red():
            red[at] |= 1 << (2 * backward + rank)
        inputs = self.wrong.inputs
        rows = [
            [*shown(self, line, other), bits, *changed(self, line, other)]
            for (line, other), bits in zip(self.pairs, red, strict=True)
        ]
        return {
            "name": f"{self.name} on two ranks of {self.axis}",
            "arrow": self.arrow,
            "inputs": inputs,
            "gap": self.wrong.gap,
            "missing": shown(self, *[self.right.lines[self.wrong.gap]] * 2),
            "rows": rows,
            "first": next(self.red())[1],
            "helps": [self.helps(at) for at in range(inputs, len(rows))],
            "told": self.told,
            "why": self.why,
        }


def numbers(backward: bool) -> Callable[[Any], list[list[float]]]:
    """Return what takes from a line the numbers of its ranks."""
    return lambda line: line.gradients() if backward else line.numbers()


def text(numbers: Sequence[float]) -> str:
    """Write what a rank holds: three digits, no fraction of a large number, nothing below 0.001."""
    return " ".join(map(_number, numbers))


def _number(x: float) -> str:
    if 0 < abs(x) < SMALL:
        return "≈0"
    return (f"{x:.0f}" if abs(x) >= LARGE else f"{x:.3g}").replace("-", "\N{MINUS SIGN}")


def shown(puzzle: Puzzle, line: Any, known: Any) -> list[str]:
    """Return code, state, numbers and gradients; a line without a type has that of `known`."""
    code = re.sub(r"\bon\.|^return ", "", line.code).replace("->", "→")
    state = puzzle.state(line if line.type else known)
    held = ["|".join(map(text, numbers(backward)(line))) for backward in (False, True)]
    return [code, state, *held]


def changed(puzzle: Puzzle, line: Any, other: Any) -> list[str | int]:
    """Return state, numbers and gradients of the method as it is; 0 for what is the same."""
    both = zip(shown(puzzle, line, other), shown(puzzle, other, other), strict=True)
    news = [0 if has == should else should for has, should in both][1:]
    return news if any(news) else []


def whole(name: str, shape: Sequence[int], place: int | None) -> Any:
    """Return an input as nested lists of small integers; without a gradient it has no place."""
    found: list[Any] = [
        k % 2 if name == "targets" else 1 + (k if place is None else k * k + place) % 3
        for k in range(prod(shape))
    ]
    for size in reversed(shape[1:]):
        found = [found[at : at + size] for at in range(0, len(found), size)]
    return found


class Missing(MovingPicture):
    """Programs that lack a redistribution: a picture on a page, a table in a kernel."""

    def __init__(self, read: Read):
        """Take `ranks.players.lines.read`, which plays two ranks."""
        self.puzzles = [
            Puzzle(read, name, axis, number)
            for name, axes in PUZZLES.items()
            for axis, some in axes.items()
            for number in some
        ]

    def html(self) -> str:
        """Return picture and table for a page; without JavaScript a table has the first puzzle."""
        drawn = [each.drawn() for each in self.puzzles]
        data = json.dumps(drawn, separators=(",", ":"), ensure_ascii=False)
        packed = data.replace("&", "&amp;").replace("'", "&#39;")
        picture = (
            '<p class="missing-state" aria-live="polite"></p>'
            f"<div class=\"missing-picture\" data-missing='{packed}'></div>"
        )
        return moving("missing", "A sharded program without one line", picture, self.table())

    def table(self) -> str:
        """Return the first puzzle line by line, and all with what is wrong and what heals it."""
        first = self.puzzles[0].drawn()
        header = [f"{first['name']}, without {first['arrow']}", "state", "they hold", "gradients"]
        rows: Any = first["rows"]
        lines = [[row[0], row[1], *(each.replace("|", ", ") for each in row[2:4])] for row in rows]
        answers = [["program", "lacks", "wrong first", "refused"]]
        answers += [[each.name, each.arrow, each.told, each.why] for each in self.puzzles]
        return table([header, *lines]) + table(answers)
