"""Judge a function by its numbers and tensors, the bytes that it sends, and the memory it holds."""

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardlab import trace
from shardlab.costs import collectives, units

from .checker import Case, Dependent, Finding, Judge, describe, on_each_rank

Named = dict[str, Tensor | None]
SHOWN = 4  # numbers of a tensor that a report shows
NUMBER = 8  # bytes of a number in float64
EXACT = 1e-10  # relative and absolute, for sums in float64 in any order


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one rank has after the learner's function. Exercises that look closer add fields."""

    result: Any = None
    changed: Sequence[str] = ()  # the names of arguments that are no longer what they were
    events: Sequence[trace.Event] = ()


# ---- numbers and tensors -------------------------------------------------------------------------


def number(value: Any) -> float | str:
    """Return a number of any type, also in an array of one, as a float, or a description."""
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except (RuntimeError, TypeError, ValueError):
        return describe(value)


def whole(value: Any) -> int | str:
    """Return a whole number of any type as an int, or a description of what it is instead."""
    number_of_it = value if isinstance(value, bool) else number(value)
    fits = isinstance(number_of_it, float) and number_of_it.is_integer()
    return int(number_of_it) if fits else describe(value)


def whole_numbers(seed: int, *shape: int, below: int = 6) -> Tensor:
    """Draw whole numbers from 1 to below - 1, small enough to check a report in the head."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(1, below, shape, generator=random).double()


def gradients(model: nn.Module) -> Named:
    """Copy the gradients, by name of the parameter; a tied parameter counts once."""
    named = model.named_parameters()
    return {name: None if p.grad is None else p.grad.detach().clone() for name, p in named}


def nbytes(tensors: Mapping[str, Tensor | None]) -> int:
    """Add up the bytes of those that are tensors."""
    return sum(tensor.nbytes for tensor in tensors.values() if tensor is not None)


def changed(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are missing afterwards, or hold other numbers."""
    return [n for n, x in before.items() if n not in after or not torch.equal(after[n], x)]


def first_difference(expected: Tensor, got: Any) -> int | None:
    """Return where `got` first differs, counted along the flat tensor; None if nowhere.

    What was computed in another precision differs everywhere: whole numbers would not show it.
    """
    if not isinstance(got, Tensor) or got.shape != expected.shape or _is_rounded(expected, got):
        return 0
    close = torch.isclose(got.to(expected.dtype), expected, rtol=EXACT, atol=EXACT)
    wrong = ~close.flatten()
    return int(wrong.nonzero()[0]) if wrong.any() else None


def _is_rounded(expected: Tensor, got: Tensor) -> bool:
    """Say whether both are floating-point numbers, of two precisions."""
    return got.dtype != expected.dtype and got.is_floating_point() and expected.is_floating_point()


def show(tensor: Tensor | None, place: int = 0) -> str:
    """Show a few numbers, that at `place` among them: [1, 2.5, ...]."""
    if tensor is None:
        return "None"
    first = place if tensor.numel() > SHOWN else 0
    shown = tensor.flatten()[first : first + SHOWN].tolist()
    before = "..., " * (first > 0)
    after = ", ..." * (first + SHOWN < tensor.numel())
    return f"[{before}{', '.join(f'{number:.4g}' for number in shown)}{after}]"


def show_got(got: Any, expected: Tensor, place: int) -> str:
    """Show what came instead of `expected`: its shape or precision if wrong, or else numbers."""
    if got is not None and not isinstance(got, Tensor):
        return describe(got)
    if got is not None and got.shape != expected.shape:
        return f"{show(got)} of shape {list(got.shape)} instead of {list(expected.shape)}"
    if got is not None and _is_rounded(expected, got):
        return f"{show(got, place)} in {got.dtype} instead of {expected.dtype}"
    if got is not None and show(got, place) == show(expected, place):
        apart = (got - expected).abs().max()
        return f"{show(got, place)}, up to {apart:.1g} away: keep the precision of {expected.dtype}"
    return show(got, place)


def leaves_alone(advice: str) -> Judge:
    """Ask that no argument has changed; `advice` says what to do instead."""

    @on_each_rank
    def judge(case: Case, rank: int, seen: Seen) -> Finding | None:
        if not seen.changed:
            return None
        name = seen.changed[0]
        got = f"{name} has changed on rank {rank}"
        return Finding(case.title, f"{name} as it was", got, advice)

    return judge


leaves_arguments = leaves_alone(
    "make a new tensor or list; +=, pop and names that end in _ change the old one"
)


# ---- communication -------------------------------------------------------------------------------


def sends_at_most(
    budget: Callable[[Case], float],
    name: str = "events",
    needed: Callable[[Case], float] | None = None,
) -> Dependent:
    """Ask that no rank sends more than `budget` bytes, and none less than half of `needed`.

    Half, because ranks may share the work unevenly. needed: by default the budget; name: of the
    events in `Seen`.
    """
    least = needed or budget
    return each_sends_at_most(lambda case, _: budget(case), name, lambda case, _: least(case))


def each_sends_at_most(
    budget: Callable[[Case, int], float],
    name: str = "events",
    needed: Callable[[Case, int], float] | None = None,
) -> Dependent:
    """Ask the same, where each rank has a budget of its own."""
    when = "" if name == "events" else f" in {name}"

    @Dependent
    @on_each_rank
    def judge(case: Case, rank: int, seen: Seen) -> Finding | None:
        allowed = budget(case, rank)
        least = (needed or budget)(case, rank) / 2
        events = getattr(seen, name)
        sent = sum(map(trace.wire_bytes, events))
        if least <= sent <= allowed + 0.5:
            return None
        given = f"{case.title}, {units.counted(len(case.members(rank)), 'rank')} in a group"
        bound = f"at most {allowed:.0f}" if sent > allowed else f"at least {ceil(least)}"
        expected = f"{bound} bytes sent by a rank{when}"
        advice = "" if allowed else "send nothing here"
        return Finding(given, expected, show_sent(rank, events) + when, advice)

    return judge


def sends_one_all_reduce(payload: Callable[[Case], int]) -> Dependent:
    """Ask that no rank sends more than an all-reduce of `payload` bytes on a ring needs."""

    def budget(case: Case) -> float:
        return collectives.ring_all_reduce(payload(case), len(case.members(0))).sent

    return sends_at_most(budget)


def sends_messages(count: int, name: str = "events") -> Dependent:
    """Ask that no rank sends more than `count` messages, and that it sends one if it has peers.

    name: of the events in `Seen`.
    """
    when = "" if name == "events" else f" in {name}"

    @Dependent
    @on_each_rank
    def judge(case: Case, rank: int, seen: Seen) -> Finding | None:
        events = getattr(seen, name)
        least = min(count, len(case.members(rank)) - 1, 1)
        if least <= len(events) <= count:
            return None
        expected = ("one message" if count == 1 else units.counted(count, "message")) + when
        advice = "join what you send with torch.cat, and split what arrives" if events else ""
        return Finding(case.title, expected, show_sent(rank, events) + when, advice)

    return judge


def show_sent(rank: int, events: Sequence[trace.Event]) -> str:
    """Show what a rank sent, in how many messages of which kind."""
    sent = sum(map(trace.wire_bytes, events))
    counts = Counter(event.op for event in events)
    verbs = ", ".join(f"{count} x {verb}" for verb, count in counts.items())
    messages = units.counted(len(events), "message") + f" ({verbs})" * bool(verbs)
    return f"{sent:.0f} bytes sent by rank {rank} in {messages}"


# ---- memory --------------------------------------------------------------------------------------


class Held(TorchDispatchMode):
    """The bytes of tensors that were made while it was open, and that still exist.

    Whatever holds them counts: autograd, an attribute of a graph's node, a list. A tensor that
    existed before does not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        known = {StorageWeakRef(x.untyped_storage()) for x in given}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                reference = StorageWeakRef(storage)
                if reference not in known:
                    self._made[reference] = storage.nbytes()
        return result

    @property
    def nbytes(self) -> int:
        """Bytes that still exist, after a garbage collection."""
        gc.collect()
        return sum(size for storage, size in self._made.items() if not storage.expired())
