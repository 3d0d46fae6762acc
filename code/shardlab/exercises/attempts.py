"""Run a learner's function in every case, on real ranks, within limits of time, memory and output.

The limits hold for each rank. They are for mistakes, such as an endless loop: a function that means
to get around them can.
"""

import inspect
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from itertools import groupby
from pathlib import Path
from typing import Any, cast

from shardlab import comm, launch
from shardlab.launch import travel

from . import packing
from .checker import Attempt, Attempted, Case, Exercise, Report, describe, judge, num_ranks
from .output import Ends

TOGETHER = 10.0  # s for all cases of one world size; the launcher sees a deadlock after about 3 s
ALONE = 5.0  # s for a case
MEMORY = 1 << 30  # bytes that a rank may allocate
MAX_LINES = 16  # of a rank's report
STACKS = (8, 4)  # lines of each stack in a longer report, and in one that is too long even so
MAX_WIDTH = 300  # characters of a line
# Lines of our own in a rank's report, which the learner need not see.
OURS = ('  File "shardlab/exercises/', '  File "shardlab/ranks/observe/ledger.py')


def check(exercise: Exercise, function: Any) -> Report:
    """Run the function in every case and judge it; return within a minute whatever it does.

    Errors: RuntimeError under torchrun or mpiexec, where a hang could not be ended.
    """
    printed = Ends(sys.stdout)
    try:
        with redirect_stdout(cast(Any, printed)):
            attempted = observe(exercise, function)
    finally:
        printed.finish()
    return judge(exercise, attempted)


def observe(exercise: Exercise, function: Any) -> Attempted:
    """Run all cases; return what the ranks observed, and why the function stopped, if it did."""
    if launch.already_a_rank():
        raise RuntimeError("check starts its own ranks; call it without torchrun or mpiexec")
    trouble = _unfit(function)
    if trouble:
        return Attempted(stopped=trouble)
    broken = unready(exercise)
    if broken:
        return Attempted(broken=broken)
    replies: list[list[str]] = []
    note = _note(function)
    for _, same_size in groupby(exercise.cases, lambda case: num_ranks(exercise, case)):
        cases = list(same_size)
        limit = min(TOGETHER, ALONE * len(cases))
        begin = time.monotonic()
        try:
            replies += _run(exercise, function, cases, limit)
        except launch.RankError as error:
            together = f" together with the other {len(cases) - 1}" * (len(cases) > 1)
            report = _late(begin, limit, together) + shorten(str(error))
            found, stopped = _one_by_one(exercise, function, cases, report)
            return Attempted(replies + found, stopped, note)
    return Attempted(replies, "", note)


def _one_by_one(
    exercise: Exercise, function: Any, cases: Sequence[Case], report: str
) -> tuple[list[list[str]], str]:
    """Run each case alone, up to the first that fails: the launcher's report names no case."""
    replies: list[list[str]] = []
    case = cases[-1]
    end = time.monotonic() + TOGETHER
    for each in cases if len(cases) > 1 else ():
        begin = time.monotonic()
        if begin > end:
            break
        try:
            replies += _run(exercise, function, [each], ALONE)
        except launch.RankError as error:
            case = each
            report = _late(begin, ALONE) + shorten(str(error))
            break
    return replies, f"Smallest failing case: {case}\n{report}"


def _late(begin: float, limit: float, together: str = "") -> str:
    """Say in a line of its own that a run which began at `begin` has met its limit."""
    if time.monotonic() - begin < limit:
        return ""
    return f"The case{together} takes longer than {limit:g} s, which is the limit.\n"


def _run(exercise: Exercise, function: Any, cases: Sequence[Case], limit: float) -> list[list[str]]:
    """Run several cases that need the same number of ranks, in one launch; return their replies."""
    size = num_ranks(exercise, cases[0])
    arguments = exercise.attempt, function, cases
    by_rank = launch.run(_attempt_all, *arguments, world_size=size, timeout=limit)
    return [list(ranks) for ranks in zip(*by_rank, strict=True)]


def _attempt_all(
    group: comm.Group, attempt: Attempt, function: Any, cases: Sequence[Case]
) -> list[str]:
    limit_memory(MEMORY)
    replies = []
    for case in cases:
        part = comm.split(group, case.group_size) if case.group_size else group
        replies.append(packing.pack(attempt(function, part, case, group.rank())))
    return replies


def unready(exercise: Exercise) -> str:
    """Say why no function could be tried; an empty string where nothing is in the way.

    As many ranks start as the largest case needs. The learner's time begins when the helper has
    imported the exercise.
    """
    most = max(num_ranks(exercise, case) for case in exercise.cases)
    try:
        launch.run(_ready, exercise.attempt, world_size=most)
    except Exception as error:
        return f"  cause     no ranks can start: {shorten(str(error)) or repr(error)}"
    return ""


def _ready(group: comm.Group, attempt: Attempt) -> None:
    """Do nothing, on a rank."""


def limit_memory(spare: int) -> None:
    """Let this process allocate `spare` bytes more than it has; without effect beside Linux."""
    if sys.platform != "linux":
        return
    import resource

    data = int(Path("/proc/self/statm").read_text().split()[5])  # pages, see proc(5)
    limit = data * resource.getpagesize() + spare
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


# ---- what is wrong with a function ---------------------------------------------------------------


def _unfit(function: Any) -> str:
    """Say why `function` cannot be run on ranks; an empty string if it can."""
    if not callable(function):
        return f"  expected  a function\n  got       {describe(function)}"
    try:
        travel.packed_call(function, ())
    except TypeError as error:
        return str(error)
    return ""


def _note(function: Callable[..., Any]) -> str:
    """Say what a function returns that returns before it has run; else an empty string."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "write def, not async def: a call of this function runs none of its lines"
    if inspect.isgeneratorfunction(function):
        return "return the result: with yield, a call of this function runs none of its lines"
    return ""


def shorten(report: str) -> str:
    """Drop the checker's own lines from a launcher's report, and cut stacks, lines, and the rest.

    The ends of a stack stay, and the error below it, which says what went wrong.
    """
    kept: list[str] = []
    ours = False
    for line in report.splitlines():
        ours = line.startswith(OURS) or (ours and line.startswith("    "))
        if not ours:
            kept.append(line[:MAX_WIDTH])
    for most in STACKS:
        if len(kept) > MAX_LINES:
            parts = groupby(kept, lambda line: line.startswith("  "))
            kept = [line for stack, lines in parts for line in _ends([*lines], stack, most)]
    return "\n".join(kept if len(kept) <= MAX_LINES else [*kept[:MAX_LINES], "..."])


def _ends(lines: list[str], stack: bool, most: int) -> list[str]:
    """Return the ends of a stack that has more than `most` lines, and all of anything else."""
    half = most // 2
    if not stack or len(lines) <= most + 1:
        return lines
    return [*lines[:half], "  ...", *lines[-half:]]
