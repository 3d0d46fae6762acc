"""Exercise: which samples a rank of a mesh reads, and whether it writes its piece of the weights into a checkpoint."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from shardlab.ranks import comm

from ..checker import Case, Exercise, Finding, Judge

Place = dict[str, int]
AXES, SHOWN = ("tp", "dp", "pp"), 6  # samples that a report lists

STARTER = '''\
def my_duties(place, degrees, num_samples, zero):
    """(samples, writes): what a rank reads of each batch, and whether it saves.

    place: axis -> this rank's coordinate; degrees: axis -> ranks: "tp", "dp", "pp".
    samples: indices of 0 to num_samples - 1; shares are equal to within one.
    writes: whether it writes its piece of a matrix that tp cuts. Each number of the
    model shall be written once. zero: whether replicas hold different pieces of it.
    """
    return range(num_samples), True  # everybody does everything: mend it
'''


@dataclass(frozen=True)
class Duty:
    """Of one rank; or in words what was returned instead."""

    place: Place
    samples: tuple[int, ...] = ()
    writes: bool = False
    trouble: str = ""


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> list[Duty]:
    """The duties of all ranks of the case."""
    degrees, num_samples, zero = case.given
    places = [
        dict(zip(AXES, place, strict=True)) for place in product(*(range(degrees[axis]) for axis in AXES))
    ]
    return [_duty(function(dict(place), dict(degrees), num_samples, zero), place) for place in places]


def _duty(found: Any, place: Place) -> Duty:
    try:
        samples, writes = found
        return Duty(place, tuple(map(operator.index, samples)), bool(writes))
    except (TypeError, ValueError):
        return Duty(place, trouble=f"{found!r:.60}, a {type(found).__name__}")


def judge(problem: Callable[[Case, Sequence[Duty]], tuple[str, str] | None]) -> Judge:
    """Judges the duties of all ranks together. problem: what is expected and what was got, if that is wrong."""

    def judge_duties(case: Case, seen: list[Any]) -> Finding | None:
        degrees, num_samples, zero = case.given
        given = f"degrees={degrees}, num_samples={num_samples}, zero={zero}"
        for duty in seen[0]:
            if duty.trouble:
                return Finding(given, "(samples, writes)", duty.trouble)
        wrong = problem(case, seen[0])
        return None if wrong is None else Finding(given, *wrong)

    return judge_duties


def _at(place: Place) -> str:
    return ", ".join(f"{axis} {number}" for axis, number in place.items())


def _brief(samples: Sequence[int]) -> str:
    return f"{list(samples[:SHOWN])}{' and more' if len(samples) > SHOWN else ''}"


def same_samples(case: Case, duties: Sequence[Duty]) -> tuple[str, str] | None:
    """Ranks of tp work on every token together, and the last stage has the targets of the first one's tokens."""
    first: dict[int, Duty] = {}
    for duty in duties:
        other = first.setdefault(duty.place["dp"], duty)
        if duty.samples != other.samples:
            expected = f"{_brief(other.samples)} at {_at(duty.place)}, as at {_at(other.place)}"
            return expected, f"{_brief(duty.samples)}"
    return None


def each_sample(case: Case, duties: Sequence[Duty]) -> tuple[str, str] | None:
    """Over the replicas, once."""
    _, num_samples, _ = case.given
    read = sorted(sample for duty in duties if duty.place["tp"] == duty.place["pp"] == 0 for sample in duty.samples)
    if read != list(range(num_samples)):
        return "each sample on one replica", f"all replicas together: {_brief(read)}"
    return None


def equal_shares(case: Case, duties: Sequence[Duty]) -> tuple[str, str] | None:
    counts = [len(duty.samples) for duty in duties]
    if max(counts) - min(counts) > 1:
        return "shares equal to within one", f"from {min(counts)} to {max(counts)} samples"
    return None


def written_once(case: Case, duties: Sequence[Duty]) -> tuple[str, str] | None:
    """A piece belongs to a place along tp and pp; under ZeRO, along dp, too."""
    _, _, zero = case.given
    writers: dict[tuple[int, ...], int] = {}
    for duty in duties:
        piece = tuple(duty.place[axis] for axis in AXES if zero or axis != "dp")
        writers[piece] = writers.get(piece, 0) + duty.writes
    for piece, count in writers.items():
        if count != 1:
            return f"one rank that writes piece {piece}", f"{count} ranks"
    return None


EXERCISE = Exercise(
    name="composition.duties",
    prompt="Say which samples each rank of a mesh reads, and which ranks write a checkpoint with every number once.",
    starter=STARTER,
    hint=(
        "The ranks that hold one model between them (tp and pp) read the same samples: only the coordinate along dp "
        "decides. Replicas hold the same weights, unless ZeRO deals them out: then one of them is enough to write."
    ),
    points=2,
    pure=True,
    cases=[
        Case(world_size=tp * dp * pp, title=title, given=({"tp": tp, "dp": dp, "pp": pp}, num_samples, zero))
        for title, tp, dp, pp, num_samples, zero in [
            ("one rank", 1, 1, 1, 3, False),
            ("two replicas", 1, 2, 1, 4, False),
            ("two tensor parallel ranks", 2, 1, 1, 3, False),
            ("two stages", 1, 1, 2, 3, False),
            ("two replicas with ZeRO", 1, 2, 1, 4, True),
            ("three axes", 2, 2, 2, 4, False),
            ("three axes with ZeRO", 2, 2, 2, 4, True),
            ("unequal shares", 2, 4, 3, 10, False),
        ]
    ],
    attempt=attempt,
    properties={
        "ranks of one model read the same samples": judge(same_samples),
        "replicas together read each sample once": judge(each_sample),
        "shares are equal to within one": judge(equal_shares),
        "every piece is written by one rank": judge(written_once),
    },
)
