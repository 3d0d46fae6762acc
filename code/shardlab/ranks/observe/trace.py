"""Record what one rank does, in order, as a trace to replay: computing, communication, waits.

Torch's DDP waits in C++, where no wait is seen. If a communication has no wait of its own, the
first use of a tensor that it fills counts as one.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from torch import Tensor

from . import flops

Entry = dict[str, Any]  # the fields of a trace.Event
Addresses = tuple[int, int]  # the first address of a tensor, and the one after its last
OUTSIDE = "compute"  # the name of computing outside all spans


class RankTrace:
    """The trace of one rank, which a `ledger.Ledger` records."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.steps: list[Entry] = []
        self._spans: list[str] = [OUTSIDE]
        self.flops = 0  # so far
        self._flops_noted = 0  # of these, those in `steps` already
        self._noted_at = time.perf_counter()
        self._in_flight: dict[int, list[Addresses]] = {}  # number -> the tensors that it fills
        self._implied: dict[int, Entry] = {}  # number -> the wait that a use implied

    def compute(
        self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """Count the FLOPs of an operation that has run."""
        self.flops += flops.counted(func, args, kwargs, result)

    def issue(self, entry: Entry, outputs: list[Tensor]) -> None:
        """Note that a communication starts, which will fill `outputs`; number its entry."""
        self.note_compute(entry["start"])
        number = len(self.steps)
        entry["number"] = number
        self.steps.append(entry)
        filled = map(_addresses, outputs)
        self._in_flight[number] = [(begin, end) for begin, end in filled if begin < end]

    def wait(self, number: int, start: float) -> None:
        """Note that the rank has waited since `start` for a communication, unless it has before."""
        if number in self._implied:
            self._implied.pop(number).clear()
        elif self._in_flight.pop(number, None) is None:
            return
        self._note_wait(number, start)

    def use(self, arguments: Any) -> None:
        """Note a use of `arguments`, which implies a wait for the communications that fill them.

        An explicit `wait` later replaces the implied one.
        """
        if not self._in_flight:
            return
        used = [_addresses(x) for x in _tensors(arguments)]
        awaited = [number for number, filled in self._in_flight.items() if _overlap(used, filled)]
        for number in awaited:
            del self._in_flight[number]
            self._implied[number] = self._note_wait(number, time.perf_counter())

    def enter(self, span: str) -> None:
        """Enter a span, to which all computing belongs from now on."""
        self.note_compute(time.perf_counter())
        self._spans.append(span)

    def leave(self) -> None:
        """Leave the span that was entered last."""
        self.note_compute(time.perf_counter())
        self._spans.pop()

    def note_compute(self, now: float) -> None:
        """Note what was computed since the last step, if anything was."""
        new = self.flops - self._flops_noted
        if new:
            self._note("compute", self._spans[-1], self._noted_at, now, flops=new)
        self._flops_noted = self.flops
        self._noted_at = now

    def _note_wait(self, number: int, start: float) -> Entry:
        self.note_compute(start)
        self._noted_at = time.perf_counter()
        return self._note("idle", "waiting", start, self._noted_at, number=number)

    def _note(self, kind: str, op: str, start: float, end: float, **more: Any) -> Entry:
        entry = {"rank": self.rank, "kind": kind, "op": op, "group": (self.rank,), "nbytes": 0}
        self.steps.append({**entry, "start": start, "end": end, **more})
        return self.steps[-1]


def _tensors(arguments: Any) -> Iterator[Tensor]:
    """List the tensors among an operation's arguments, also those in lists."""
    for each in arguments:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _addresses(x: Tensor) -> Addresses:
    """Return the addresses at which a tensor begins and ends, gaps included."""
    begin = x.data_ptr()
    if not x.numel():
        return begin, begin
    strides = zip(x.shape, x.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in strides)  # place of the last number
    return begin, begin + (last + 1) * x.element_size()


def _overlap(used: list[Addresses], filled: list[Addresses]) -> bool:
    return any(one[0] < other[1] and other[0] < one[1] for one, other in product(used, filled))
