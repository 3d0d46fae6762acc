"""Pipeline parallelism, plainly: each rank has some layers of the model.

GPipe: https://arxiv.org/abs/1811.06965. 1F1B: https://arxiv.org/abs/2104.04473.
The engine, `ranks.pipeline`, executes any schedule, and receives ahead of need.

    model = Transformer(spec)             # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    stage = pipeline.Stage(model, group)  # this rank's layers
    del model                             # frees the layers of the other ranks
    optimizer = torch.optim.AdamW(stage.layers.parameters())
    for batch in batches:                 # [B, S + 1], the same on every rank
        parts = [(part[:, :-1], part[:, 1:]) for part in batch.split(n)]
        stage.step(parts, pipeline.one_forward_one_backward)  # or pipeline.gpipe
        optimizer.step()

B = samples in the batch, n = samples in a microbatch, S = sequence, h = width
between layers, V = vocabulary. All tensors are whole: ranks hold different layers.
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, arange, nn

from shardlab import comm

Parts = Sequence[tuple[Tensor, Tensor]]  # inputs and targets, [n, S] each


def gpipe(stage: "Stage", microbatches: Parts, samples: int) -> None:
    """Run all forwards, then all backwards: a stage keeps every microbatch."""
    for inputs, targets in microbatches:
        stage.forward(inputs, targets, len(inputs) / samples)
    while stage.kept:
        stage.backward()


def one_forward_one_backward(stage: "Stage", microbatches: Parts, samples: int) -> None:
    """Run each backward as soon as it can: a stage keeps 1 + `stage.after`."""
    # Warm-up: forwards only. No gradient can be back before they are done.
    warm_up = stage.after
    for inputs, targets in microbatches[:warm_up]:
        stage.forward(inputs, targets, len(inputs) / samples)

    # Steady state: one forward, one backward.
    for inputs, targets in microbatches[warm_up:]:
        stage.forward(inputs, targets, len(inputs) / samples)
        stage.backward()

    # Cool-down: backwards only.
    while stage.kept:
        stage.backward()


class Stage:
    """One rank's layers, and what they keep between a forward and its backward."""

    def __init__(self, model: Any, group: comm.Group):
        size, rank = group.size(), group.rank()
        if len(model.blocks) < size - 1:
            raise ValueError(f"{size} stages for {len(model.blocks)} blocks; use fewer")
        self.before = rank                # stages before this one
        self.after = size - 1 - rank      # stages after it
        self.layers = nn.Sequential()
        if self.before == 0:
            self.layers.append(model.embedding)
        for number in arange(len(model.blocks)).tensor_split(size)[rank]:
            self.layers.append(model.blocks[number])  # first stages: one more
        if self.after == 0:
            self.layers.extend([model.norm, model.head])
        self.loss = model.loss
        self.hidden = model.spec.hidden_size
        self.weight = next(self.layers.parameters())  # has the dtype and device of all
        self.group = group
        one_end = (self.before == 0) != (self.after == 0)  # not both: a single stage
        self.tied = model.head.weight if model.spec.tied and one_end else None
        self.outputs = Channel(group, source=rank - 1, to=rank + 1)
        back = comm.split(group, size)    # the same ranks, with a queue of their own
        self.gradients = Channel(back, source=rank + 1, to=rank - 1)
        self.kept: list[tuple[Any, Tensor]] = []  # input and output, until backward

    def forward(self, inputs: Tensor, targets: Tensor, share: float) -> None:
        """Receive an input, compute, and send the output to the next stage."""
        x = inputs                        # [n, S]
        if self.before:
            batch, sequence = inputs.shape
            empty = self.weight.new_empty(batch, sequence, self.hidden)
            x = self.outputs.receive(empty)  # [n, S, h]
            x.requires_grad_()            # so that backward leaves a gradient in x.grad
        y = self.layers(x)                # [n, S, h]; last stage: [n, S, V]
        if self.after:
            self.outputs.send(y.detach())  # the numbers, without their history
        else:
            y = share * self.loss(y, targets)  # [], this microbatch's part of the mean
        self.kept.append((x, y))

    def backward(self) -> None:
        """Receive the oldest output's gradient, go back, and send the input's."""
        x, y = self.kept.pop(0)
        gradient = None                   # the last stage begins with its loss
        if self.after:
            gradient = self.gradients.receive(y.new_empty(y.shape))  # [n, S, h]
        if y.requires_grad:               # else it is the first, and frozen
            y.backward(gradient)          # fills the gradients of parameters and of x
        if self.before:
            self.gradients.send(x.grad)   # [n, S, h]

    def step(self, microbatches: Parts, schedule: Callable[..., None]) -> None:
        """Fill the gradients of this rank's layers with those of the mean loss."""
        self.layers.zero_grad()
        samples = sum(len(inputs) for inputs, _ in microbatches)
        schedule(self, microbatches, samples)
        self.outputs.finish()
        self.gradients.finish()
        if self.tied is not None and self.tied.grad is not None:
            other_end = self.group.size() - 1 if self.before == 0 else 0
            theirs = comm.exchange(self.tied.grad, self.group, other_end, other_end)
            self.tied.grad += theirs      # [V, h], of both its uses


class Channel:
    """Messages in one direction: outputs go down the stages, and gradients up.

    One message may be in flight, because neighbours that send to each other must not
    both wait until theirs has arrived. More may not, because each holds a tensor.
    """

    def __init__(self, group: comm.Group, source: int, to: int):
        self.group, self.source, self.to = group, source, to
        self.in_flight: tuple[Tensor, comm.Wait] | None = None

    def receive(self, empty: Tensor) -> Tensor:
        """Wait for the next message, and return it in the tensor given."""
        [wait] = comm.start_messages([], [(empty, self.source)], self.group)
        wait()
        return empty

    def send(self, x: Tensor) -> None:
        """Wait until the last message has gone, then start to send this one."""
        self.finish()
        x = x.contiguous()
        [wait] = comm.start_messages([(x, self.to)], [], self.group)
        self.in_flight = (x, wait)        # holds the tensor until it has gone

    def finish(self) -> None:
        """Wait until the message in flight has gone, if there is one."""
        if self.in_flight is not None:
            _, wait = self.in_flight
            wait()
            self.in_flight = None
