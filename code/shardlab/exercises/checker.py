"""The machinery of exercises: run a learner's function on real ranks, judge what it did, say it in a few lines.

Beside the right result an exercise asks for a budget: bytes, messages, memory. The idea is that of
LLM-Training-Puzzles (https://github.com/srush/LLM-Training-Puzzles), where a puzzle has a target time and memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import cloudpickle

from shardlab.ranks import comm, launch

TIMEOUT = 10.0  # s for all cases of one world size; the launcher notices a deadlock after about two
MAX_LINES = 16  # of a rank's report
# not the learner's lines, as reports name them
OURS = ('  File "shardlab/exercises/', '  File "shardlab/ranks/observe/ledger.py')
RUNS = "runs to its end on every rank"  # the property that all exercises share
PASSED, FAILED, UNKNOWN = "passed", "failed", "not reached"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input of an exercise, on so many ranks."""

    world_size: int
    title: str
    given: Any = None  # what the exercise needs to make the input
    group_size: int | None = None  # ranks talk in groups of so many neighbours; None: all with all

    def __str__(self) -> str:
        ranks = f"{self.world_size} rank{'s' * (self.world_size > 1)}"
        return f"{ranks}{f' in groups of {self.group_size}' if self.group_size else ''}, {self.title}"

    def members(self, rank: int) -> range:
        """The ranks of this rank's group."""
        size = self.group_size or self.world_size
        return range(rank // size * size, (rank // size + 1) * size)


@dataclass(frozen=True)
class Finding:
    """Why a property does not hold in a case: what there was, what should have come out, what did."""

    given: str
    expected: str
    got: str


Attempt = Callable[[Callable[..., Any], comm.Group, Case, int], Any]  # function, its group, case, rank in the run
Judge = Callable[[Case, list[Any]], Finding | None]
Seen = list[tuple[Case, list[Any]]]  # per case: what each rank has seen


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A function to write, and how to tell whether it is right."""

    name: str  # chapter.exercise
    prompt: str
    starter: str  # defines `function`, and does not pass
    hint: str
    points: int
    cases: Sequence[Case]  # smallest first
    attempt: Attempt  # runs on a rank: calls the learner's function, returns what happened as plain data
    properties: dict[str, Judge]  # what must hold in every case, in the order of the report
    pure: bool = False  # the function needs no peers: all cases run on one rank

    @property
    def function(self) -> str:
        """What the learner's function is called: shard -> my_shard, beside the library's own `shard`."""
        return "my_" + self.name.rpartition(".")[2]


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict, true when everything passed; `check` has printed it, so that a notebook need not show it again."""

    exercise: Exercise
    marks: dict[str, str]  # property -> passed, failed or not reached
    reason: str  # the smallest failing case of the first property that failed

    def __bool__(self) -> bool:
        return set(self.marks.values()) == {PASSED}

    def __repr__(self) -> str:
        return f"<{self.exercise.name}: {PASSED if self else FAILED}>"

    def __str__(self) -> str:
        score = f"{self.exercise.points if self else 0} of {self.exercise.points} points"
        lines = [f"{self.exercise.name}: {PASSED if self else FAILED}, {score}"]
        lines += [f"  {mark:11}  {name}" for name, mark in self.marks.items()]
        if not self:
            lines += ["", self.reason, "", f'Stuck? hint("{self.exercise.name}")']
        return "\n".join(lines)

    def _ipython_display_(self) -> None:
        """Nothing: see above."""


def check(exercise: Exercise, function: Any) -> Report:
    """Run the function in every case and judge it. Whatever the function does, this returns, within seconds.

    Errors: RuntimeError under torchrun or mpiexec, where a hang could not be ended.
    """
    if launch.already_a_rank():
        raise RuntimeError("the checker starts ranks of its own; call it without torchrun or mpiexec")
    seen, stopped = observe(exercise, function)
    findings: dict[str, tuple[Case, Finding]] = {}
    for case, ranks in seen:
        for name, judge in exercise.properties.items():
            finding = None if name in findings else judge(case, ranks)
            if finding is not None:
                findings[name] = case, finding
    unfailed = UNKNOWN if stopped else PASSED
    marks = {RUNS: FAILED if stopped else PASSED}
    marks |= {name: FAILED if name in findings else unfailed for name in exercise.properties}
    return Report(exercise, marks, stopped or _reason(marks, findings))


def observe(exercise: Exercise, function: Any) -> tuple[Seen, str]:
    """What each rank saw in each case, and the story of the case at which the function stopped, if it did."""
    trouble = _unfit(function)
    if trouble:
        return [], trouble
    launch.run(_ready, world_size=1)  # starting the helper shall not count as the learner's time
    seen: Seen = []
    for _, chunk in groupby(exercise.cases, lambda case: _num_ranks(exercise, case)):
        cases = list(chunk)
        try:
            seen += _run(exercise, function, cases)
        except launch.RankError as error:
            return _one_by_one(exercise, function, cases, seen, str(error))
    return seen, ""


def _one_by_one(
    exercise: Exercise, function: Any, cases: Sequence[Case], seen: Seen, report: str
) -> tuple[Seen, str]:
    """Run the cases again, each alone, up to the first that fails: the launcher's report does not know of cases."""
    case = cases[-1]
    for each in cases:
        try:
            seen = seen + _run(exercise, function, [each])
        except launch.RankError as error:
            case, report = each, str(error)
            break
    return seen, f"Smallest failing case: {case}\n{shorten(report)}"


def _run(exercise: Exercise, function: Any, cases: Sequence[Case]) -> Seen:
    """One launch for several cases that need as many ranks."""
    num_ranks = _num_ranks(exercise, cases[0])
    by_rank = launch.run(_attempt_all, exercise.attempt, function, cases, world_size=num_ranks, timeout=TIMEOUT)
    return [(case, list(ranks)) for case, ranks in zip(cases, zip(*by_rank, strict=True), strict=True)]


def _attempt_all(group: comm.Group, attempt: Attempt, function: Any, cases: Sequence[Case]) -> list[Any]:
    seen = []
    for case in cases:
        part = comm.split(group, case.group_size) if case.group_size else group
        seen.append(attempt(function, part, case, group.rank()))
    return seen


def _ready(group: comm.Group) -> None:
    """Nothing, on one rank."""


def _num_ranks(exercise: Exercise, case: Case) -> int:
    return 1 if exercise.pure else case.world_size


def _unfit(function: Any) -> str:
    """Why this cannot be run on ranks, or nothing."""
    if not callable(function):
        return f"expected  a function\ngot       {function!r:.80}, a {type(function).__name__}"
    try:
        cloudpickle.dumps(function)
    except Exception as error:
        return f"The function cannot be sent to the ranks ({error}); let it use only its arguments and modules."
    return ""


def _reason(marks: dict[str, str], findings: dict[str, tuple[Case, Finding]]) -> str:
    first = next((name for name in marks if name in findings), None)
    if first is None:
        return ""
    case, finding = findings[first]
    rows = {"given": finding.given, "expected": finding.expected, "got": finding.got}
    return "\n".join([f"Smallest failing case: {case}"] + [f"  {key:8}  {text}" for key, text in rows.items()])


def shorten(report: str) -> str:
    """The launcher's report without the checker's own lines, and not longer than a learner will read."""
    kept: list[str] = []
    ours = False
    for line in report.splitlines():
        ours = line.startswith(OURS) or (ours and line.startswith("    "))
        if not ours:
            kept.append(line)
    return "\n".join(kept if len(kept) <= MAX_LINES else [*kept[:MAX_LINES], "..."])
