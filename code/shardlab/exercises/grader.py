"""Grade a handed-in file: its functions run in a process apart, and the verdict is made here.

The file is never imported in this process, and nothing that comes back is unpickled. The process
of the file leads a session of its own, with limits of time, memory, output and processes. When it
is left, its whole group is killed and its temporary files are deleted. All this is for mistakes. A
file that means harm can start a process that leaves the session, or kill this one: grade such files
in the container that `export container` writes, which ends with everything that runs in it.
"""

import codecs
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TextIO, cast

from shardlab.launch import surroundings

from . import attempts
from .checker import FAILED, PASSED, Attempted, Exercise, Report, judge
from .homework import Homework
from .output import Ends, quoted, standard

START, LOAD, EXERCISE = 120.0, 30.0, 90.0  # s, to import torch; to import the file; for an exercise
PAUSE = 0.1  # s between two looks whether a reply has come
LINGER = 1.0  # s for an exit status, and for the last lines
CHUNK = 1 << 16  # bytes
MAX_REPLY = 1 << 26  # bytes
MAX_REST = 64  # chunks that are read of what was printed before a reply
MAX_TEXT = 5000  # characters of a text from the room
MAX_PROCESSES = 1000  # more than ran when the room was opened
SERVE = (
    "import sys; sys.path[:] = {path!r}; from shardlab import launch; launch.warm(); "
    "from shardlab.exercises import room; room.serve({descriptor})"
)


class Lost(Exception):
    """The room cannot reply any more; the text says why."""


class Broken(Exception):
    """The grader itself cannot work; the text says why."""


class Unusable(Exception):
    """The file cannot be imported; the text says why."""


@dataclass(frozen=True)
class Verdict:
    """One exercise of a file: what was found, and why it did not pass."""

    exercise: Exercise
    report: Report | None  # None: the function did not run
    status: str  # passed, failed or not graded
    reason: str
    seconds: float

    @property
    def points(self) -> int:
        """All points of the exercise, or none."""
        return self.exercise.points if self.status == PASSED else 0


def grade(
    exercises: Sequence[Exercise],
    file: Path,
    printed: TextIO | None = None,
    homework: Homework | None = None,
) -> Iterator[Verdict]:
    """Check a file's functions, one exercise after another.

    printed: where the lines go that the file prints; None: standard output. homework: whose
    exercises these are, if not the book's. Errors: Unusable, Broken.
    """
    room = Room(file, printed or standard(), homework)
    try:
        for exercise in exercises:
            begun = time.monotonic()
            attempted = room.attempt(exercise)
            report = None if attempted is None else judge(exercise, attempted)
            seconds = time.monotonic() - begun
            if report is None:
                missing = f"{exercise.name}: {file} defines no {exercise.function}"
                yield Verdict(exercise, None, FAILED, missing, seconds)
            else:
                yield Verdict(exercise, report, report.verdict, report.reason, seconds)
    finally:
        room.close()


class Room:
    """The process of a file's functions; a new one where a function has destroyed it."""

    def __init__(self, file: Path, printed: TextIO, homework: Homework | None) -> None:
        self.file = file
        self.taught = homework and {"file": str(homework.file), "seed": homework.seed}
        self.printed = Ends(printed, quoted)
        self.opened = ExitStack()  # what must be closed again
        self.is_open = False

    def attempt(self, exercise: Exercise) -> Attempted | None:
        """Run the exercise's function; None if the file has none. Errors: Broken, Unusable.

        Where its ranks cannot start with the file, nor without it, that is the grader's fault.
        """
        reply = self._try(exercise)
        if reply.get("broken"):
            self.close()
            if broken := attempts.unready(exercise):
                return Attempted(broken=broken)
            reply = self._try(exercise)
        if "missing" in reply:
            return None
        stopped, note = str(reply.get("stopped", "")), str(reply.get("note", ""))
        if reply.get("broken"):
            stopped = f"Ranks can start without the file, but not with it.\n{reply['broken']}"
        return Attempted(reply.get("replies", ()), stopped[:MAX_TEXT], note[:MAX_TEXT])

    def _try(self, exercise: Exercise) -> dict[str, Any]:
        if not self.is_open:
            self._open()
        try:
            return self._ask(exercise.name, EXERCISE)
        except Lost as lost:
            self.close()
            return {"stopped": str(lost)}

    def _open(self) -> None:
        """Start the process, and let it import the file. Errors: Broken, Unusable."""
        try:
            self._start()
            self._ask(self.taught, START)
        except OSError as error:
            raise Broken(f"no process can start: {error}") from error
        except Lost as lost:
            raise Broken(f"before the file was read: {lost}") from None
        try:
            trouble = str(self._ask(str(self.file), LOAD).get("stopped", ""))
        except Lost as lost:
            trouble = str(lost)
        if trouble:
            raise Unusable(trouble[:MAX_TEXT])

    def _start(self) -> None:
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.most = _num_processes() + MAX_PROCESSES
        self.channel, theirs = socket.socketpair()
        self.opened.enter_context(self.channel)
        with theirs:
            folder = self.opened.enter_context(surroundings.temporary())
            serve = SERVE.format(path=sys.path, descriptor=theirs.fileno())
            self.process = subprocess.Popen(
                [sys.executable, "-c", serve],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": folder},
                start_new_session=True,
            )
        self.is_open = True
        self.output = self.opened.enter_context(cast(IO[bytes], self.process.stdout)).fileno()

    def _ask(self, request: Any, seconds: float) -> dict[str, Any]:
        """Send a request and return its reply. Errors: Lost, also if there is none in time."""
        received = bytearray()
        end = time.monotonic() + seconds
        try:
            self.channel.sendall(json.dumps(request).encode() + b"\n")
            while not received.endswith(b"\n") and len(received) <= MAX_REPLY:
                self._check(end, seconds)
                ended = self.process.poll() is not None
                if self._wait():
                    chunk = self.channel.recv(CHUNK)
                    received += chunk
                    ended = not chunk
                if ended:
                    raise Lost(self._end())
        except OSError:  # it has ended before it had read the request
            raise Lost(self._end()) from None
        self._show_rest()
        try:
            reply = json.loads(received)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise Lost("The file has written something into the grader's channel.")
        return reply

    def _check(self, end: float, seconds: float) -> None:
        """Hold the room to its limits. Errors: Lost."""
        if time.monotonic() > end:
            raise Lost(f"The file has not replied after {seconds:g} s, which is the limit.")
        if _num_processes() > self.most:
            raise Lost(f"The file has started more than {MAX_PROCESSES} processes, the limit.")

    def _wait(self) -> bool:
        """Show what the room prints; return whether a part of a reply has come."""
        watched = self.channel.fileno(), self.output
        ready, _, _ = select.select(watched, [], [], PAUSE)
        if self.output in ready:
            self.printed.write(self.decode(os.read(self.output, CHUNK)))
        return self.channel.fileno() in ready

    def _show_rest(self, seconds: float = 0.0) -> None:
        """Show what was printed until now, or until nothing has come for some seconds."""
        for _ in range(MAX_REST):
            if not select.select([self.output], [], [], seconds)[0]:
                break
            if not (text := os.read(self.output, CHUNK)):
                break
            self.printed.write(self.decode(text))
        self.printed.finish()

    def _end(self) -> str:
        """Say how the file's process has ended."""
        try:
            status = self.process.wait(LINGER)
        except subprocess.TimeoutExpired:
            return "The file has closed the grader's channel."
        how = f"ended with exit status {status}"
        if status < 0:
            names = {each.value: each.name for each in signal.Signals}
            how = f"was ended by {names.get(-status, f'signal {-status}')}"
        return f"The file's process {how} before it had replied."

    def close(self) -> None:
        """Kill the process with its group, and delete its temporary files.

        Ranks have a launcher of their own, which ends with the process. Whoever prints holds the
        output open, so its end says that nothing runs any more.
        """
        if self.is_open:
            with suppress(OSError):  # nothing is left of the group
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self._show_rest(LINGER)
        self.is_open = False
        self.opened.close()


def _num_processes() -> int:
    """Count the processes of this machine or container; 0 where there is no /proc."""
    with suppress(OSError):
        return sum(name.isdecimal() for name in os.listdir("/proc"))
    return 0
