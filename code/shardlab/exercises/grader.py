"""Grade a handed-in file: its functions run in a room of processes, and the verdict is made here.

The file is never imported in this process, and nothing that comes from the room is unpickled. What
the room does is bounded: its time, the length of a reply, and the lines that are shown of what it
prints. When it is left, all its processes are ended and its temporary files are deleted.
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
from typing import Any, TextIO

from shardlab.launch import surroundings

from . import keeper
from .checker import FAILED, PASSED, Attempted, Exercise, Report, judge
from .homework import Homework
from .output import Ends, quoted, standard

START, LOAD, EXERCISE = 120.0, 30.0, 90.0  # s, to import torch; to import the file; for an exercise
LINGER = 1.0  # s for an exit status, after the room has fallen silent
PATIENCE = 10.0  # s for all processes of the room to end
CHUNK = 1 << 16  # bytes
MAX_REPLY = 1 << 26  # bytes
MAX_REST = 64  # chunks that are read of what was printed before a reply
MAX_TEXT = 5000  # characters of a text from the room
SIGNALLED = 128  # exit status of a process that a signal has ended, less the signal
SERVE = (
    "import sys; sys.path[:] = {path!r}; from shardlab import launch; launch.warm(); "
    "from shardlab.exercises import room; room.serve({descriptor})"
)


class Lost(Exception):
    """The room cannot reply any more; the text says why."""


class Broken(Exception):
    """The grader itself cannot work; the text says why."""


class NotReady(Exception):
    """No ranks can start for an exercise, also without the file; the text says why."""


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
    rooms = Rooms(file, printed or standard(), homework)
    try:
        for exercise in exercises:
            begun = time.monotonic()
            attempted = rooms.attempt(exercise)
            report = None if attempted is None else judge(exercise, attempted)
            seconds = time.monotonic() - begun
            if report is None:
                missing = f"{exercise.name}: {file} defines no {exercise.function}"
                yield Verdict(exercise, None, FAILED, missing, seconds)
            else:
                yield Verdict(exercise, report, report.verdict, report.reason, seconds)
    finally:
        rooms.close()


class Rooms:
    """One room after another: a function that has destroyed its room does not fail the others."""

    def __init__(self, file: Path, printed: TextIO, homework: Homework | None) -> None:
        self.file = file
        self.printed = printed
        self.homework = homework
        self.room: Room | None = None

    def attempt(self, exercise: Exercise) -> Attempted | None:
        """Run the exercise's function; None if the file has none. Errors: Broken, Unusable.

        Where its ranks could not start, a fresh room tells whether that is so without the file,
        and then tries once more: a file that ends its own helpers does not choose its verdict.
        """
        reply = self._ask(exercise.name)
        if reply.get("broken"):
            self.close()
            reply = self._ask(exercise.name, alone=True)
        if "missing" in reply:
            return None
        replies, note = reply.get("replies", ()), str(reply.get("note", ""))
        stopped = str(reply.get("stopped", "")) or str(reply.get("trouble", ""))
        broken = str(reply.get("broken", ""))
        return Attempted(replies, stopped[:MAX_TEXT], note[:MAX_TEXT], broken[:MAX_TEXT])

    def _ask(self, name: str, alone: bool = False) -> dict[str, Any]:
        """Return the reply of the open room, or of a new one that first does without the file."""
        try:
            tried = name if alone else ""
            self.room = self.room or Room(self.file, self.printed, self.homework, tried)
        except OSError as error:
            raise Broken(f"no process can start: {error}") from error
        except NotReady as broken:
            return {"broken": str(broken)}
        try:
            reply = self.room.ask(name, EXERCISE)
        except Lost as lost:
            self.close()
            return {"stopped": str(lost)}
        if alone and reply.get("broken"):
            self.close()
            cause = f"Ranks can start without the file, but not with it.\n{reply['broken']}"
            return {"stopped": cause}
        return reply

    def close(self) -> None:
        """End the room that is open."""
        if self.room is not None:
            self.room.close()
        self.room = None


class Room:
    """The processes of a file's functions, seen from outside.

    tried: an exercise whose ranks are started before the file is read. Errors: Broken, NotReady,
    Unusable.
    """

    def __init__(
        self, file: Path, printed: TextIO, homework: Homework | None, tried: str = ""
    ) -> None:
        self.printed = Ends(printed, quoted)
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.folders = ExitStack()
        folder = self.folders.enter_context(surroundings.temporary())
        self.channel, theirs = socket.socketpair()
        leash, self.leash = os.pipe()
        self.output, output = os.pipe()
        keeper.hide()
        keeper.adopt()
        self.spared = keeper.children()
        serve = SERVE.format(path=sys.path, descriptor=theirs.fileno())
        descriptors = leash, theirs.fileno()
        keep = sys.executable, "-I", keeper.__file__, *map(str, descriptors)
        self.keeper = subprocess.Popen(
            [*keep, sys.executable, "-c", serve],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": folder},
            start_new_session=True,
        )
        os.close(leash)
        os.close(output)
        theirs.close()
        taught = homework and {"file": str(homework.file), "seed": homework.seed}
        try:
            reply = self.ask({"homework": taught, "exercise": tried}, START)
        except Lost as lost:
            self.close()
            raise Broken(f"before the file was read: {lost}") from None
        except BaseException:
            self.close()
            raise
        if broken := reply.get("broken") or reply.get("trouble"):
            self.close()
            raise NotReady(broken)
        try:
            trouble = self.ask(str(file), LOAD).get("trouble")
        except Lost as lost:
            trouble = str(lost)
        except BaseException:
            self.close()
            raise
        if trouble:
            self.close()
            raise Unusable(str(trouble)[:MAX_TEXT])

    def ask(self, request: Any, seconds: float) -> dict[str, Any]:
        """Send a request and return its reply. Errors: Lost, also if there is none in time."""
        try:
            self.channel.sendall(json.dumps(request).encode() + b"\n")
        except OSError:
            raise Lost(self._end()) from None
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        line = b""
        parts = []
        while not line.endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0:
                raise Lost(f"The file has not replied after {seconds:g} s, which is the limit.")
            if not self._wait(left):
                continue
            try:
                line = self.channel.recv(CHUNK)
            except ConnectionResetError:  # it ended before it had read the request
                line = b""
            parts.append(line)
            if not line:
                raise Lost(self._end())
            if len(parts) * CHUNK > MAX_REPLY:
                break
        self._show_rest()
        try:
            reply = json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict):
            raise Lost("The file has written something into the grader's channel.")
        return reply

    def _wait(self, seconds: float) -> bool:
        """Show what the room prints; return whether a part of a reply has come."""
        watched = self.channel.fileno(), self.output
        ready, _, _ = select.select(watched, [], [], seconds)
        if self.output in ready:
            self.printed.write(self.decode(os.read(self.output, CHUNK)))
        return self.channel.fileno() in ready

    def _show_rest(self) -> None:
        """Show what was printed before the reply."""
        for _ in range(MAX_REST):
            if not select.select([self.output], [], [], 0)[0]:
                break
            self.printed.write(self.decode(os.read(self.output, CHUNK)))
        self.printed.finish()

    def _end(self) -> str:
        """Say how the file's process has ended."""
        try:
            status = self.keeper.wait(LINGER)
        except subprocess.TimeoutExpired:
            return "The file has closed the grader's channel."
        status = SIGNALLED - status if status < 0 else status
        how = f"ended with exit status {status}"
        if status > SIGNALLED:
            with suppress(ValueError):
                how = f"was ended by {signal.Signals(status - SIGNALLED).name}"
        return f"The file's process {how} before it had replied."

    def close(self) -> None:
        """End all processes of the room, and delete their temporary files."""
        os.close(self.leash)
        try:
            self.keeper.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.keeper.kill()
            self.keeper.wait()
        keeper.end_children(self.spared)
        keeper.adopt(orphans=False)
        self._show_rest()
        self.channel.close()
        os.close(self.output)
        self.folders.close()
