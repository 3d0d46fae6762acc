"""A pipeline that is never emptied, and pays with stale weights: PipeDream (Harlap et al. 2018, arXiv 1806.03377).

Every microbatch is a batch of its own: each stage steps its optimizer after each backward, while later microbatches are
already under way. So a microbatch meets older weights than it would in one process: with 1F1B, on stage s of p, they
miss the last p - 1 - s steps. And so that its backward finds the weights of its own forward, every stage keeps a copy
of its weights for each microbatch under way.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardlab.schedules import Action, Schedule

from ..comm import Group
from .engine import Pipeline
from .stage import Batch, Stage


class PipeDream(Pipeline):
    """One rank's stage; with `steps` for `step`. Then `missed` says how many steps each microbatch missed here."""

    def __init__(
        self, parts: Sequence[nn.Module], schedule: Schedule, group: Group, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(parts, schedule, group)
        if self.shared or schedule.splits_backward:
            raise ValueError(
                "weights that two stages share would drift apart, and a split backward steps in no order; "
                "use a model with an untied head and a schedule with whole backwards"
            )
        self.stage: _Stashing = _Stashing(schedule, group.rank(), parts, optimizer)

    @property
    def missed(self) -> list[int]:
        return self.stage.missed

    def steps(self, tokens: Tensor | None = None, targets: Tensor | None = None) -> list[Tensor]:
        """One optimizer step for each microbatch; returns their losses where the last part is, else nothing."""
        return self._run(self.training_plan, tokens, targets)


class _Stashing(Stage):
    """Steps after every backward; computes each microbatch with a copy of the weights as its forward met them."""

    def __init__(
        self, schedule: Schedule, number: int, parts: Sequence[nn.Module], optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(schedule, number, parts)
        self.optimizer = optimizer

    def begin(self, batch: Batch) -> None:
        super().begin(batch)
        self.steps = 0
        self.copies: dict[tuple[int, int], dict[str, Tensor]] = {}  # by microbatch and chunk
        self.met: dict[tuple[int, int], int] = {}  # after how many steps a forward met its weights
        self.missed: list[int] = []

    def _call(self, action: Action, *inputs: Tensor) -> Tensor:
        part = self.parts[action.chunk]
        copies = {name: weight.detach().clone().requires_grad_() for name, weight in part.named_parameters()}
        self.copies[action[1:3]], self.met[action[1:3]] = copies, self.steps
        y: Tensor = functional_call(part, copies, inputs)
        return y

    def _backward(self, action: Action, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            gradient = torch.ones_like(self.results[action.microbatch])
        found = super()._backward(action, gradient)
        copies = self.copies.pop(action[1:3])
        self.missed.append(self.steps - self.met.pop(action[1:3]))
        self.optimizer.zero_grad()
        for name, weight in self.parts[action.chunk].named_parameters():
            weight.grad = copies[name].grad
        self.optimizer.step()
        self.steps += 1
        return found
