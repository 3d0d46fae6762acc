"""Ranks on this machine: the helper process as the launcher sees it, and the watch over one run's ranks."""

import os
import pickle
import socket
import time
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from .helper import start_python
from .rank import ON_LINUX, Call, Failure, Job
from .report import Outcome, mismatch

TICK = 0.5  # seconds between two looks at whether anything moves
QUIET_TICKS = 4  # so many looks without a move, while every rank waits, are a deadlock
GRACE = 0.3  # seconds that the other ranks get to report, too, after the first failure


class Helper:
    """The launcher's end of the helper process."""

    current: "Helper | None" = None

    def __init__(self) -> None:
        self.owner, (self.channel, theirs) = os.getpid(), socket.socketpair()
        fork = ON_LINUX and os.environ.get("SHARDLAB_FORK") != "0"
        self.process = start_python(f"helper.serve({theirs.fileno()}, {fork})", [theirs.fileno()])
        theirs.close()

    @classmethod
    def running(cls) -> "Helper":
        """The helper of this process, started anew if it is gone."""
        if cls.current is None or cls.current.owner != os.getpid() or cls.current.process.poll() is not None:
            cls.drop()
            cls.current = cls()
        return cls.current

    @classmethod
    def drop(cls) -> None:
        """Hang up; the helper notices, kills its ranks and leaves."""
        if cls.current is not None:
            cls.current.channel.close()
            cls.current = None

    def start(self, world_size: int) -> list["Rank"]:
        ranks, theirs = [], []
        for number in range(world_size):
            (mine, talk), (output, write) = socket.socketpair(), os.pipe()
            ranks.append(Rank(number, Connection(mine.detach()), output))
            theirs += [talk.detach(), write]
        try:
            socket.send_fds(self.channel, [b"run"], theirs)
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        return ranks

    def end(self) -> list[int]:
        """Kill the ranks and return their exit codes."""
        try:
            self.channel.sendall(b"end")
            codes: list[int] = pickle.loads(self.channel.recv(1 << 16))
            return codes
        except (OSError, EOFError):
            self.drop()
            return []
        except BaseException:  # a second Ctrl-C
            self.drop()
            raise


class Rank:
    """What the launcher knows of one rank."""

    def __init__(self, number: int, channel: Connection, output: int) -> None:
        self.number, self.channel, self.output = number, channel, output
        self.text = b""
        self.result: bytes | None = None
        self.calls: list[Call] = []
        self.failure: list[Failure] | None = None
        self.lost = False
        self.answers: dict[str, Any] = {}

    @property
    def settled(self) -> bool:
        return self.result is not None or self.failure is not None or self.lost

    def ask(self, question: str) -> None:
        self.answers.pop(question, None)
        self.tell(question)

    def tell(self, message: "str | Job") -> None:
        try:
            self.channel.send(message)
        except OSError:
            self.lost = True

    def hear(self) -> None:
        """Take one message."""
        try:
            kind, content = self.channel.recv()
        except (EOFError, OSError):
            self.lost = True
            return
        if kind == "done":
            self.result, self.calls = content
        elif kind == "failed":
            self.failure = content
        else:
            self.answers[kind] = content

    def read(self) -> bool:
        """Take some of what the rank has printed; False at the end."""
        some = os.read(self.output, 1 << 16)
        self.text += some
        return bool(some)

    def lines(self, everything: bool = False) -> list[str]:
        """The complete lines printed since the last call."""
        whole, newline, rest = self.text.rpartition(b"\n")
        self.text = b"" if everything else rest
        text = whole + newline + (rest if everything else b"")
        return text.decode(errors="replace").splitlines()

    def close(self) -> None:
        self.channel.close()
        while self.read():  # the rank is dead, so this ends
            pass
        os.close(self.output)


class Watch:
    """Watches the ranks of one run: shows what they print, takes what they return, notices when they fail or stop."""

    def __init__(self, ranks: list[Rank], ordered: bool) -> None:
        self.ranks, self.ordered, self.verdict = ranks, ordered, ""
        self.open_outputs = {rank.output: rank for rank in ranks}
        self.quiet, self.used = 0, 0.0

    def see_through(self, job: Job, timeout: float) -> None:
        """Hand out the job and return when every rank has settled, one has failed, or nothing will come any more."""
        for rank in self.ranks:
            rank.tell(job)
        end, next_tick = time.monotonic() + timeout, time.monotonic() + TICK
        while not all(rank.settled for rank in self.ranks):
            self._listen(min(next_tick, end))
            if any(rank.failure or rank.lost for rank in self.ranks):
                self._listen_for(GRACE, lambda: all(rank.settled for rank in self.ranks))
                break
            if time.monotonic() >= end:
                self.verdict = f"No result after {timeout:g} s."
                break
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK
                if self._stands_still():
                    self.verdict = "Deadlock: every rank waits, and none has moved for seconds."
                    break
        if self._disagree() or not all(rank.result is not None for rank in self.ranks):
            self._ask_where()

    def _listen(self, until: float) -> None:
        """Take what the ranks say or print, once."""
        talking: dict[Any, Rank] = {rank.channel: rank for rank in self.ranks if not rank.lost}
        pause = max(0.0, until - time.monotonic())
        for ready in wait([*talking, *self.open_outputs], pause):
            if isinstance(ready, int):
                rank = self.open_outputs[ready]
                if not rank.read():
                    del self.open_outputs[ready]
                elif not self.ordered:
                    _show(rank.number, rank.lines())
            else:
                talking[ready].hear()

    def _listen_for(self, seconds: float, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not enough():
            self._listen(until)

    def _stands_still(self) -> bool:
        """Whether, for several looks in a row, every rank waited to be woken and used no processor time."""
        answers = [rank.answers.get("stirs") for rank in self.ranks]
        used = sum(answer for answer in answers if answer is not None)
        still = None not in answers and used - self.used < 0.01 * len(answers)
        self.quiet, self.used = self.quiet + 1 if still else 0, used
        for rank in self.ranks:
            rank.ask("stirs")
        return self.quiet >= QUIET_TICKS

    def _disagree(self) -> bool:
        return bool(mismatch({rank.number: rank.calls for rank in self.ranks}))

    def _ask_where(self) -> None:
        asked = [rank for rank in self.ranks if not rank.lost]
        for rank in asked:
            rank.ask("where")
        self._listen_for(2.0, lambda: all("where" in rank.answers or rank.lost for rank in asked))

    def show_rest(self) -> None:
        for rank in self.ranks:
            _show(rank.number, rank.lines(everything=True))

    def outcome(self, codes: list[int]) -> Outcome | None:
        """What went wrong, or None."""
        where = {rank.number: rank.answers["where"] for rank in self.ranks if "where" in rank.answers}
        if not where and not any(rank.lost for rank in self.ranks):
            return None
        if not codes:
            verdict = "The helper process died, and the ranks with it (out of memory?). The next run starts a new one."
            return Outcome(verdict=verdict)
        died = {rank.number: codes[rank.number] for rank in self.ranks if rank.lost}
        failed = {rank.number: rank.failure for rank in self.ranks if rank.failure}
        return Outcome(failed=failed, died=died, where=where, verdict=self.verdict)


def _show(rank: int, lines: list[str]) -> None:
    if lines:
        print("".join(f"[rank {rank}] {line}\n" for line in lines), end="", flush=True)
