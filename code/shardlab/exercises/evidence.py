"""What shows that a function is right: the tensors that each rank ends with, and what it has sent."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import trace
from shardlab.costs import collectives

from .checker import Case, Finding, Judge

Named = dict[str, Tensor | None]
SHOWN = 4  # numbers of a tensor that a report shows
EXACT = 1e-10  # relative and absolute; float64, sums in any order


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
