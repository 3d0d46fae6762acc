"""Messages between stages of a pipeline: activations forward, gradients backward, shapes first.

A receive starts before it is needed, and a send is waited for long after it has started. Both
follow the order of the schedule's plan, so messages need no tags, and no two ranks can wait for
each other.

Shapes: n samples in a microbatch; a message is [n, ...], in the shape that its part was found to
return.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardlab import comm
from shardlab.schedules import Action, Instruction, Schedule

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # sent by their index
MAX_DIMS = 8  # of what a part returns
MAX_SENDS = 16  # in flight; with fewer, a stage that is ahead would wait for one that is late
Key = tuple[bool, int, int]  # as `Instruction.message`: goes forward, receiving part, microbatch


class MessageInFlight(NamedTuple):
    """A message that has been started, with the tensor that it reads or fills."""

    tensor: Tensor  # [n, ...]
    wait: Callable[[], Any]


class Border(NamedTuple):
    """What a part passes to the next one, for one sample."""

    shape: list[int]
    dtype: torch.dtype


class StageMessages:
    """The messages that one stage sends and receives."""

    def __init__(self, schedule: Schedule, group: comm.Group) -> None:
        self.schedule = schedule
        self.group = group
        self.stage = group.rank()
        self.sizes: list[int] = []  # samples of each microbatch
        self.borders: list[Border] = []  # after each part but the last
        self.receives: dict[Key, MessageInFlight] = {}
        self.sends: deque[MessageInFlight] = deque()
        self.outgoing: dict[Key, Tensor] = {}  # made here, not yet sent
        self.local: dict[Key, Tensor] = {}  # made here, for another part of this stage

    # ---- one batch -----------------------------------------------------------------------------

    def begin(self) -> None:
        """Drop what a failed batch may have left."""
        self.receives.clear()
        self.sends.clear()
        self.outgoing.clear()
        self.local.clear()

    def expect(self, instruction: Instruction) -> None:
        """Start to receive the message of `instruction`."""
        is_forward, part, microbatch = instruction.message
        shape, dtype = self.borders[part - 1 if is_forward else part]
        device = comm.device(self.group)
        buffer = torch.empty(self.sizes[microbatch], *shape, dtype=dtype, device=device)
        (wait,) = comm.start_messages([], [(buffer, instruction.peer)], self.group)
        self.receives[instruction.message] = MessageInFlight(buffer, wait)

    def take(self, action: Action) -> Tensor | None:
        """Wait for what the action needs from another part: [n, ...]; None for nothing."""
        if self.schedule.source(self.stage, action) is None:
            return None
        key = _key(action, self.schedule.parts[self.stage][action.chunk])
        if key in self.local:
            return self.local.pop(key)
        message = self.receives.pop(key)
        message.wait()
        return message.tensor

    def put(self, action: Action, y: Tensor | None) -> None:
        """Keep what the action has made, [n, ...], for the part that needs it."""
        part = self.schedule.target(self.stage, action)
        if part is None or y is None:
            return
        stage, _ = self.schedule.homes[part]
        waiting = self.local if stage == self.stage else self.outgoing
        waiting[_key(action, part)] = y

    def send(self, instruction: Instruction) -> None:
        """Start a send; at most MAX_SENDS are in flight, since each keeps its tensor alive."""
        if len(self.sends) == MAX_SENDS:
            self.sends.popleft().wait()
        y = self.outgoing.pop(instruction.message).contiguous()
        (wait,) = comm.start_messages([(y, instruction.peer)], [], self.group)
        self.sends.append(MessageInFlight(y, wait))

    def end(self) -> None:
        """Wait for all sends in flight."""
        while self.sends:
            self.sends.popleft().wait()

    # ---- before the first batch ----------------------------------------------------------------

    def negotiate(self, parts: Sequence[nn.Module], inputs: Sequence[Tensor]) -> None:
        """Find the sizes of microbatches and what each part passes on; all stages must call it.

        parts: of this stage, by chunk. inputs: the microbatches, on the stage of the first part.
        Each part is called once on torch's meta device, with what the part before it would pass on.
        """
        homes = self.schedule.homes
        first_stage, _ = homes[0]
        num_samples = [len(x) for x in inputs]
        sizes = self._broadcast(num_samples, self.schedule.num_microbatches, first_stage)
        x = inputs[0].to("meta") if inputs else torch.empty(0)
        borders = []
        for stage, chunk in homes[:-1]:
            y = _dry_run(parts[chunk], x) if stage == self.stage else torch.empty(0)
            described = [DTYPES.index(y.dtype), y.ndim, *y.shape]
            index, num_dims, *padded = self._broadcast(described, 2 + MAX_DIMS, stage)
            shape = padded[:num_dims]
            x = torch.empty(shape, dtype=DTYPES[index], device="meta")
            borders.append(Border(shape[1:], DTYPES[index]))
        self.sizes = sizes
        self.borders = borders

    def swap(self, x: Tensor, stage: int) -> Tensor:
        """Exchange tensors of the same shape with another stage: [...] -> [...]."""
        return comm.exchange(x, self.group, to=stage, source=stage)

    def _broadcast(self, numbers: list[int], count: int, source: int) -> list[int]:
        """Broadcast `numbers` from `source`, cut or zero-padded to `count`."""
        padded = [*numbers, *[0] * count][:count]
        own = torch.tensor(padded, device=comm.device(self.group))
        found: list[int] = comm.broadcast(own, self.group, source).tolist()
        return found


def _key(action: Action, part: int) -> Key:
    """Name the message that an action takes or makes for `part`, as `Instruction.message`."""
    return action.kind == "F", part, action.microbatch


def _dry_run(part: nn.Module, x: Tensor) -> Tensor:
    """Return what the part makes of x on torch's meta device: the shape without the numbers."""
    named = [*part.named_parameters(), *part.named_buffers()]
    with torch.no_grad():  # so that hooks of gradients do not see the copies
        state = {name: tensor.to("meta") for name, tensor in named}
        y: Tensor = functional_call(part, state, (x,))
    return y
