"""Exercise: write a file that survives a kill, at every moment at which a kill can be provoked.

A child of this process calls the learner's function and is killed: before each operation on a name
in the folder, which an audit hook hears (https://peps.python.org/pep-0578/), and in the middle of
writing, by a limit on the size of files, after which the kernel sends SIGXFSZ
(https://man7.org/linux/man-pages/man2/setrlimit.2.html).
"""

import os
import resource
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, on_each_rank

MAX_OPERATIONS = 12  # on names in the folder: a save needs two
FINISHED, RAISED = 0, 7  # exit codes of a child that was not killed; a signal's are negative
Hook = Callable[[str, tuple[Any, ...]], None]  # the event, and its arguments


class Given(NamedTuple):
    """The file that exists before, and what is to be saved."""

    old: bytes | None
    new: bytes


@dataclass
class Saved:
    """The file's content after a kill at each moment, by the moment in words; None: no file."""

    after_kill: dict[str, bytes | None] = field(default_factory=dict)
    after_next: dict[str, bytes | None] = field(default_factory=dict)  # another save, not killed
    unkilled: bytes | None = None


def attempt(function: Callable[..., Any], group: comm.Group | None, case: Case, rank: int) -> Saved:
    """Save once without a kill, and then with a kill at every moment."""
    seen = Saved()
    given = case.given
    with tempfile.TemporaryDirectory() as folder:
        path = _prepared(folder, given.old)
        _in_child(function, given.new, path)
        seen.unkilled = _content(path)
    for number in range(MAX_OPERATIONS):
        for written in (None, 0, len(given.new) // 2):
            with tempfile.TemporaryDirectory() as folder:
                path = _prepared(folder, given.old)
                if _in_child(function, given.new, path, number, written) >= 0:  # it finished
                    if written is None:
                        return seen  # there are no more operations
                    continue
                moment = _moment(number, written, len(given.new))
                seen.after_kill[moment] = _content(path)
                _in_child(function, given.new, path)
                seen.after_next[moment] = _content(path)
    return seen


def _moment(number: int, written: int | None, size: int) -> str:
    """Describe the moment of a kill."""
    operation = f"operation {number + 1} on a name in the folder"
    if written is None:
        return f"before {operation}"
    return f"after {operation}, {written} of {size} bytes written"


def _prepared(folder: str, old: bytes | None) -> Path:
    path = Path(folder).resolve() / "model"
    if old is not None:
        path.write_bytes(old)
    return path


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _in_child(
    function: Callable[..., Any],
    data: bytes,
    path: Path,
    number: int | None = None,
    written: int | None = None,
) -> int:
    """Save in a child, killed at a moment if one is given; return its exit code."""
    child = os.fork()
    if child == 0:
        _save_and_leave(function, data, path, number, written)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _save_and_leave(
    function: Callable[..., Any], data: bytes, path: Path, number: int | None, written: int | None
) -> NoReturn:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it, and raises
        if number is not None:
            sys.addaudithook(_killer(str(path.parent), number, written))
        function(data, str(path))
    except BaseException:
        os._exit(RAISED)
    os._exit(FINISHED)


def _killer(folder: str, number: int, written: int | None) -> Hook:
    """Return a hook that ends this process before operation `number` on a name in the folder.

    written: let the operation pass instead, and end the process when a file exceeds this size.
    """
    left = [number]

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if any(_is_in(folder, each) for each in arguments):
            if left[0] == 0 and written is None:
                os.kill(os.getpid(), signal.SIGKILL)
            if left[0] == 0 and written is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (written, written))
            left[0] -= 1

    return hear


def _is_in(folder: str, argument: Any) -> bool:
    if isinstance(argument, bytes):
        return os.fsencode(folder) in argument
    return isinstance(argument, str | os.PathLike) and folder in str(argument)


@on_each_rank
def writes_the_new(case: Case, rank: int, seen: Saved) -> Finding | None:
    """Ask that a save without a kill writes the new file."""
    if seen.unkilled == case.given.new:
        return None
    return Finding("a save without a kill", "the new file", _describe(case, seen.unkilled))


@Dependent
@on_each_rank
def survives(case: Case, rank: int, seen: Saved) -> Finding | None:
    """Ask that a kill leaves the old file or the new one."""
    for moment, content in seen.after_kill.items():
        if content not in (case.given.old, case.given.new):
            old = "no file" if case.given.old is None else "the old file"
            shown = _describe(case, content)
            return Finding(f"killed {moment}", f"{old}, or the new file", shown)
    return None


@Dependent
@on_each_rank
def saves_again(case: Case, rank: int, seen: Saved) -> Finding | None:
    """Ask that the save after a kill writes the new file."""
    for moment, content in seen.after_next.items():
        if content != case.given.new:
            given = f"killed {moment}; then saved again"
            return Finding(given, "the new file", _describe(case, content))
    return None


def _describe(case: Case, content: bytes | None) -> str:
    if content is None:
        return "no file"
    names = {case.given.old: "the old file", case.given.new: "the new file"}
    strange = f"a file of {len(content)} bytes, neither the old one nor the new one"
    return names.get(content, strange)


NEW = bytes(range(1, 251)) * 400  # 100 kB: more than any buffer of Python's files
EXERCISE = Exercise(
    name="failures.save",
    compare="shardlab.ranks.checkpoint.save",
    points=3,
    pure=True,
    cases=[
        Case(world_size=1, title="no file before", given=Given(None, b"0123456789")),
        Case(world_size=1, title="a longer file before", given=Given(b"the old file", b"new")),
        Case(world_size=1, title="a large file", given=Given(b"old", NEW)),
    ],
    attempt=attempt,
    properties={
        "without a kill the new file is there": writes_the_new,
        "a kill leaves the old file or the new one": survives,
        "after a kill the next save works": saves_again,
    },
)
