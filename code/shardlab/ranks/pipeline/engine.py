"""Pipeline parallelism: every rank holds some layers and executes its part of a schedule.

Huang et al. 2019, "GPipe" (https://arxiv.org/abs/1811.06965). The schedule is data
(`shardlab.schedules`), executed here: `stage` computes, and `messages` carries what one stage makes
for another.

Shapes: B samples in a batch, n in a microbatch; the other dims, [...], are those of the model.
"""

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shardlab.comm import Group
from shardlab.schedules import Instruction, Schedule, check, plan
from shardlab.trace import Event

from .messages import StageMessages
from .stage import Batch, Stage


class Pipeline(nn.Module):
    """One rank's stage of a pipeline; stage s is rank s of the group.

        parts = partition.split(model, schedule, group.rank())
        pipeline = Pipeline(parts, schedule, group)
        optimizer = torch.optim.AdamW(pipeline.parameters())
        loss = pipeline.step(tokens, targets)    # adds the gradients
        optimizer.step()

    parts: this stage's modules, by chunk. A part takes what the part before it returns: one tensor
    whose first dim is samples. The model's last part also takes targets, and then returns the mean
    loss. A parameter in `part.shared` is also in the part at the model's other end (tied
    embeddings), and gets the sum of both gradients.
    """

    def __init__(self, parts: Sequence[nn.Module], schedule: Schedule, group: Group) -> None:
        super().__init__()
        if (group.size(), len(parts)) != (schedule.num_stages, schedule.num_chunks):
            raise ValueError(
                f"{schedule.name} has {schedule.num_stages} stages with {schedule.num_chunks} "
                f"parts each, and here are {group.size()} ranks with {len(parts)}; "
                f"make the schedule for {group.size()} stages and cut by it"
            )
        rank = group.rank()
        self.parts = nn.ModuleList(parts)
        self.schedule = check(schedule)
        self.group = group
        self.messages = StageMessages(schedule, group)
        self.stage = Stage(schedule, rank, parts)
        self.training_plan = plan(schedule)[rank]
        self.inference_plan = plan(schedule.forward_only())[rank]
        self.events: list[Event] = []  # the actions of the last batch
        self.live = 0  # the most microbatches, times chunks, that were held at the same time
        self.negotiated = torch.Size()  # the shape of the batches, [B, ...]
        self.input_stage, _ = schedule.homes[0]  # has the model's first part
        self.loss_stage, _ = schedule.homes[-1]  # has its last part
        self.shared = self._shared_weights()
        self._equalize()

    def step(
        self, tokens: Tensor | None = None, targets: Tensor | None = None, scale: float = 1.0
    ) -> Tensor | None:
        """Add the gradients of the mean loss over a batch; return that loss where the last part is.

        Other stages return the balance losses of their mixtures, or None without any.

        tokens [B, ...] are needed on the first part's stage, targets [B, ...] on the last part's.
        Microbatches differ by at most one sample. scale: a factor of the loss (see `sampler`), the
        same on all stages.
        """
        earlier = [weight.grad for weight in self.shared]
        for weight in self.shared:
            weight.grad = None
        batch = self._training_batch(tokens, targets, scale)
        losses = self._run(self.training_plan, batch)
        self._sum_shared(earlier)
        found = [batch.weight(i) * loss for i, loss in enumerate(losses)]
        if self.stage.balance is not None:
            found.append(self.stage.balance)
        return torch.stack(found).sum() if found else None

    @torch.no_grad()
    def predict(self, tokens: Tensor | None = None) -> Tensor | None:
        """Return the model's output for tokens [B, ...] where the last part is; None elsewhere."""
        inputs = self._inputs(tokens)
        results = self._run(self.inference_plan, Batch(sizes=self.messages.sizes, inputs=inputs))
        return torch.cat(results) if results else None

    def negotiate(self, tokens: Tensor | None = None) -> None:
        """Make the shapes of a batch known to all stages, which must all call it.

        The first batch does so by itself. Call it before batches of another shape.
        """
        is_first = self.group.rank() == self.input_stage
        inputs = self._microbatches("tokens", tokens) if is_first else ()
        self.messages.negotiate(self.stage.parts, inputs)
        self.negotiated = torch.Size() if tokens is None else tokens.shape

    def _run(self, program: Sequence[Instruction], batch: Batch) -> list[Tensor]:
        """Execute a program; return the last part's results, if that is on this stage."""
        self.messages.begin()
        self.stage.begin(batch)
        self.events = []
        self.live = 0
        for instruction in program:
            if instruction.verb == "receive":
                self.messages.expect(instruction)
            elif instruction.verb == "send":
                self.messages.send(instruction)
            else:
                self._compute(instruction)
        self.messages.end()
        return [result for _, result in sorted(self.stage.results.items())]

    def _compute(self, instruction: Instruction) -> None:
        """Compute one action, between what it takes from other parts and makes for them."""
        x = self.messages.take(instruction.action)              # [n, ...], waits until it is here
        start = time.perf_counter()
        y = self.stage.do(instruction.action, x)                # [n, ...]
        self.messages.put(instruction.action, y)
        self.live = max(self.live, self.stage.live)
        rank = self.group.rank()
        end = time.perf_counter()
        self.events.append(Event(rank, "compute", str(instruction.action), (rank,), 0, start, end))

    def _training_batch(
        self, tokens: Tensor | None, targets: Tensor | None, scale: float = 1.0
    ) -> Batch:
        """Cut this stage's share of a batch into microbatches."""
        inputs = self._inputs(tokens)
        is_last = self.group.rank() == self.loss_stage
        return Batch(
            sizes=self.messages.sizes,
            inputs=inputs,
            targets=self._microbatches("targets", targets) if is_last else (),
            scale=scale,
        )

    def _inputs(self, tokens: Tensor | None) -> tuple[Tensor, ...]:
        """Cut tokens into microbatches where the first part is; before the first batch, negotiate.

        Errors: ValueError for another shape than was negotiated.
        """
        if not self.messages.sizes:
            self.negotiate(tokens)
        if self.group.rank() != self.input_stage:
            return ()
        if tokens is not None and tokens.shape != self.negotiated:
            raise ValueError(
                f"tokens {list(tokens.shape)}, where {list(self.negotiated)} was negotiated; "
                "call negotiate(tokens) on all stages first"
            )
        return self._microbatches("tokens", tokens)

    def _microbatches(self, name: str, x: Tensor | None) -> tuple[Tensor, ...]:
        """Split the samples of x into microbatches: [B, ...] -> [n, ...] each."""
        count = self.schedule.num_microbatches
        if x is None:
            raise ValueError(f"stage {self.group.rank()} needs {name}; pass them to it, or to all")
        if len(x) < count:
            raise ValueError(
                f"{len(x)} samples do not fill {count} microbatches; "
                f"use a schedule of {len(x)} or fewer"
            )
        return x.tensor_split(count)

    # ---- weights at both ends of the model -----------------------------------------------------

    @property
    def _other_end(self) -> int:
        """The stage at the model's other end, seen from either end."""
        is_first = self.group.rank() == self.input_stage
        return self.loss_stage if is_first else self.input_stage

    def _shared_weights(self) -> list[nn.Parameter]:
        """Find the weights that this stage shares with the one at the model's other end."""
        if self.input_stage == self.loss_stage:
            return []
        for stage, chunk in (self.schedule.homes[0], self.schedule.homes[-1]):
            if stage == self.group.rank():
                return list(getattr(self.parts[chunk], "shared", []))
        return []

    @torch.no_grad()
    def _equalize(self) -> None:
        """Overwrite the last part's copies of shared weights with those of the first part."""
        for weight in self.shared:
            other = self.messages.swap(weight, self._other_end)
            if self.group.rank() != self.input_stage:
                weight.data = other  # a hollow weight cannot be overwritten

    def _sum_shared(self, earlier: Sequence[Tensor | None]) -> None:
        """Give both copies of a shared weight both gradients, added to `earlier` ones.

        a + b and b + a are bitwise identical, so the copies stay equal.
        """
        for weight, before in zip(self.shared, earlier, strict=True):
            if weight.grad is not None:  # it is not frozen
                total = weight.grad + self.messages.swap(weight.grad, self._other_end)
                weight.grad = total if before is None else before + total
