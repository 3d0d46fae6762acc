"""What these exercises share: call a function, go back through it, and watch what it does to whom.

Numbers are whole and small, so that a report can be checked in your head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shardlab import trace
from shardlab.costs import collectives
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Finding, Judge

INCOMING = "the gradient that came in"


@dataclass(frozen=True)
class Seen:
    """What both passes left on a rank."""

    got: evidence.Named  # the output, and gradients by the names of the inputs
    changed: list[str]  # what is no longer what it was
    forward: list[trace.Event]
    backward: list[trace.Event]
    largest: int  # numbers in the largest tensor that was made on the way

    @property
    def events(self) -> list[trace.Event]:
        """Of both passes."""
        return [*self.forward, *self.backward]


class Sizes(TorchDispatchMode):
    """Notes the largest tensor that any operation makes."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.largest = max([self.largest, *(x.numel() for x in tree_leaves(result) if isinstance(x, Tensor))])
        return result


def numbers(seed: int, *shape: int, below: int = 6) -> Tensor:
    """Whole numbers from 1 to below - 1."""
    return torch.randint(1, below, shape, generator=torch.Generator().manual_seed(seed)).double()


def piece(whole: Tensor, case: Case, rank: int, dim: int) -> Tensor:
    """A rank's piece of what is cut evenly over its group, as a copy."""
    members = case.members(rank)
    return torch.clone(whole.chunk(len(members), dim)[rank - members.start])


def both(call: Callable[..., Any], inputs: Mapping[str, Tensor], incoming: Tensor) -> Seen:
    """Forward with these inputs, in their order, and backward with the gradient `incoming` of the output."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    lent = incoming.clone()
    with Sizes() as sizes:
        with ledger.Ledger() as ahead:
            y = call(*leaves.values())
        with ledger.Ledger() as back:
            if isinstance(y, Tensor) and y.requires_grad and y.shape == lent.shape:
                y.backward(lent)
    got = {"output": y.detach().clone() if isinstance(y, Tensor) else None}
    got |= {f"{name}.grad": leaf.grad for name, leaf in leaves.items()}
    changed = [name for name, leaf in leaves.items() if not torch.equal(leaf, inputs[name])]
    changed += [INCOMING] * (not torch.equal(lent, incoming))
    return Seen(got, changed, ahead.events, back.events, sizes.largest)


def has(names: tuple[str, ...], reference: Callable[[Case, int], evidence.Named], told: Callable[[Case], str]) -> Judge:
    """Each of these is what the reference says for its rank. told: the case's input, in words."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        for rank, mine in enumerate(seen):
            right = reference(case, rank)
            for name in names:
                expected, got = right[name], mine.got.get(name)
                assert expected is not None
                place = evidence.first_difference(expected, got)
                if place is not None:
                    shown = f"{name} = {evidence.show(expected, place)} on rank {rank}"
                    return Finding(told(case), shown, _brief(got, expected, place))
        return None

    return judge


def leave_inputs(case: Case, seen: list[Any]) -> Finding | None:
    """No tensor that the function, or its backward, was given has changed."""
    for rank, mine in enumerate(seen):
        if mine.changed:
            return Finding(case.title, f"{mine.changed[0]} stays what it was", f"another one on rank {rank}")
    return None


def sends(forward: Callable[[Case], int], backward: Callable[[Case], int]) -> Judge:
    """In each pass no rank sends more than all-reduces of so many bytes, on rings, must."""

    def judge(case: Case, seen: list[Any]) -> Finding | None:
        peers = len(case.members(0))
        for name, payload in (("forward", forward(case)), ("backward", backward(case))):
            budget = collectives.ring_all_reduce(payload, peers).sent
            for rank, mine in enumerate(seen):
                sent = sum(map(trace.wire_bytes, getattr(mine, name)))
                if sent > budget + 0.5:
                    expected = f"at most {budget:.0f} bytes sent by a rank in {name}"
                    return Finding(case.title, expected, f"{sent:.0f} bytes sent by rank {rank}")
        return None

    return judge


def _brief(got: Tensor | None, expected: Tensor, place: int) -> str:
    if got is not None and got.shape != expected.shape:
        return f"shape {list(got.shape)} instead of {list(expected.shape)}"
    return evidence.show(got, place)
