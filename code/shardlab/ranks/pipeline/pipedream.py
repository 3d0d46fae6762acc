"""PipeDream: a pipeline that never drains, and pays with stale weights.

Harlap et al. 2018 (https://arxiv.org/abs/1806.03377). Every microbatch is a batch of its own: a
stage steps its optimizer after each backward, while later microbatches are already in flight. These
compute with older weights than they would in one process: with 1F1B, on stage s of p, they miss the
last p - 1 - s steps. A backward needs the weights of its own forward, so each stage keeps a copy of
its weights for every microbatch in flight.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardlab.comm import Group
from shardlab.schedules import Action, Schedule

from .engine import Pipeline
from .stage import Batch, Key, Stage


class PipeDream(Pipeline):
    """One rank's stage of a pipeline that never drains, with `steps` in place of `step`."""

    def __init__(
        self,
        parts: Sequence[nn.Module],
        schedule: Schedule,
        group: Group,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        super().__init__(parts, schedule, group)
        if self.shared or schedule.splits_backward:
            raise ValueError(
                "weights that two stages share would drift apart, and a split backward steps in no "
                "order; use a model with an untied head and a schedule with whole backwards"
            )
        self.stage: _StashingStage = _StashingStage(schedule, group.rank(), parts, optimizer)

    @property
    def missed(self) -> list[int]:
        """How many steps each microbatch of the last batch missed on this stage."""
        return self.stage.missed

    def steps(self, tokens: Tensor | None = None, targets: Tensor | None = None) -> list[Tensor]:
        """Step once for each microbatch; return their losses where the last part is, else []."""
        return self._run(self.training_plan, self._training_batch(tokens, targets))


class _StashingStage(Stage):
    """A stage that steps after every backward, and keeps the weights of each forward until then."""

    def __init__(
        self,
        schedule: Schedule,
        number: int,
        parts: Sequence[nn.Module],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        super().__init__(schedule, number, parts)
        self.optimizer = optimizer
        self.num_steps = 0
        self.copies: dict[Key, dict[str, Tensor]] = {}  # the weights of a forward
        self.steps_before: dict[Key, int] = {}  # the steps that these weights had made
        self.missed: list[int] = []

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self.num_steps = 0
        self.copies.clear()
        self.steps_before.clear()
        self.missed = []

    def _call(self, action: Action, *inputs: Tensor) -> Tensor:
        """Call the action's part with a copy of its weights, and keep the copy."""
        part = self.parts[action.chunk]
        copies = {}
        for name, weight in part.named_parameters():
            copies[name] = weight.detach().clone().requires_grad_()
        self.copies[action.key] = copies
        self.steps_before[action.key] = self.num_steps
        y: Tensor = functional_call(part, copies, inputs)
        return y

    def _backward(self, action: Action, gradient: Tensor | None) -> Tensor | None:
        """Compute the gradients of the copy, and step the weights with them."""
        if gradient is None:  # the loss of a microbatch counts fully: it is a batch of its own
            gradient = torch.ones_like(self.results[action.microbatch])
        dx = super()._backward(action, gradient)
        copies = self.copies.pop(action.key)
        self.missed.append(self.num_steps - self.steps_before.pop(action.key))
        self.optimizer.zero_grad()
        for name, weight in self.parts[action.chunk].named_parameters():
            weight.grad = copies[name].grad
        self.optimizer.step()
        self.num_steps += 1
        return dx
