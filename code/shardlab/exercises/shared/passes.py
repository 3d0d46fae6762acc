"""What exercises on forward and backward share: run both passes, and record what they did.

Numbers are whole and small, so that a report can be checked in the head.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardlab import comm, trace
from shardlab.costs import collectives
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Dependent, Finding, Judge, on_each_rank

INCOMING = "the gradient that came in"


@dataclass(frozen=True, kw_only=True)
class TwoPasses(evidence.Seen):
    """What a rank has after forward and backward."""

    got: evidence.Named  # outputs, and gradients by the names of the inputs
    forward: Sequence[trace.Event]
    backward: Sequence[trace.Event]
    largest: int = 0  # numbers in the largest tensor that was made on the way


class Sizes(TorchDispatchMode):
    """The size of the largest tensor that an operation has made."""

    largest = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [x.numel() for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.largest = max([self.largest, *made])
        return result


def piece(whole: Tensor, case: Case, rank: int, dim: int) -> Tensor:
    """Copy a rank's piece of a tensor that is cut evenly over its group."""
    members = case.members(rank)
    return torch.clone(whole.chunk(len(members), dim)[rank - members.start])


def both(
    call: Callable[..., Any],
    inputs: Mapping[str, Tensor],
    incoming: Mapping[str, Tensor],
    group: comm.Group | None = None,
) -> TwoPasses:
    """Run forward with `inputs`, then backward from each output with its gradient in `incoming`.

    call: takes the inputs in their order, as nn.Parameter, and returns one output, or as many as
    `incoming` has names. Backward is left out where outputs do not fit; with a group, where they
    do not fit on one of its ranks, whose peers would wait for it.
    """
    leaves = {name: nn.Parameter(x.clone()) for name, x in inputs.items()}
    lent = {name: gradient.clone() for name, gradient in incoming.items()}
    with Sizes() as sizes:
        with ledger.Ledger() as ahead:
            made = call(*leaves.values())
        outputs = dict(zip(incoming, _listed(made), strict=False))
        fit = _fit(outputs, lent)
        if group is not None:
            fit = bool(comm.all_reduce(torch.tensor(fit).int(), group, "min"))
        with ledger.Ledger() as back:
            if fit:
                torch.autograd.backward([*outputs.values()], [*lent.values()])
    got = {name: _kept(outputs.get(name)) for name in incoming}
    got |= {f"{name}.grad": leaf.grad for name, leaf in leaves.items()}
    changed = evidence.changed(inputs, leaves)
    changed += [INCOMING] * bool(evidence.changed(incoming, lent))
    return TwoPasses(
        got=got,
        changed=changed,
        forward=ahead.events,
        backward=back.events,
        events=[*ahead.events, *back.events],
        largest=sizes.largest,
    )


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, list | tuple) else [made]


def _fit(outputs: Mapping[str, Any], lent: Mapping[str, Tensor]) -> bool:
    """Say whether backward can begin: there are all outputs, with their shapes and a history."""
    if len(outputs) < len(lent):
        return False
    pairs = [(outputs[name], gradient) for name, gradient in lent.items()]
    tensors = [isinstance(y, Tensor) and y.requires_grad for y, _ in pairs]
    return all(tensors) and all(y.shape == gradient.shape for y, gradient in pairs)


def _kept(y: Any) -> Tensor | None:
    return y.detach().clone() if isinstance(y, Tensor) else None


def has(
    *names: str,
    reference: Callable[[Case, int], evidence.Named],
    given: Callable[[Case], str],
) -> Judge:
    """Compare the outputs or gradients of these names with the reference of their rank.

    A name stands for every tensor whose name begins with it. given: the case's input, in words.
    """

    @on_each_rank
    def judge(case: Case, rank: int, seen: TwoPasses) -> Finding | None:
        for name, expected in reference(case, rank).items():
            if expected is None or not name.startswith(names):
                continue
            got = seen.got.get(name)
            place = evidence.first_difference(expected, got)
            if place is not None:
                right = f"{name} = {evidence.show(expected, place)} on rank {rank}"
                return Finding(given(case), right, evidence.show_got(got, expected, place))
        return None

    return judge


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
