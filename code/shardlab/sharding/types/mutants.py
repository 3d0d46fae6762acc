"""Mutants: a method with one of its redistributions removed, doubled, or turned into another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import Count, checked

from .methods.method import Method
from .redistribution import Redistribution, possible, redistribution
from .states import Mesh, Sharding, Sizes
from .tracer import Tracer


@dataclass(frozen=True)
@checked
class Mutant:
    """What stands in place of one redistribution of a text."""

    what: str  # removed, doubled or turned
    number: Count  # which one, counted from 1
    original: Redistribution
    changes: Sequence[Redistribution] = ()

    def __str__(self) -> str:
        changes = " and ".join(map(str, self.changes)) or "nothing"
        return f"number {self.number}, {self.original}, {self.what}: {changes}"


class Altered:
    """A reader, a tracer or players, for which the text has a mutant's redistributions."""

    def __init__(self, on: Any, mutant: Mutant | None = None):
        """Take the reader; without a mutant the text stays as it is."""
        self._on = on
        self._mutant = mutant
        self.seen: list[tuple[Any, Redistribution]] = []  # operands of redistributions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._on, name)

    def redistribute(self, x: Any, axis: str, arrow: str, again: bool = False) -> Any:
        """Do what the mutant has here."""
        changes: Sequence[Redistribution] = [redistribution(axis, arrow)]
        self.seen.append((x, changes[0]))
        if self._mutant and self._mutant.number == len(self.seen):
            changes = self._mutant.changes
        for each in changes:
            arrow = f"{each.source} -> {each.target}"
            x = self._on.redistribute(x, axis, arrow, again)
        return x


@checked
def mutants(method: Method, mesh: Mesh, sizes: Sizes) -> Iterator[Mutant]:
    """Yield each redistribution removed, doubled, and turned: its mirror, and all other targets.

    Errors: Refusal for a method that is wrong itself.
    """
    tracer = Altered(Tracer(mesh, sizes))
    inputs = [tracer.given(text) for text in method.inputs.values()]
    method(tracer, *inputs)
    for number, (x, change) in enumerate(tracer.seen, start=1):
        yield Mutant("removed", number, change)
        yield Mutant("doubled", number, change, (change, change))
        for other in dict.fromkeys([change.mirror, *_turned(x, change)]):
            if other != change:
                yield Mutant("turned", number, change, (other,))


def _turned(x: Sharding, change: Redistribution) -> Iterator[Redistribution]:
    return (other for other in possible(x, change.axis) if other != change)
