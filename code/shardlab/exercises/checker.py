"""Run a learner's function on real ranks, judge what it did, and report that in a few lines.

Beside the right result an exercise asks for a budget: bytes, messages, memory. The idea is that of
LLM-Training-Puzzles (https://github.com/srush/LLM-Training-Puzzles), where a puzzle has a target
time and a target memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import cloudpickle

from shardlab.ranks import comm, launch

TIMEOUT = 10.0  # s for all cases of one world size; the launcher notices a deadlock after about 2 s
MAX_LINES = 16  # of a rank's report
MAX_SHOWN = 60  # letters of a value that should not have been returned
# Lines of our own in a rank's report, which the learner need not see.
OURS = ('  File "shardlab/exercises/', '  File "shardlab/ranks/observe/ledger.py')
RUNS = "runs to its end on every rank"  # the property that all exercises share
PASSED, FAILED, UNKNOWN = "passed", "failed", "not reached"


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input of an exercise, and the number of ranks that get it."""

    world_size: int
    title: str
    given: Any = None  # what the exercise needs to make the input
    group_size: int | None = None  # ranks communicate in groups of neighbours; None: in one group

    def __str__(self) -> str:
        ranks = f"{self.world_size} rank{'s' * (self.world_size > 1)}"
        groups = f" in groups of {self.group_size}" if self.group_size else ""
        return f"{ranks}{groups}, {self.title}"

    def members(self, rank: int) -> range:
        """Return the ranks of this rank's group."""
        size = self.group_size or self.world_size
        first = rank // size * size
        return range(first, first + size)

    def groups(self) -> list[range]:
        """Return the ranks of every group."""
        size = self.group_size or self.world_size
        return [self.members(first) for first in range(0, self.world_size, size)]


@dataclass(frozen=True)
class Finding:
    """Why a property does not hold in a case."""

    given: str  # to the function
    expected: str
    got: str
    advice: str = ""  # what to do, where that does not give the solution away


Attempt = Callable[[Callable[..., Any], comm.Group, Case, int], Any]  # function, group, case, rank
Judge = Callable[[Case, list[Any]], Finding | None]  # a case, and what each rank observed in it
Observed = list[tuple[Case, list[Any]]]  # for each case what the attempt returned on each rank


def on_each_rank(judge: Callable[[Case, int, Any], Finding | None]) -> Judge:
    """Make a judge of all ranks from a judge of one: the first finding counts."""

    def judge_all(case: Case, observed: list[Any]) -> Finding | None:
        for rank, seen in enumerate(observed):
            finding = judge(case, rank, seen)
            if finding is not None:
                return finding
        return None

    return judge_all


def describe(value: Any) -> str:
    """Show a value that is not what the exercise asked for, with its type."""
    return f"{value!r:.{MAX_SHOWN}}, a {type(value).__name__}"


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A function to write, and the properties that it must have."""

    name: str  # chapter.exercise
    prompt: str
    starter: str  # defines `function`, and does not pass
    hint: str
    points: int
    cases: Sequence[Case]  # smallest first
    attempt: Attempt  # calls the function on a rank, and returns what happened as plain data
    properties: dict[str, Judge]  # what must hold in every case, in the order of the report
    pure: bool = False  # the function needs no peers: all cases run on one rank

    @property
    def function(self) -> str:
        """The name of the learner's function: shard -> my_shard, beside the library's `shard`."""
        return "my_" + self.name.rpartition(".")[2]


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict, true when every property holds. `check` prints it, so a notebook does not."""

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
        """Show nothing: `check` has printed the report."""


def check(exercise: Exercise, function: Any) -> Report:
    """Run the function in every case and judge it; return within seconds whatever it does.

    Errors: RuntimeError under torchrun or mpiexec, where a hang could not be ended.
    """
    if launch.already_a_rank():
        raise RuntimeError("check starts its own ranks; call it without torchrun or mpiexec")
    observed, stopped = observe(exercise, function)
    findings: dict[str, tuple[Case, Finding]] = {}
    for case, ranks in observed:
        for name, judge in exercise.properties.items():
            finding = None if name in findings else judge(case, ranks)
            if finding is not None:
                findings[name] = case, finding
    unfailed = UNKNOWN if stopped else PASSED
    marks = {RUNS: FAILED if stopped else PASSED}
    marks |= {name: FAILED if name in findings else unfailed for name in exercise.properties}
    return Report(exercise, marks, stopped or _reason(marks, findings))


def observe(exercise: Exercise, function: Any) -> tuple[Observed, str]:
    """Run all cases; return what the ranks observed, and why the function stopped, if it did."""
    trouble = _unfit(function)
    if trouble:
        return [], trouble
    launch.run(_ready, world_size=1)  # the learner's time begins when the helper has started
    observed: Observed = []
    for _, same_size in groupby(exercise.cases, lambda case: _num_ranks(exercise, case)):
        cases = list(same_size)
        try:
            observed += _run(exercise, function, cases)
        except launch.RankError as error:
            return _one_by_one(exercise, function, cases, observed, str(error))
    return observed, ""


def _one_by_one(
    exercise: Exercise,
    function: Any,
    cases: Sequence[Case],
    observed: Observed,
    report: str,
) -> tuple[Observed, str]:
    """Run each case alone, up to the first that fails: the launcher's report names no case."""
    case = cases[-1]
    for each in cases:
        try:
            observed = observed + _run(exercise, function, [each])
        except launch.RankError as error:
            case = each
            report = str(error)
            break
    return observed, f"Smallest failing case: {case}\n{shorten(report)}"


def _run(exercise: Exercise, function: Any, cases: Sequence[Case]) -> Observed:
    """Run several cases that need the same number of ranks, in one launch."""
    size = _num_ranks(exercise, cases[0])
    arguments = exercise.attempt, function, cases
    by_rank = launch.run(_attempt_all, *arguments, world_size=size, timeout=TIMEOUT)
    by_case = zip(*by_rank, strict=True)
    return [(case, list(ranks)) for case, ranks in zip(cases, by_case, strict=True)]


def _attempt_all(
    group: comm.Group, attempt: Attempt, function: Any, cases: Sequence[Case]
) -> list[Any]:
    seen = []
    for case in cases:
        part = comm.split(group, case.group_size) if case.group_size else group
        seen.append(attempt(function, part, case, group.rank()))
    return seen


def _ready(group: comm.Group) -> None:
    """Do nothing, on one rank."""


def _num_ranks(exercise: Exercise, case: Case) -> int:
    return 1 if exercise.pure else case.world_size


def _unfit(function: Any) -> str:
    """Say why `function` cannot be run on ranks; an empty string if it can."""
    if not callable(function):
        return f"  expected  a function\n  got       {describe(function)}"
    try:
        cloudpickle.dumps(function)
    except Exception as error:
        return (
            f"The function cannot be sent to the ranks ({error}); "
            f"let it use only its arguments and modules."
        )
    return ""


def _reason(marks: dict[str, str], findings: dict[str, tuple[Case, Finding]]) -> str:
    """Show the finding of the first property that failed."""
    first = next((name for name in marks if name in findings), None)
    if first is None:
        return ""
    case, finding = findings[first]
    rows = {"given": finding.given, "expected": finding.expected, "got": finding.got}
    if finding.advice:
        rows["try"] = finding.advice
    shown = [f"  {key:8}  {text}" for key, text in rows.items()]
    return "\n".join([f"Smallest failing case: {case}", *shown])


def shorten(report: str) -> str:
    """Drop the checker's own lines from a launcher's report, and cut it after MAX_LINES."""
    kept: list[str] = []
    ours = False
    for line in report.splitlines():
        ours = line.startswith(OURS) or (ours and line.startswith("    "))
        if not ours:
            kept.append(line)
    return "\n".join(kept if len(kept) <= MAX_LINES else [*kept[:MAX_LINES], "..."])
