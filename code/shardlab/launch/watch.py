"""Watch a run: show what ranks print, receive what they return, notice failures and deadlocks."""

import re
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from .job import GRACE, Job, label
from .local import Rank
from .progress import Progress
from .report import Outcome, mismatch
from .state import Message, Signs, Whereabouts

TICK = 0.5  # seconds between two checks whether any rank moves
QUIET_TICKS = 4  # checks in a row without a move, while every rank waits, that make a deadlock
MAX_HELD = 256 * 2**20  # bytes that a rank may print before an ordered run shows them
PATIENCE = 5.0  # seconds for every rank to say where it is; only one that a call holds needs more


class Watch:
    """One run, from the start of its ranks to its outcome."""

    def __init__(self, ordered: bool) -> None:
        self.ranks: list[Rank] = []
        self.ordered = ordered
        self.verdict = ""
        self.open_outputs: dict[Any, Rank] = {}
        self.progress = Progress()
        self.quiet_ticks = 0
        self.signs: dict[int, Signs | None] = {}

    def add_ranks(self, job: Job) -> list[Rank]:
        """Make the job's ranks and return them; on an error `close` knows those that were made.

        A process that holds many ranks labels what each of them prints.
        """
        for number in range(job.world_size):
            self.ranks.append(Rank(number, "" if job.hosted else label(number)))
        return self.ranks

    def see_through(self, job: Job) -> None:
        """Send out the job; return when every rank is done, one has failed, or none will go on."""
        self.open_outputs = {rank.output: rank for rank in self.ranks}
        for rank in self.ranks:
            rank.send(job)
        end = time.monotonic() + job.timeout + (PATIENCE if job.hosted else 0)
        next_tick = time.monotonic() + TICK
        while not self._settled():
            self._listen(min(next_tick, end))
            if any(rank.failure or rank.lost for rank in self.ranks):
                self._listen_for(GRACE, self._settled)
                break
            if time.monotonic() >= end:
                self.verdict = f"No result after {job.timeout:g} s."
                break
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK
                self.progress.show(all(rank.at_work for rank in self.ranks), job.ranks)
                if self._stands_still():
                    self.verdict = (
                        "Deadlock: every rank that has not finished waits, "
                        "and none has moved for seconds."
                    )
                    break
        if not self._succeeded():
            self.ask_where(PATIENCE)

    def _settled(self) -> bool:
        return all(rank.settled for rank in self.ranks)

    def _succeeded(self) -> bool:
        """Tell whether every rank has a result, and they agreed on every collective on the way."""
        if any(rank.result is None or rank.failure for rank in self.ranks):
            return False
        return not mismatch({rank.number: rank.calls for rank in self.ranks})

    def _listen(self, until: float) -> None:
        """Receive once what the ranks send or print."""
        channels: dict[Any, Rank] = {rank.channel: rank for rank in self.ranks if not rank.lost}
        pause = max(0.0, until - time.monotonic())
        for ready in wait([*channels, *self.open_outputs], pause):
            if ready in channels:
                channels[ready].receive()
                continue
            rank = self.open_outputs[ready]
            if not rank.read():
                del self.open_outputs[ready]
            elif not self.ordered or len(rank.text) > MAX_HELD:
                self._show(rank, rank.lines())

    def _listen_for(self, seconds: float, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not enough():
            self._listen(until)

    def _stands_still(self) -> bool:
        """Tell whether every rank has only waited for others, for several checks in a row."""
        before = self.signs
        self.signs = {rank.number: rank.answers.pop(Message.SIGNS, None) for rank in self.ranks}
        still = all(_unmoved(before.get(number), now) for number, now in self.signs.items())
        self.quiet_ticks = self.quiet_ticks + 1 if still else 0
        for rank in self.ranks:
            rank.ask(Message.SIGNS)
        return self.quiet_ticks >= QUIET_TICKS

    def ask_where(self, seconds: float) -> None:
        """Ask every rank where it is; return when all have answered, or after `seconds`."""
        asked = [rank for rank in self.ranks if not rank.lost]
        for rank in asked:
            rank.ask(Message.WHERE)

        def all_answered() -> bool:
            return all(Message.WHERE in rank.answers or rank.lost for rank in asked)

        self._listen_for(seconds, all_answered)

    def where(self) -> dict[int, Whereabouts | None]:
        """Return where each rank was when it was asked."""
        return {number: place for rank in self.ranks for number, place in rank.where.items()}

    def close(self) -> None:
        """Close the channels of the dead ranks, and show the rest of what they printed."""
        for rank in self.ranks:
            rank.close()
        for rank in self.ranks:
            lines = rank.lines(everything=True)
            self._show(rank, lines if rank.label else sorted(lines, key=_labelled))
        self.progress.hide()

    def _show(self, rank: Rank, lines: list[str]) -> None:
        text = "".join(f"{rank.label}{line}\n" for line in lines)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        if text:  # in the letters that this terminal has
            self.progress.hide()
            print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)

    def outcome(self, codes: list[int | None] | str) -> Outcome | None:
        """Describe what went wrong; None if nothing did. codes: what `Helper.end` returned."""
        if self._succeeded():
            return None
        if isinstance(codes, str):
            return Outcome(verdict=codes)
        where = [rank.answers.get(Message.WHERE, {}) for rank in self.ranks]
        return Outcome(
            failed={rank.number: rank.failure for rank in self.ranks if rank.failure},
            died={rank.number: codes[rank.number] for rank in self.ranks if rank.lost},
            where={number: place for answer in where for number, place in answer.items()},
            silent=[rank.number for rank in self.ranks if rank.silent],
            verdict=self.verdict,
        )


def _labelled(line: str) -> int:
    """Return the number in the label of a line."""
    found = re.match(r"\[rank (\d+)\] ", line)
    return int(found[1]) if found else -1


def _unmoved(before: Signs | None, now: Signs | None) -> bool:
    return before is not None and now is not None and now.unmoved_since(before)
