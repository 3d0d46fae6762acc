"""Compare the tensors that each rank returns with those that one process computes.

An exercise says what a rank is given and what it must return; this module calls the function,
records what it did, and compares. Numbers are whole and small, so that a report can be checked in
the head.

    TENSORS = Comparison(inputs=inputs, reference=reference, outputs=("y", "lse"))
    EXERCISE = Exercise(..., attempt=TENSORS.attempt, properties={"y is ...": TENSORS.has("y")})
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardlab import comm
from shardlab.costs import collectives
from shardlab.ranks.observe import ledger
from shardlab.trace import Event

from . import evidence
from .checker import Case, Dependent, Finding, Judge, describe, on_each_rank

INCOMING = "the gradient that came in"
GRADIENT = ".grad"  # ends the name of an input's gradient
COUNTS = {2: "two", 3: "three"}
# Takes the learner's function, the inputs of a rank, its group, the case and the rank.
Call = Callable[[Callable[..., Any], Mapping[str, Tensor], comm.Group, Case, int], Any]


@dataclass(frozen=True, kw_only=True)
class Returned(evidence.Seen):
    """What a rank has after forward, and after backward where the exercise asks for it.

    `result` describes what came instead of the outputs; it is None where they came.
    """

    got: evidence.Named  # outputs, and gradients by the names of the inputs
    forward: Sequence[Event] = ()
    backward: Sequence[Event] = ()
    trace: Sequence[Event] = ()  # of forward alone: messages, and waits for them
    largest: int = 0  # numbers in the largest tensor that was made on the way


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a rank is given and what it must return, as tensors by name.

    inputs: the tensors of a rank. reference: its outputs, and after backward the gradient of each
    input, such as "x.grad". incoming: the gradient of each output, if there is a backward pass;
    else `outputs` names what the function returns. call: by default function(*inputs, group).
    given: the case's input, in words; by default some numbers of each input. advice: what to try,
    from the tensor that came. pure: as in Exercise; then reports name no ranks.
    """

    inputs: Callable[[Case, int], Mapping[str, Tensor]]
    reference: Callable[[Case, int], evidence.Named]
    incoming: Callable[[Case, int], Mapping[str, Tensor]] | None = None
    outputs: tuple[str, ...] = ("output",)
    call: Call = lambda function, inputs, group, case, rank: function(*inputs.values(), group)
    given: Callable[[Case], str] | None = None
    advice: Callable[[Tensor | None], str] = lambda got: ""
    pure: bool = False

    def attempt(
        self, function: Callable[..., Any], group: comm.Group, case: Case, rank: int
    ) -> Returned:
        """Call the function with this rank's inputs, and record what it returns and sends."""
        inputs = self.inputs(case, rank)

        def call(given: Mapping[str, Tensor]) -> Any:
            return self.call(function, given, group, case, rank)

        if self.incoming is None:
            return _forward(call, inputs, self.outputs)
        return _both(call, inputs, self.incoming(case, rank), group)

    def has(self, *names: str) -> Judge:
        """Compare the outputs or gradients of these names with the reference of their rank.

        A name stands for every tensor whose name begins with it.
        """
        return has(
            *names,
            reference=self.reference,
            given=self.describe,
            advice=self.advice,
            pure=self.pure,
        )

    def describe(self, case: Case, rank: int) -> str:
        """Describe the input of the case, or show that of each rank in this rank's group."""
        if self.given is not None:
            return self.given(case)
        shown = []
        for each in case.members(rank):
            tensors = [f"{n} = {evidence.show(x)}" for n, x in self.inputs(case, each).items()]
            shown.append(", ".join(tensors) + _on_rank(each, self.pure))
        return "; ".join(shown)


class Sizes(TorchDispatchMode):
    """The size of the largest tensor that an operation has made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.largest = max([self.largest, *made])
        return result


def piece(whole: Tensor, case: Case, rank: int, dim: int) -> Tensor:
    """Copy a rank's piece of a tensor that is cut evenly over its group."""
    members = case.members(rank)
    return torch.clone(whole.chunk(len(members), dim)[rank - members.start])


def row(x: Tensor, case: Case, rank: int) -> Tensor:
    """Return a rank's row of a tensor, flat and filled up with zeros: [P/N]."""
    members = case.members(rank)
    flat = torch.zeros(-(-x.numel() // len(members)) * len(members), dtype=x.dtype)
    flat[: x.numel()] = x.detach().flatten()
    return flat.chunk(len(members))[rank - members.start].clone()


# ---- running -------------------------------------------------------------------------------------


def _forward(
    call: Callable[[Mapping[str, Tensor]], Any], inputs: Mapping[str, Tensor], names: Sequence[str]
) -> Returned:
    """Call with copies of the inputs, which are no leaves of autograd."""
    given = {name: x.detach().clone() for name, x in inputs.items()}
    with ledger.Ledger() as book, Sizes() as sizes:
        made = call(given)
        outputs = listed(made, len(names))
    return Returned(
        result=_trouble(made, outputs, names),
        got=_named(names, outputs),
        changed=evidence.changed(inputs, given),
        events=book.events,
        trace=book.trace,
        largest=sizes.largest,
    )


def _both(
    call: Callable[[Mapping[str, Tensor]], Any],
    inputs: Mapping[str, Tensor],
    incoming: Mapping[str, Tensor],
    group: comm.Group,
) -> Returned:
    """Run forward, then backward from each output with its gradient in `incoming`.

    The inputs are nn.Parameters. Backward is left out where the outputs do not fit on one of the
    ranks, whose peers would wait for it.
    """
    leaves = {name: nn.Parameter(x.clone()) for name, x in inputs.items()}
    lent = {name: gradient.clone() for name, gradient in incoming.items()}
    with Sizes() as sizes:
        with ledger.Ledger() as ahead:
            made = call(leaves)
            outputs = listed(made, len(lent))
        fit = torch.tensor(_fit(outputs, [*lent.values()])).int()
        everywhere = comm.all_reduce(fit, group, "min")
        with ledger.Ledger() as back:
            if everywhere:
                torch.autograd.backward(outputs, [*lent.values()])
    gradients = {f"{name}{GRADIENT}": leaf.grad for name, leaf in leaves.items()}
    changed = evidence.changed(inputs, leaves)
    changed += [INCOMING] * bool(evidence.changed(incoming, lent))
    return Returned(
        result=_trouble(made, outputs, [*incoming]),
        got=_named([*incoming], outputs) | gradients,
        changed=changed,
        forward=ahead.events,
        backward=back.events,
        events=[*ahead.events, *back.events],
        largest=sizes.largest,
    )


def listed(made: Any, count: int) -> list[Any]:
    """List what a function has returned: `count` tensors or arrays, in one or in any iterable."""
    one = isinstance(made, Tensor | np.ndarray) and (count == 1 or not made.ndim)
    several = [made] if one or not isinstance(made, Iterable) else islice(made, count + 1)
    return [torch.from_numpy(y) if isinstance(y, np.ndarray) else y for y in several]


def _trouble(made: Any, outputs: Sequence[Any], names: Sequence[str]) -> str | None:
    """Describe what came if it is not one tensor for each name."""
    tensors = [isinstance(y, Tensor) for y in outputs]
    return None if len(outputs) == len(names) and all(tensors) else describe(made)


def _fit(outputs: Sequence[Any], incoming: Sequence[Tensor]) -> bool:
    """Say whether backward can begin: there are all outputs, with their shapes and a history."""
    if len(outputs) != len(incoming):
        return False
    tensors = [isinstance(y, Tensor) and y.requires_grad for y in outputs]
    pairs = zip(outputs, incoming, strict=True)
    return all(tensors) and all(y.shape == gradient.shape for y, gradient in pairs)


def _named(names: Sequence[str], outputs: Sequence[Any]) -> evidence.Named:
    """Copy the outputs that are tensors; none has a name where there are too few or too many."""
    if len(outputs) != len(names):
        return dict.fromkeys(names)
    kept = [y.detach().clone() if isinstance(y, Tensor) else None for y in outputs]
    return dict(zip(names, kept, strict=True))


# ---- judging -------------------------------------------------------------------------------------


def has(
    *names: str,
    reference: Callable[[Case, int], evidence.Named],
    given: Callable[[Case, int], str],
    advice: Callable[[Tensor | None], str] = lambda got: "",
    pure: bool = False,
) -> Judge:
    """Make the judge of `Comparison.has`, also for an attempt that is made in another way."""

    @on_each_rank
    def judge(case: Case, rank: int, seen: Returned) -> Finding | None:
        for name, expected in reference(case, rank).items():
            if expected is None or not name.startswith(names):
                continue
            got = seen.got.get(name)
            place = evidence.first_difference(expected, got)
            if place is None:
                continue
            right = f"{name} = {evidence.show(expected, place)}{_on_rank(rank, pure)}"
            shown = f"{name} = {evidence.show_got(got, expected, place)}"
            if seen.result is not None and not name.endswith(GRADIENT):
                outputs = [each for each in seen.got if not each.endswith(GRADIENT)]
                right = right if len(outputs) == 1 else _counted(outputs)
                shown = seen.result
            return Finding(given(case, rank), right, shown, advice(got))
        return None

    return judge


def _counted(names: Sequence[str]) -> str:
    """List names, and say how many tensors they are: "m and b, two tensors"."""
    number = COUNTS.get(len(names), len(names))
    return f"{', '.join(names[:-1])} and {names[-1]}, {number} tensors"


def _on_rank(rank: int, pure: bool) -> str:
    return "" if pure else f" on rank {rank}"


def sends(forward: Callable[[Case], int], backward: Callable[[Case], int]) -> Dependent:
    """Ask that each pass sends no more than an all-reduce of this many bytes, on a ring."""

    def judge(payload: Callable[[Case], int], name: str) -> Judge:
        def budget(case: Case) -> float:
            return collectives.ring_all_reduce(payload(case), len(case.members(0))).sent

        return evidence.sends_at_most(budget, name)

    both_judges = [judge(forward, "forward"), judge(backward, "backward")]

    @Dependent
    def judge_both(case: Case, observed: list[Any]) -> Finding | None:
        findings = [each(case, observed) for each in both_judges]
        return next((each for each in findings if each is not None), None)

    return judge_both
