"""Pipeline parallelism, plainly: each rank has some layers of the model.

GPipe: https://arxiv.org/abs/1811.06965. 1F1B: https://arxiv.org/abs/2104.04473.

    model = Transformer(spec)             # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    stage = pipeline.Stage(model, group)  # this rank's layers
    optimizer = torch.optim.AdamW(stage.layers.parameters())
    for batch in batches:                 # [B, S + 1], the same on every rank
        parts = [(part[:, :-1], part[:, 1:]) for part in batch.split(b)]
        stage.step(parts, pipeline.one_forward_one_backward)  # or pipeline.gpipe
        optimizer.step()

B = samples in the batch, b = samples in a microbatch, S = sequence, D = hidden
size, V = vocabulary. Every tensor is whole: the ranks hold different layers.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, arange, nn

from shardlab import comm

Parts = Sequence[tuple[Tensor, Tensor]]  # inputs and targets, [b, S] each


class Stage:
    """One rank's layers, and what they keep between a forward and its backward."""

    def __init__(self, model: Any, group: comm.Group):
        self.model, self.group, size = model, group, group.size()
        self.before, self.after = group.rank(), size - 1 - group.rank()  # stages
        if len(model.blocks) < size - 1:
            raise ValueError(f"{size} stages for {len(model.blocks)} blocks; use fewer")
        mine = arange(len(model.blocks)).tensor_split(size)[self.before]  # first ones: one more
        layers = [*([] if self.before else [model.embedding]), *(model.blocks[n] for n in mine)]
        self.layers = nn.Sequential(*layers, *([] if self.after else [model.norm, model.head]))
        self.tied = model.spec.tied and (not self.before) != (not self.after)
        self.back = comm.split(group, size)  # gradients never queue behind outputs
        self.kept: list[tuple[Any, Tensor]] = []  # input and output, until backward
        self.sent: list[Any] = []  # in flight, and how to wait

    def forward(self, inputs: Tensor, targets: Tensor, share: float) -> None:
        """Receive an input, compute, and send the output to the next stage."""
        x = self.receive(inputs, self.group, self.before - 1) if self.before else inputs
        x.requires_grad_(self.before > 0)  # [b, S, D], and backward fills x.grad
        y = self.layers(x)                # [b, S, D]; last stage: [b, S, V]
        if self.after:
            self.send(y.detach().contiguous(), self.group, self.before + 1)
        else:
            y = share * self.model.loss(y, targets)  # []
        self.kept.append((x, y))

    def backward(self) -> None:
        """Receive the oldest output's gradient, go back, send the input's."""
        x, y = self.kept.pop(0)
        gradient = self.receive(y, self.back, self.before + 1) if self.after else None
        if y.requires_grad:               # unless all layers so far are frozen
            y.backward(gradient)          # [b, S, D], to parameters and to x
        if self.before:
            self.send(x.grad.contiguous(), self.back, self.before - 1)  # [b, S, D]

    def send(self, x: Tensor, group: comm.Group, to: int) -> None:
        """Start to send, and return: the neighbour may be sending to this rank."""
        self.sent.append((x, *comm.start([(x, to)], [], group)))

    def receive(self, like: Tensor, group: comm.Group, source: int) -> Tensor:
        """Wait for a tensor [b, S, D], for b and S of `like`: [b, S, ...]."""
        x: Tensor = self.model.norm.weight.detach().expand(*like.shape[:2], -1).clone()
        comm.start([], [(x, source)], group)[0]()
        return x

    def step(self, microbatches: Parts, schedule: Callable[..., None]) -> None:
        """Fill the gradients of this rank's layers with those of the mean loss."""
        self.layers.zero_grad()
        schedule(self, microbatches, sum(len(inputs) for inputs, _ in microbatches))
        while self.sent:
            self.sent.pop()[1]()
        head = self.model.head.weight     # of a tied head, on both ends
        if self.tied and head.grad is not None:
            head.grad += comm.exchange(head.grad, self.group, self.after, self.after)


def gpipe(stage: Stage, microbatches: Parts, samples: int) -> None:
    """Run all forwards, then all backwards: a stage keeps every microbatch."""
    for inputs, targets in microbatches:
        stage.forward(inputs, targets, len(inputs) / samples)
    while stage.kept:
        stage.backward()


def one_forward_one_backward(stage: Stage, microbatches: Parts, samples: int) -> None:
    """Run each backward as soon as it can: a stage keeps 1 + `stage.after`."""
    for number, (inputs, targets) in enumerate(microbatches):
        stage.forward(inputs, targets, len(inputs) / samples)
        if number >= stage.after:         # else no gradient is on its way yet
            stage.backward()
    while stage.kept:
        stage.backward()
