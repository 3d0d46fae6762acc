"""The watch over one run's ranks: shows what they print, takes what they return, notices when they fail or stop."""

import sys
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

from .local import Rank
from .progress import Progress
from .rank import Job
from .report import Outcome, mismatch
from .state import Signs

TICK = 0.5  # seconds between two looks at whether anything moves
QUIET_TICKS = 4  # so many looks without a move, while every rank waits, are a deadlock
GRACE = 0.3  # seconds that the other ranks get to report, too, after the first failure
PATIENCE = 5.0  # seconds for every rank to say where it is; only one that a call holds needs more


class Watch:
    """One run, from the first rank's start to the last word about it."""

    def __init__(self, ordered: bool) -> None:
        self.ranks: list[Rank] = []
        self.ordered, self.verdict = ordered, ""
        self.open_outputs: dict[Any, Rank] = {}
        self.progress = Progress()
        self.quiet_ticks = 0
        self.signs: dict[int, Signs | None] = {}

    def add_ranks(self, number: int) -> list[Rank]:
        for each in range(number):
            self.ranks.append(Rank(each))
        return self.ranks

    def see_through(self, job: Job) -> None:
        """Hand out the job and return when every rank has settled, one has failed, or nothing will come any more."""
        self.open_outputs = {rank.output: rank for rank in self.ranks}
        for rank in self.ranks:
            rank.tell(job)
        end, next_tick = time.monotonic() + job.timeout, time.monotonic() + TICK
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
                self.progress.tell(sum(rank.at_work for rank in self.ranks), len(self.ranks))
                if self._stands_still():
                    self.verdict = "Deadlock: every rank that has not finished waits, and none has moved for seconds."
                    break
        if not self._succeeded():
            self.ask_where(PATIENCE)

    def _settled(self) -> bool:
        return all(rank.settled for rank in self.ranks)

    def _succeeded(self) -> bool:
        """Whether every rank has a result, and they agreed on every collective on the way."""
        return all(rank.result is not None for rank in self.ranks) and not mismatch(
            {rank.number: rank.calls for rank in self.ranks}
        )

    def _listen(self, until: float) -> None:
        """Take what the ranks say or print, once."""
        talking: dict[Any, Rank] = {rank.channel: rank for rank in self.ranks if not rank.lost}
        pause = max(0.0, until - time.monotonic())
        for ready in wait([*talking, *self.open_outputs], pause):
            if ready in talking:
                talking[ready].hear()
            elif not self.open_outputs[ready].read():
                del self.open_outputs[ready]
            elif not self.ordered:
                self._show(self.open_outputs[ready], self.open_outputs[ready].lines())

    def _listen_for(self, seconds: float, enough: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not enough():
            self._listen(until)

    def _stands_still(self) -> bool:
        """Whether, for several looks in a row, every rank only waited for others."""
        before, self.signs = self.signs, {rank.number: rank.answers.pop("signs", None) for rank in self.ranks}
        still = all(
            now is not None and (then := before.get(number)) is not None and now.still_those_of(then)
            for number, now in self.signs.items()
        )
        self.quiet_ticks = self.quiet_ticks + 1 if still else 0
        for rank in self.ranks:
            rank.ask("signs")
        return self.quiet_ticks >= QUIET_TICKS

    def ask_where(self, seconds: float) -> None:
        """Ask every rank where it is, and give them so long to answer."""
        asked = [rank for rank in self.ranks if not rank.lost]
        for rank in asked:
            rank.ask("where")
        self._listen_for(seconds, lambda: all("where" in rank.answers or rank.lost for rank in asked))

    def close(self) -> None:
        """Hang up on the ranks, which are dead, and show the rest of what they printed."""
        for rank in self.ranks:
            rank.close()
        for rank in self.ranks:
            self._show(rank, rank.lines(everything=True))
        self.progress.hide()

    def _show(self, rank: Rank, lines: list[str]) -> None:
        text = "".join(f"[rank {rank.number}] {line}\n" for line in lines)
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        if text:  # in whatever letters this terminal has
            self.progress.hide()
            print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)

    def outcome(self, codes: list[int]) -> Outcome | None:
        """What went wrong, or None."""
        if self._succeeded():
            return None
        if not codes:
            verdict = "The helper process died, and the ranks with it (out of memory?). The next run starts a new one."
            return Outcome(verdict=verdict)
        where = {rank.number: rank.answers["where"] for rank in self.ranks if "where" in rank.answers}
        died = {rank.number: codes[rank.number] for rank in self.ranks if rank.lost}
        failed = {rank.number: rank.failure for rank in self.ranks if rank.failure}
        silent = [rank.number for rank in self.ranks if rank.number not in {*where, *died, *failed}]
        return Outcome(failed=failed, died=died, where=where, silent=silent, verdict=self.verdict)
