"""What one stage of a pipeline computes, and what it keeps between a forward and its backward."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from shardlab.schedules import Action, Schedule

from .split_backward import Later, SplitBackward

Key = tuple[int, int]  # microbatch and chunk


@dataclass(frozen=True)
class Batch:
    """What goes through a pipeline at once, as a stage sees it."""

    sizes: Sequence[int]  # samples of each microbatch
    inputs: Sequence[Tensor] = ()  # the microbatches themselves, where the first part of the model is
    targets: Sequence[Tensor] = ()  # where the last part is; without them it returns logits
    scale: float = 1.0  # what the loss is multiplied by

    def weight(self, microbatch: int) -> float:
        """What the mean over a microbatch counts in the mean over the batch, times the scale."""
        return self.scale * self.sizes[microbatch] / sum(self.sizes)


class Stage:
    """The parts that one rank holds, by chunk, and the microbatches on their way through them."""

    def __init__(self, schedule: Schedule, number: int, parts: Sequence[nn.Module]) -> None:
        self.schedule, self.number, self.parts = schedule, number, parts
        self.split = {action[1:3] for action in schedule.orders[number] if action.kind == "I"}
        self.splits = [SplitBackward(part) for part in parts] if self.split else []

    def begin(self, batch: Batch) -> None:
        """Forget what is left of the last batch; take a new one."""
        self.batch = batch
        self.kept: dict[Key, tuple[Tensor, GradientEdge]] = {}  # input and output of a forward, for its backward
        self.later: dict[Key, Later] = {key: [] for key in self.split}  # what is left for W
        self.results: dict[int, Tensor] = {}  # of the model's last part, by microbatch: losses, or logits

    @property
    def live(self) -> int:
        """How many microbatches, times chunks, wait for a backward or for the second half of it."""
        return len(self.kept.keys() | {key for key, later in self.later.items() if later})

    def do(self, action: Action, x: Tensor | None) -> Tensor | None:
        """One action. x: what it needs from another part; returns what another part needs, None where there is none."""
        if action.kind == "F":
            return self._forward(action, x)
        if action.kind == "W":
            for weights in self.later.pop(action[1:3]):
                weights()
            return None
        return self._backward(action, x)

    def _forward(self, action: Action, x: Tensor | None) -> Tensor | None:
        _, microbatch, chunk, _ = action
        part = self.schedule.parts[self.number][chunk]
        if x is None:
            x = self.batch.inputs[microbatch]
        else:
            x.requires_grad_(torch.is_grad_enabled())
        last = part == self.schedule.num_parts - 1
        targets = [self.batch.targets[microbatch]] if last and self.batch.targets else []
        with self._splitting(action):
            y = self._call(action, x, *targets)
        if y.requires_grad:
            self.kept[action[1:3]] = x, get_gradient_edge(y)  # the graph, not its result, which is sent away
        if last:
            self.results[microbatch] = y.detach()
        return None if last else y.detach()

    def _call(self, action: Action, *inputs: Tensor) -> Tensor:
        y: Tensor = self.parts[action.chunk](*inputs)
        return y

    def _backward(self, action: Action, gradient: Tensor | None) -> Tensor | None:
        if action[1:3] not in self.kept:
            return None  # all weights up to here are frozen
        x, y = self.kept.pop(action[1:3])
        if gradient is None:  # of the loss: what it counts in the mean over all samples
            gradient = torch.full_like(self.results[action.microbatch], self.batch.weight(action.microbatch))
        with self._splitting(action):  # once more, for what is computed again
            torch.autograd.backward([y], [gradient])
        found, x.grad = x.grad, None
        return found

    def _splitting(self, action: Action) -> AbstractContextManager[object]:
        key = action[1:3]
        return self.splits[action.chunk].into(self.later[key]) if key in self.split else nullcontext()
