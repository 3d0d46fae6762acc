"""What one rank does, in order, as a program that can be played elsewhere: computing, communications, waitings.

A communication for which nobody waits in words was waited for all the same when what it brings was first used: torch's
DDP waits in C++, and its next operation on the gradients tells. Where there are words, they count.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from . import flops

Entry = dict[str, Any]  # the fields of a trace.Event
OUTSIDE = "compute"  # what computing is called outside all spans


class Program:
    """The steps of one rank; a `ledger.Ledger` tells it what happens."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.steps: list[Entry] = []
        self._spans: list[str] = [OUTSIDE]
        self.flops = 0  # counted so far
        self._before = 0  # of those, counted before the last step
        self._since = time.perf_counter()
        self._in_flight: dict[int, list[tuple[int, int]]] = {}  # number -> first and last address of what it brings
        self._supposed: dict[int, Entry] = {}  # waitings that a use of what was brought implies

    def compute(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operation of torch has run."""
        self.flops += flops.counted(func, args, kwargs, result)

    def issue(self, entry: Entry, outputs: list[Tensor]) -> None:
        """A communication begins, which will fill `outputs`; its number goes into the entry."""
        self.compute_ends(entry["start"])
        entry["number"] = number = len(self.steps)
        self.steps.append(entry)
        self._in_flight[number] = [span for span in map(_span, outputs) if span[0] < span[1]]

    def wait(self, number: int, start: float) -> None:
        """The rank has waited since `start` for the communication of that number, the first time it did."""
        if number in self._supposed:
            self._supposed.pop(number).clear()
        elif self._in_flight.pop(number, None) is None:
            return
        self._waiting(number, start)

    def use(self, arguments: Any) -> None:
        """The rank uses these arguments: it has waited for whatever was to bring them, unless it says so later."""
        if self._in_flight:
            spans = [_span(x) for x in _tensors(arguments)]
            for number in [number for number, theirs in self._in_flight.items() if _meet(spans, theirs)]:
                del self._in_flight[number]
                self._supposed[number] = self._waiting(number, time.perf_counter())

    def enter(self, span: str) -> None:
        """What is computed from now on belongs to that span."""
        self.compute_ends(time.perf_counter())
        self._spans.append(span)

    def leave(self) -> None:
        """The span entered last ends."""
        self.compute_ends(time.perf_counter())
        self._spans.pop()

    def compute_ends(self, now: float) -> None:
        """Note what was computed since the last step, if anything was."""
        if self.flops > self._before:
            self._step("compute", self._spans[-1], self._since, now, flops=self.flops - self._before)
        self._before, self._since = self.flops, now

    def _waiting(self, number: int, start: float) -> Entry:
        self.compute_ends(start)
        self._since = time.perf_counter()
        return self._step("idle", "waiting", start, self._since, number=number)

    def _step(self, kind: str, op: str, start: float, end: float, **more: Any) -> Entry:
        entry = {"rank": self.rank, "kind": kind, "op": op, "group": (self.rank,), "nbytes": 0}
        self.steps.append({**entry, "start": start, "end": end, **more})
        return self.steps[-1]


def _tensors(arguments: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments; lists hold them too."""
    for each in arguments:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _span(x: Tensor) -> tuple[int, int]:
    """The addresses at which a tensor begins and ends, gaps included."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.element_size() if x.numel() else x.data_ptr()


def _meet(ours: list[tuple[int, int]], theirs: list[tuple[int, int]]) -> bool:
    return any(a < d and c < b for a, b in ours for c, d in theirs)
