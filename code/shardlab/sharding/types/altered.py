"""A text that is read with other redistributions than it has: added, turned, or left out."""

from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import Count, checked

from .redistribution import Redistribution, redistribution
from .repairs import Step
from .tracer import where


@dataclass(frozen=True)
@checked
class Mutant:
    """What stands in place of one redistribution of a text."""

    what: str  # removed, doubled or turned
    number: Count  # which one, counted from 1
    original: Redistribution
    changes: tuple[Redistribution, ...] = ()

    def __str__(self) -> str:
        changes = " and ".join(map(str, self.changes)) or "nothing"
        return f"number {self.number}, {self.original}, {self.what}: {changes}"

    @property
    def advice(self) -> str:
        """What to do in a text to get it."""
        if not self.changes:
            return f"leave out {self.original}"
        return f"write {' and '.join(map(str, self.changes))} for {self.original}"


@dataclass(frozen=True)
@checked
class Added:
    """Redistributions of operands before one call that is no redistribution itself."""

    number: Count  # which one, counted from 1
    steps: tuple[Step, ...]

    @property
    def advice(self) -> str:
        """What to do in a text to get it."""
        steps = [f"operand {place + 1}: {change}" for place, change in self.steps]
        return f"redistribute {' and '.join(steps)}"


class Altered:
    """A reader, a tracer or players, for which the text has other redistributions."""

    def __init__(self, on: Any, *changes: Mutant | Added):
        """Take the reader; without changes the text stays as it is."""
        self._on = on
        self.changes = changes
        self._mutants = {each.number: each for each in changes if isinstance(each, Mutant)}
        self._added = {each.number: each for each in changes if isinstance(each, Added)}
        self.seen: list[tuple[Any, Redistribution]] = []  # operands of redistributions
        self.places: list[str] = []  # their lines
        self.calls = 0  # that were no redistributions
        self.moving = False  # whether a redistribution is being read

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._on, name)
        if not callable(found):
            return found

        def call(*arguments: Any, **others: Any) -> Any:
            self.calls += 1
            given = list(arguments)
            if self.calls in self._added:
                plain = (str, int, float, type(None))
                tensors = [at for at, x in enumerate(given) if not isinstance(x, plain)]
                for place, change in self._added[self.calls].steps:
                    given[tensors[place]] = self._move(given[tensors[place]], change)
            return found(*given, **others)

        return call

    def redistribute(self, x: Any, axis: str, arrow: str, again: bool = False) -> Any:
        """Do what stands in place of this redistribution."""
        change = redistribution(axis, arrow)
        self.seen.append((x, change))
        self.places.append(where())
        self.moving = True
        mutant = self._mutants.get(len(self.seen))
        for each in mutant.changes if mutant else (change,):
            x = self._move(x, each, again)
        self.moving = False
        return x

    def _move(self, x: Any, change: Redistribution, again: bool = False) -> Any:
        arrow = f"{change.source} -> {change.target}"
        return self._on.redistribute(x, change.axis, arrow, again)
