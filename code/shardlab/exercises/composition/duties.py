"""Exercise: the samples that a rank of a mesh reads, and whether it writes to a checkpoint."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, Judge, describe

Place = dict[str, int]
AXES = ("tp", "dp", "pp")
SHOWN = 6  # samples that a report lists
Problem = tuple[str, str]  # what was expected, and what came


@dataclass(frozen=True)
class Duty:
    """What one rank reads and writes, or a description of what was returned instead."""

    place: Place
    samples: tuple[int, ...] = ()
    writes: bool = False
    trouble: str = ""


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> list[Duty]:
    """Return the duties of all ranks of the case."""
    degrees, num_samples, zero = case.given
    numbers = product(*(range(degrees[axis]) for axis in AXES))
    duties = []
    for place in (dict(zip(AXES, each, strict=True)) for each in numbers):
        found = function(dict(place), dict(degrees), num_samples, zero)
        duties.append(_duty(found, place))
    return duties


def _duty(found: Any, place: Place) -> Duty:
    try:
        samples, writes = found
        return Duty(place, tuple(map(operator.index, samples)), bool(writes))
    except (TypeError, ValueError):
        return Duty(place, trouble=describe(found))


def judge(problem: Callable[[Case, Sequence[Duty]], Problem | None]) -> Judge:
    """Judge the duties of all ranks together; `problem` returns None if they are right."""

    def judge_duties(case: Case, observed: list[Any]) -> Finding | None:
        degrees, num_samples, zero = case.given
        given = f"degrees={degrees}, num_samples={num_samples}, zero={zero}"
        for duty in observed[0]:
            if duty.trouble:
                return Finding(given, "(samples, writes)", duty.trouble)
        wrong = problem(case, observed[0])
        return None if wrong is None else Finding(given, *wrong)

    return judge_duties


def _at(place: Place) -> str:
    return ", ".join(f"{axis} {number}" for axis, number in place.items())


def _brief(samples: Sequence[int]) -> str:
    return f"{list(samples[:SHOWN])}{' and more' if len(samples) > SHOWN else ''}"


def same_samples(case: Case, duties: Sequence[Duty]) -> Problem | None:
    """Ask that the ranks of one model read alike: the last stage needs the first one's targets."""
    first: dict[int, Duty] = {}
    for duty in duties:
        other = first.setdefault(duty.place["dp"], duty)
        if duty.samples != other.samples:
            expected = f"{_brief(other.samples)} at {_at(duty.place)}, as at {_at(other.place)}"
            return expected, f"{_brief(duty.samples)}"
    return None


def each_sample(case: Case, duties: Sequence[Duty]) -> Problem | None:
    """Ask that the replicas together read each sample once."""
    _, num_samples, _ = case.given
    firsts = [duty for duty in duties if duty.place["tp"] == duty.place["pp"] == 0]
    read = sorted(sample for duty in firsts for sample in duty.samples)
    if read != list(range(num_samples)):
        return "each sample on one replica", f"all replicas together: {_brief(read)}"
    return None


def equal_shares(case: Case, duties: Sequence[Duty]) -> Problem | None:
    """Ask for shares that differ by at most one."""
    counts = [len(duty.samples) for duty in duties]
    if max(counts) - min(counts) > 1:
        return "shares equal to within one", f"from {min(counts)} to {max(counts)} samples"
    return None


def written_once(case: Case, duties: Sequence[Duty]) -> Problem | None:
    """Ask for one writer of each piece: of a place along tp and pp, and under ZeRO along dp."""
    _, _, zero = case.given
    writers: dict[tuple[int, ...], int] = {}
    for duty in duties:
        piece = tuple(duty.place[axis] for axis in AXES if zero or axis != "dp")
        writers[piece] = writers.get(piece, 0) + duty.writes
    for piece, count in writers.items():
        if count != 1:
            return f"one rank that writes piece {piece}", f"{count} ranks"
    return None


def _case(
    title: str, num_samples: int, tp: int = 1, dp: int = 1, pp: int = 1, zero: bool = False
) -> Case:
    degrees = {"tp": tp, "dp": dp, "pp": pp}
    return Case(world_size=tp * dp * pp, title=title, given=(degrees, num_samples, zero))


EXERCISE = Exercise(
    name="composition.duties",
    compare="shardlab.ranks.checkpoint.saving.share",
    points=2,
    pure=True,
    cases=[
        _case("one rank", 3),
        _case("two replicas", 4, dp=2),
        _case("two tensor parallel ranks", 3, tp=2),
        _case("two stages", 3, pp=2),
        _case("two replicas with ZeRO", 4, dp=2, zero=True),
        _case("three axes", 4, tp=2, dp=2, pp=2),
        _case("three axes with ZeRO", 4, tp=2, dp=2, pp=2, zero=True),
        _case("unequal shares", 10, tp=2, dp=4, pp=3),
    ],
    attempt=attempt,
    properties={
        "ranks of one model read the same samples": Dependent(judge(same_samples)),
        "replicas together read each sample once": judge(each_sample),
        "shares are equal to within one": Dependent(judge(equal_shares)),
        "every piece is written by one rank": judge(written_once),
    },
)
