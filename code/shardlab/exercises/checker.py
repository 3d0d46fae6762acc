"""Judge what a learner's function did on its ranks, and report that in a few lines.

`attempts` runs the function. Beside the right result an exercise asks for a budget: bytes,
messages, memory. The idea is that of LLM-Training-Puzzles
(https://github.com/srush/LLM-Training-Puzzles), where a puzzle has a target time and a target
memory.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab import comm
from shardlab.costs import units

from . import packing

MAX_SHOWN = 60  # letters of a value that should not have been returned
MAX_TEXT = 1000  # letters of a line that a judge has written
RUNS = "runs to its end on every rank"  # the property that all exercises share
PASSED, FAILED, UNKNOWN = "passed", "failed", "not reached"
UNGRADED = "not graded"  # the checker itself has failed, and not the answer


@dataclass(frozen=True)
class Case:
    """One input of an exercise, and the number of ranks that get it."""

    world_size: int
    title: str
    given: Any = None  # what the exercise needs to make the input
    group_size: int | None = None  # ranks communicate in groups of neighbours; None: in one group

    def __str__(self) -> str:
        groups = f" in groups of {self.group_size}" if self.group_size else ""
        return f"{units.counted(self.world_size, 'rank')}{groups}, {self.title}"

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


@dataclass(frozen=True, kw_only=True)
class Unjudged(Finding):
    """What a judge could not handle: the checker's fault if no judge finds the answer wrong."""

    error: str


Attempt = Callable[[Callable[..., Any], comm.Group, Case, int], Any]  # function, group, case, rank
Judge = Callable[[Case, list[Any]], Finding | None]  # a case, and what each rank observed in it
Observed = list[tuple[Case, list[Any]]]  # for each case what the attempt returned on each rank


@dataclass(frozen=True)
class Dependent:
    """A judge that presupposes the exercise's other properties, as one of an answer's costs does.

    Where one of those fails, this one is not reached, unless it fails, too.
    """

    judge: Judge

    def __call__(self, case: Case, observed: list[Any]) -> Finding | None:
        """Judge as if the answer were right."""
        return self.judge(case, observed)


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
    return f"{value!r:.{MAX_SHOWN}}, a {type(value).__name__:.{MAX_SHOWN}}"


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """A function to write, and the properties that it must have."""

    name: str  # chapter.exercise
    prompt: str = ""  # of the book's exercises this and the next two stand in the page, see `pages`
    starter: str = ""  # defines `function`, and does not pass
    hints: tuple[str, ...] = ()  # a nudge, the idea, the way
    compare: str = ""  # what does the same in this package, or nearly
    points: int
    cases: Sequence[Case]  # smallest first
    attempt: Attempt  # calls the function on a rank, and returns what happened as plain data
    properties: dict[str, Judge]  # what must hold in every case, in the order of the report
    pure: bool = False  # the function needs no peers: all cases run on one rank

    @property
    def function(self) -> str:
        """The name of the learner's function: shard -> my_shard, beside the library's `shard`."""
        return "my_" + self.name.rpartition(".")[2]

    def hint(self, step: int, call: Callable[[int], str]) -> str:
        """Return a step of the help, and name the `call` that prints the next one.

        Errors: ValueError for a step that is not 1, 2 or 3.
        """
        if not isinstance(step, int) or not 1 <= step <= len(self.hints):
            raise ValueError(f"step={step!r}: use 1 for a nudge, 2 for the idea, 3 for the way")
        ends = ["has the idea.", "has the way."]
        more = [f"{call(step + 1)} {end}" for end in ends[step - 1 : step]]
        return "\n".join([self.hints[step - 1], *more])


@dataclass(frozen=True, repr=False)
class Report:
    """The verdict, true when every property holds. `check` prints it, so a notebook does not.

    Without marks nothing was graded, because the checker itself failed.
    """

    exercise: Exercise
    marks: dict[str, str]  # property -> passed, failed or not reached
    reason: str  # the smallest failing case, and why the function stopped; or what broke

    @property
    def verdict(self) -> str:
        """Say passed, failed or not graded."""
        return (PASSED if self else FAILED) if self.marks else UNGRADED

    def __bool__(self) -> bool:
        return set(self.marks.values()) == {PASSED}

    def __repr__(self) -> str:
        return f"<{self.exercise.name}: {self.verdict}>"

    def __str__(self) -> str:
        return self.text(f'hint("{self.exercise.name}")')

    def text(self, help: str) -> str:
        """Return the report; `help` is the call that prints a hint."""
        if not self.marks:
            blame = "the checker itself failed, which says nothing about your answer"
            return f"{self.exercise.name}: {self.verdict}, {blame}\n\n{self.reason}"
        score = f"{self.exercise.points if self else 0} of {self.exercise.points} points"
        lines = [f"{self.exercise.name}: {self.verdict}, {score}"]
        lines += [f"  {mark:11}  {name}" for name, mark in self.marks.items()]
        if not self:
            lines += ["", self.reason, "", f"Stuck? {help}"]
        elif self.exercise.compare:
            lines += ["", f"Compare with {self.exercise.compare}"]
        return "\n".join(lines)

    def _ipython_display_(self) -> None:
        """Show nothing: `check` has printed the report."""


@dataclass(frozen=True)
class Attempted:
    """What happened when a learner's function was run."""

    replies: Sequence[Sequence[str]] = ()  # packed, case by case from the first, and rank by rank
    stopped: str = ""  # why the function did not run to its end in every case
    note: str = ""  # what to try if it fails
    broken: str = ""  # why it could not be run, whatever it does


def judge(exercise: Exercise, attempted: Attempted) -> Report:
    """Judge what the ranks observed. No code of the learner runs here."""
    if attempted.broken:
        return Report(exercise, {}, attempted.broken)
    observed, stopped = _opened(exercise, attempted)
    findings: dict[str, tuple[Case, Finding]] = {}
    for case, ranks in observed:
        for name, judge_one in exercise.properties.items():
            finding = None if name in findings else _find(judge_one, case, ranks)
            if finding is not None:
                findings[name] = case, finding
    errors = [each.error for _, each in findings.values() if isinstance(each, Unjudged)]
    if errors and len(errors) == len(findings) and not stopped:
        return Report(exercise, {}, f"  cause     {errors[0]:.{MAX_TEXT}}")
    marks = {RUNS: FAILED if stopped else PASSED} | _marks(exercise, {*findings}, bool(stopped))
    # What was observed, was before it stopped.
    reason = "\n\n".join(each for each in (_reason(exercise, findings), stopped) if each)
    if reason and attempted.note:
        reason += f"\n  try       {attempted.note}"
    return Report(exercise, marks, reason)


def _marks(exercise: Exercise, failed: set[str], stopped: bool) -> dict[str, str]:
    """Mark each property; one passes only where all that it presupposes holds in every case."""
    dependent = {name for name, one in exercise.properties.items() if isinstance(one, Dependent)}
    unsure = {*exercise.properties} if stopped else dependent if failed - dependent else {*()}
    marks = dict.fromkeys(exercise.properties, PASSED)
    return marks | dict.fromkeys(unsure, UNKNOWN) | dict.fromkeys(failed, FAILED)


def _opened(exercise: Exercise, attempted: Attempted) -> tuple[Observed, str]:
    """Unpack the replies; any but one of each rank in each case is a reason to fail."""
    observed: Observed = []
    for case, replies in zip(exercise.cases, attempted.replies, strict=False):
        try:
            ranks = [packing.unpack(reply) for reply in replies]
        except (TypeError, ValueError) as error:
            return observed, f"Smallest failing case: {case}\n  the reply is {error}"
        if len(ranks) != num_ranks(exercise, case):
            return observed, f"Smallest failing case: {case}\n  replies: {len(ranks)}"
        observed.append((case, ranks))
    if not attempted.stopped and len(observed) < len(exercise.cases):
        return observed, f"Smallest failing case: {exercise.cases[len(observed)]}\n  no reply"
    return observed, attempted.stopped


def _find(judge_one: Judge, case: Case, ranks: list[Any]) -> Finding | None:
    """Judge one property; an error of its judge is a finding, too."""
    try:
        return judge_one(case, ranks)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
        got = f"something else, which cannot be compared ({error})"
        return Unjudged(case.title, "what the exercise asks for", got, error=error)


def num_ranks(exercise: Exercise, case: Case) -> int:
    """Return the number of ranks on which the case runs."""
    return 1 if exercise.pure else case.world_size


def _reason(exercise: Exercise, findings: dict[str, tuple[Case, Finding]]) -> str:
    """Show the finding in the smallest case, and there the one of the first property."""
    if not findings:
        return ""
    found = [findings[name] for name in exercise.properties if name in findings]
    case, finding = min(found, key=lambda each: exercise.cases.index(each[0]))
    rows = {"given": finding.given, "expected": finding.expected, "got": finding.got}
    if finding.advice:
        rows["try"] = finding.advice
    shown = [f"  {key:8}  {text[:MAX_TEXT]}" for key, text in rows.items()]
    return "\n".join([f"Smallest failing case: {case}", *shown])
