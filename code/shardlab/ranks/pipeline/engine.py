"""Pipeline parallelism: every rank holds some layers, and does what a schedule says, microbatch by microbatch.

Huang et al. 2019, "GPipe" (https://arxiv.org/abs/1811.06965). The schedule is data (`shardlab.schedules`); here it is
executed. `messages` carries what one stage makes for another, `stage` computes.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shardlab.schedules import Schedule, Step, check, plan
from shardlab.trace import Event

from ..comm import Group
from .messages import Mail
from .stage import Batch, Stage


class Pipeline(nn.Module):
    """One rank's stage of a pipeline; stage s is rank s of the group.

        parts = partition.cut(model, schedule, group.rank())
        pipeline = Pipeline(parts, schedule, group)
        optimizer = torch.optim.AdamW(pipeline.parameters())
        loss = pipeline.step(tokens, targets)    # and the gradients are there
        optimizer.step()

    parts: this stage's modules, by chunk. A part takes what the part before it returns, one tensor whose first dim is
    samples. The model's last part also takes targets, and then returns the mean loss. A parameter in `part.shared` is
    also in the part at the model's other end (tied embeddings), and gets the sum of both gradients.
    """

    def __init__(self, parts: Sequence[nn.Module], schedule: Schedule, group: Group) -> None:
        super().__init__()
        if (group.size(), len(parts)) != (schedule.num_stages, schedule.num_chunks):
            raise ValueError(
                f"{schedule.name} has {schedule.num_stages} stages with {schedule.num_chunks} parts each, and here are "
                f"{group.size()} ranks with {len(parts)}; make the schedule for {group.size()} stages and cut by it"
            )
        self.parts, self.schedule, self.group = nn.ModuleList(parts), check(schedule), group
        self.mail, self.stage = Mail(schedule, group), Stage(schedule, group.rank(), parts)
        self.training_plan = plan(schedule)[group.rank()]
        self.inference_plan = plan(schedule.forward_only())[group.rank()]
        self.events: list[Event] = []  # the actions of the last batch
        self.live = 0  # the most microbatches, times chunks, whose activations it held at the same time
        self.negotiated = torch.Size()  # the shape of the batches
        (self.front, front), (self.back, back) = schedule.homes[0], schedule.homes[-1]  # stages of the model's ends
        end = {self.front: front, self.back: back}.get(group.rank())
        apart = self.front != self.back and end is not None
        self.shared: list[nn.Parameter] = list(getattr(parts[end or 0], "shared", [])) if apart else []
        self._equalize()

    def step(
        self, tokens: Tensor | None = None, targets: Tensor | None = None, scale: float = 1.0
    ) -> Tensor | None:
        """Add the gradients of the mean loss over a batch; returns that loss on the stage of the last part, else None.

        tokens [N, ...] are needed on the first stage, targets [N, ...] on that of the last part. The microbatches
        differ by one sample at most. scale: what the loss is multiplied by (see `sampler`), alike on all stages.
        """
        before = [weight.grad for weight in self.shared]
        for weight in self.shared:
            weight.grad = None
        losses = self._run(self.training_plan, tokens, targets, scale)
        self._sum_shared(before)
        weights = [self.stage.batch.weight(i) for i in range(len(losses))]
        return torch.stack([w * loss for w, loss in zip(weights, losses, strict=True)]).sum() if losses else None

    @torch.no_grad()
    def predict(self, tokens: Tensor | None = None) -> Tensor | None:
        """What the model returns for tokens [N, ...], on the stage of the last part; None on the others."""
        results = self._run(self.inference_plan, tokens, None)
        return torch.cat(results) if results else None

    def negotiate(self, tokens: Tensor | None = None) -> None:
        """Make the shapes of a batch known to all stages, which all must call it.

        The first batch does so by itself. Call it before batches of another shape.
        """
        inputs = self._cut("tokens", tokens) if self.group.rank() == self.front else ()
        self.mail.negotiate(self.stage.parts, inputs)
        self.negotiated = torch.Size() if tokens is None else tokens.shape

    def _run(
        self, program: Sequence[Step], tokens: Tensor | None, targets: Tensor | None, scale: float = 1.0
    ) -> list[Tensor]:
        """Do the program; returns what the model's last part returned, by microbatch, where this stage has it."""
        if not self.mail.sizes:
            self.negotiate(tokens)
        self.mail.begin()
        self.stage.begin(self._batch(tokens, targets, scale, needs_targets=program is self.training_plan))
        self.events, self.live = [], 0
        for step in program:
            if step.verb == "receive":
                self.mail.expect(step)
            elif step.verb == "send":
                self.mail.send(step)
            else:
                self._compute(step)
        self.mail.end()
        return [result for _, result in sorted(self.stage.results.items())]

    def _compute(self, step: Step) -> None:
        x, start, rank = self.mail.take(step.action), time.perf_counter(), self.group.rank()
        self.mail.put(step.action, self.stage.do(step.action, x))
        self.live = max(self.live, self.stage.live)
        self.events.append(Event(rank, "compute", str(step.action), (rank,), 0, start, time.perf_counter()))

    def _batch(self, tokens: Tensor | None, targets: Tensor | None, scale: float, *, needs_targets: bool) -> Batch:
        """What this stage needs of a batch. Errors: ValueError for another shape than was negotiated."""
        first, last = self.group.rank() == self.front, self.group.rank() == self.back
        if first and tokens is not None and tokens.shape != self.negotiated:
            raise ValueError(
                f"tokens {list(tokens.shape)}, where {list(self.negotiated)} was negotiated; "
                "call negotiate(tokens) on all stages first"
            )
        inputs = self._cut("tokens", tokens) if first else ()
        return Batch(self.mail.sizes, inputs, self._cut("targets", targets) if last and needs_targets else (), scale)

    def _cut(self, name: str, x: Tensor | None) -> tuple[Tensor, ...]:
        """Into microbatches."""
        count = self.schedule.num_microbatches
        if x is None:
            raise ValueError(f"stage {self.group.rank()} needs {name}; pass them to it, or to all")
        if len(x) < count:
            raise ValueError(f"{len(x)} samples do not fill {count} microbatches; use a schedule of {len(x)} or fewer")
        return x.tensor_split(count)

    @torch.no_grad()
    def _equalize(self) -> None:
        """Let the copies of shared weights begin as one: as the first stage has them."""
        for weight in self.shared:
            theirs = self.mail.swap(weight, self._other_end)
            weight.copy_(weight if self.group.rank() == self.front else theirs)

    def _sum_shared(self, before: Sequence[Tensor | None]) -> None:
        """Both copies get both gradients, and stay equal: a + b is b + a to the last bit. before: earlier gradients."""
        for weight, old in zip(self.shared, before, strict=True):
            if weight.grad is not None:  # it is not frozen
                total = weight.grad + self.mail.swap(weight.grad, self._other_end)
                weight.grad = total if old is None else old + total

    @property
    def _other_end(self) -> int:
        return self.back if self.group.rank() == self.front else self.front
