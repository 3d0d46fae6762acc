"""Advice on a whole text: what to add, turn or leave out, so that the rules accept it to its end.

One process needs no redistribution, and a text computes on many ranks what it does on one if the
rules accept it. So all advice leads to the same numbers, and what changes least comes first.
A factor stays as it is: play a repaired text against one rank.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import checked

from .altered import Added, Altered, Mutant
from .redistribution import possible
from .states import Sharding
from .tracer import Refusal, Tracer, fitting

Change = Mutant | Added
MOST = 3  # changes in one piece of advice


@dataclass(frozen=True)
@checked
class Advice:
    """Changes of a text, each with its line, with which the rules accept the text to its end."""

    changes: tuple[Change, ...]
    lines: tuple[str, ...]
    nbytes: float  # that a rank sends in the whole step
    partial: bool = False  # whether a result is left P

    @property
    def num_moves(self) -> int:
        """How many changes it makes; an arrow left out there and added here is one."""
        added = [step for each in self.changes if isinstance(each, Added) for _, step in each.steps]
        left_out = [each for each in self.changes if isinstance(each, Mutant) and not each.changes]
        return len(self.changes) - sum(each.original in added for each in left_out)

    def __str__(self) -> str:
        each = zip(self.lines, self.changes, strict=True)
        told = [f"{change.advice} in {line.partition(':')[0]}" for line, change in each]
        return f"{' and '.join(told)} (the step sends {self.nbytes:.0f} bytes)"


@checked
def read(text: Callable[..., Any], on: Tracer, *inputs: Sharding) -> Any:
    """Read a whole text. Errors: Refusal, whose repairs are Advice where there is any."""
    try:
        return text(on, *inputs)
    except Refusal as refusal:
        found = advice(text, on, *inputs)
        if not found:
            raise
        way = "; or ".join(map(str, found[:3]))
        raise Refusal(refusal.told, refusal.refused, found, way) from None


@checked
def advice(text: Callable[..., Any], on: Tracer, *inputs: Sharding) -> list[Advice]:
    """Find changes with which a text is accepted, fewest first; what leaves a result P comes last.

    First each redistribution before the refused line is turned or left out, or operands of the line
    are redistributed; then the line that is refused next gets the same, up to `MOST` changes.
    """
    found: list[Advice] = []
    tries: list[tuple[tuple[Change, str], ...]] = [()]
    for number in range(MOST + 1):
        following = []
        for made in tries:
            changes = tuple(change for change, _ in made)
            tracer = Tracer(on.mesh, on.sizes, on.itemsize)
            reader = Altered(tracer, *changes)
            try:
                results = text(reader, *inputs)
            except Refusal as refusal:
                following += [(*made, each) for each in _changes(reader, refusal, not made)]
            except ValueError:
                continue  # such as a size that does not split
            else:
                lines = tuple(line for _, line in made)
                nbytes = sum(sent for *_, sent in tracer.collectives())
                found.append(Advice(changes, lines, nbytes, _partial(results)))
        tries = following
        if found and number > 1:
            break
    least = [
        each for each in found if not any(set(one.changes) < set(each.changes) for one in found)
    ]
    return sorted(least, key=lambda each: (each.partial, each.num_moves, each.nbytes))


def _changes(reader: Altered, refusal: Refusal, all_lines: bool) -> Iterator[tuple[Change, str]]:
    """Yield what may be changed, with its line; later lines alone unless `all_lines`."""
    line = refusal.told.partition("\n")[0]
    repaired = any(
        isinstance(each, Added) and each.number == reader.calls for each in reader.changes
    )
    for repair in () if repaired else refusal.repairs:
        yield Added(reader.calls, repair.steps), line
    taken = {each.number for each in reader.changes if isinstance(each, Mutant)}
    for number, (x, change) in enumerate(reader.seen, start=1):
        unfit = reader.moving and number == len(reader.seen)
        if number in taken or not (unfit or all_lines):
            continue
        arrows = fitting(x, change, reader.mesh) if unfit else ()
        turned = dict.fromkeys([*possible(x, change.axis), *arrows])
        for changes in [(), *((each,) for each in turned if each != change)]:
            yield Mutant("turned", number, change, changes), reader.places[number - 1]


def _partial(results: Any) -> bool:
    each = results if isinstance(results, tuple) else (results,)
    return any(isinstance(result, Sharding) and result.partial for result in each)
