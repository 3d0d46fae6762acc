"""What shows that a function is right: numbers, the tensors each rank ends with, what it has sent, what it holds."""

import gc
import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardlab import trace
from shardlab.costs import collectives

from .checker import Case, Finding, Judge

Named = dict[str, Tensor | None]
SHOWN = 4  # numbers of a tensor that a report shows
EXACT = 1e-10  # relative and absolute; float64, sums in any order
ROUNDING = 1e-9  # relative; of formulas
LARGE = 10**6  # numbers from here on are told by their exponent


# ---- numbers ---------------------------------------------------------------------------------------------------------


def call(function: Callable[..., Any], group: Any, case: Case, rank: int) -> Any:
    """An attempt of a pure exercise: the function of the case's arguments, by position; a number, or parts by name."""
    result = function(*case.given.values())
    if isinstance(result, Mapping):
        return {str(name): _number(value) for name, value in result.items()}
    return _number(result)


def _number(value: Any) -> float | str:
    """As a float, or in words what it is instead."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return f"{value!r:.60}, a {type(value).__name__}"


def arguments(case: Case) -> str:
    """What the function was given: batch=2, ..."""
    return ", ".join(f"{name}={_brief(value)}" for name, value in case.given.items())


def _brief(value: Any) -> str:
    large = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) >= LARGE
    return f"{value:g}" if large else repr(value)


def is_number(expected: Callable[..., float], where: Callable[[Mapping[str, Any]], bool] = lambda given: True) -> Judge:
    """The result is that of `expected`, for the cases `where` this is asked."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        if not where(case.given):
            return None
        right = expected(*case.given.values())
        close = isinstance(seen[0], float) and math.isclose(seen[0], right, rel_tol=ROUNDING)
        return None if close else Finding(arguments(case), _told_number(right), _told_number(seen[0]))

    return judge


def is_part(name: str, expected: Callable[..., Mapping[str, float]]) -> Judge:
    """The part of that name is that of `expected`."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        right = float(expected(*case.given.values())[name])
        got = seen[0].get(name) if isinstance(seen[0], dict) else None
        if isinstance(got, float) and math.isclose(got, right, rel_tol=ROUNDING):
            return None
        return Finding(arguments(case), f"{name}: {_told_number(right)}", f"{name}: {_told_number(got)}")

    return judge


def has_parts(*names: str) -> Judge:
    """The result is a dict of numbers under these names."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        parts = seen[0] if isinstance(seen[0], dict) else {}
        if set(parts) == set(names) and all(isinstance(value, float) for value in parts.values()):
            return None
        return Finding(arguments(case), f"numbers called {', '.join(names)}", f"{seen[0]}")

    return judge


def _told_number(value: Any) -> str:
    return f"{value:,.10g}" if isinstance(value, float) else str(value)


# ---- tensors ---------------------------------------------------------------------------------------------------------


def gradients(model: nn.Module) -> Named:
    """Copies of the gradients by name of parameter; a tied parameter stands once."""
    named = model.named_parameters()
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in named}


def nbytes(tensors: Mapping[str, Tensor | None]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values() if tensor is not None)


def first_difference(expected: Tensor, got: Tensor | None) -> int | None:
    """Where they differ first, counted along the flat tensor; None: nowhere."""
    if got is None or got.shape != expected.shape:
        return 0
    wrong = ~torch.isclose(got.to(expected.dtype), expected, rtol=EXACT, atol=EXACT).flatten()
    return int(wrong.nonzero()[0]) if wrong.any() else None


def show(tensor: Tensor | None, place: int = 0) -> str:
    """A few of its numbers, that at `place` among them: [1, 2.5, ...]."""
    if tensor is None:
        return "None"
    first = place if tensor.numel() > SHOWN else 0
    numbers = tensor.flatten()[first : first + SHOWN].tolist()
    before, after = "..., " * (first > 0), ", ..." * (first + SHOWN < tensor.numel())
    return f"[{before}{', '.join(f'{number:.4g}' for number in numbers)}{after}]"


# ---- the wire --------------------------------------------------------------------------------------------------------


def sends_one_all_reduce(payload: Callable[[Case], int]) -> Judge:
    """No rank sends more bytes than an all-reduce of so many, on a ring, must."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        size, peers = payload(case), len(case.members(0))
        budget = collectives.ring_all_reduce(size, peers).sent
        for rank, mine in enumerate(seen):
            sent = sum(trace.wire_bytes(event) for event in mine.events)
            if sent > budget + 0.5:
                given = f"{size} bytes of gradients on each of {peers} ranks"
                return Finding(given, f"at most {budget:.0f} bytes sent by a rank", _told(rank, sent, mine.events))
        return None

    return judge


def sends_one_message(case: Case, seen: list[Any]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if len(mine.events) > 1:
            sent = sum(trace.wire_bytes(event) for event in mine.events)
            return Finding(case.title, "one message", _told(rank, sent, mine.events))
    return None


def _told(rank: int, sent: float, events: list[trace.Event]) -> str:
    verbs = ", ".join(f"{count} x {verb}" for verb, count in Counter(event.op for event in events).items())
    return f"{sent:.0f} bytes sent by rank {rank} in {len(events)} messages ({verbs})"


# ---- memory ----------------------------------------------------------------------------------------------------------


class Held(TorchDispatchMode):
    """Notes what torch's operations make while it is open, and tells how many bytes of that are still there.

    Whoever holds them: autograd, a graph node's attributes, a list. A tensor that was there before does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        there = {StorageWeakRef(x.untyped_storage()) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = StorageWeakRef(tensor.untyped_storage())
                if storage not in there:
                    self._made[storage] = tensor.untyped_storage().nbytes()
        return result

    @property
    def nbytes(self) -> int:
        gc.collect()
        return sum(nbytes for storage, nbytes in self._made.items() if not storage.expired())
