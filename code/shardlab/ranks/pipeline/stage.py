"""What one stage of a pipeline computes, and what it keeps between a forward and its backward.

Shapes: n samples in a microbatch, B in the batch; what parts pass on is [n, ...], and so is its
gradient.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardlab.schedules import Action, Schedule

from ..mixture import balance_loss
from .split_backward import Later, SplitBackward

Key = tuple[int, int]  # microbatch and chunk, as `Action.key`


@dataclass(frozen=True, kw_only=True)
class Batch:
    """What goes through a pipeline in one step, as one stage sees it."""

    sizes: Sequence[int] = ()  # samples of each microbatch
    inputs: Sequence[Tensor] = ()  # [n, ...] each, on the stage of the model's first part
    targets: Sequence[Tensor] = ()  # [n, ...] each, on that of the last part; without them: logits
    scale: float = 1.0  # what the loss is multiplied by

    def weight(self, microbatch: int) -> float:
        """Return the factor of a microbatch's mean in the batch's mean: n/B, times the scale."""
        return self.scale * self.sizes[microbatch] / sum(self.sizes)


class ForBackward(NamedTuple):
    """What a forward leaves for its backward: its input, and places in the graph."""

    x: Tensor  # [n, ...], the input
    y: GradientEdge  # of the output, which itself is sent away
    balance: Tensor | None  # [], the balance loss of the part's mixtures


class Stage:
    """The parts of a model that one rank holds, by chunk, and the microbatches in them."""

    def __init__(self, schedule: Schedule, number: int, parts: Sequence[nn.Module]) -> None:
        self.schedule = schedule
        self.number = number
        self.parts = parts
        self.split = {action.key for action in schedule.orders[number] if action.kind == "I"}
        self.splits = [SplitBackward(part) for part in parts] if self.split else []
        self.batch = Batch()
        self.kept: dict[Key, ForBackward] = {}
        self.later: dict[Key, Later] = {}  # what is left for W
        self.results: dict[int, Tensor] = {}  # of the last part, by microbatch: losses or logits
        self.balance: Tensor | None = None  # [], balance losses of other parts in this batch

    def begin(self, batch: Batch) -> None:
        """Take a new batch, and drop what a failed one may have left."""
        self.batch = batch
        self.kept.clear()
        self.later = {key: [] for key in self.split}
        self.results.clear()
        self.balance = None

    @property
    def live(self) -> int:
        """Count microbatches, times chunks, that wait for a backward or for its second half."""
        waiting = {key for key, later in self.later.items() if later}
        return len(waiting | self.kept.keys())

    def do(self, action: Action, x: Tensor | None) -> Tensor | None:
        """Execute one action: [n, ...] -> [n, ...].

        x: the activation or gradient that the action needs from another part. Returns what another
        part needs. Both are None where there is no other part.
        """
        if action.kind == "F":
            return self._forward(action, x)
        if action.kind == "W":
            for weights in self.later.pop(action.key):
                weights()
            return None
        return self._backward(action, x)

    def _forward(self, action: Action, x: Tensor | None) -> Tensor | None:
        """Compute a part's output, which is returned unless the part is the model's last."""
        if x is None:
            x = self.batch.inputs[action.microbatch]
        else:
            x.requires_grad_(torch.is_grad_enabled())
        is_last = self.schedule.parts[self.number][action.chunk] == self.schedule.num_parts - 1
        has_targets = is_last and len(self.batch.targets) > 0
        inputs = [x, self.batch.targets[action.microbatch]] if has_targets else [x]
        with self._splitting(action):
            y = self._call(action, *inputs)          # [n, ...], with targets []
        balance = balance_loss(self.parts[action.chunk])  # the last part has added its own
        if y.requires_grad:
            self.kept[action.key] = ForBackward(x, get_gradient_edge(y), balance)
            self._note(action, balance)
        if is_last:
            self.results[action.microbatch] = y.detach()
        return None if is_last else y.detach()

    def _note(self, action: Action, balance: Tensor | None) -> None:
        """Add a balance loss to the batch's sum."""
        if balance is not None:
            weighted = self.batch.weight(action.microbatch) * balance.detach()
            self.balance = weighted if self.balance is None else self.balance + weighted

    def _call(self, action: Action, *inputs: Tensor) -> Tensor:
        """Call the action's part."""
        y: Tensor = self.parts[action.chunk](*inputs)
        return y

    def _backward(self, action: Action, gradient: Tensor | None) -> Tensor | None:
        """Compute gradients from that of the output, and return that of the input: [n, ...]."""
        if action.key not in self.kept:  # all weights up to here are frozen
            return None
        x, y, balance = self.kept.pop(action.key)
        if gradient is None:  # y is the loss
            gradient = self._weight_like(self.results[action.microbatch], action)
        ends, gradients = [y], [gradient]
        if balance is not None and balance.requires_grad:  # its router is not frozen
            ends.append(get_gradient_edge(balance))
            gradients.append(self._weight_like(balance, action))
        with self._splitting(action):  # recomputation calls the part again
            torch.autograd.backward(ends, gradients)
        dx = x.grad
        x.grad = None
        return dx

    def _weight_like(self, loss: Tensor, action: Action) -> Tensor:
        """Return the derivative of the batch's mean loss by a microbatch's loss: [] -> []."""
        return torch.full_like(loss, self.batch.weight(action.microbatch))

    def _splitting(self, action: Action) -> AbstractContextManager[object]:
        """Split the backward of what is called inside, if the schedule splits it."""
        if action.key not in self.split:
            return nullcontext()
        return self.splits[action.chunk].into(self.later[action.key])
