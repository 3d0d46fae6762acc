"""What the stages of a pipeline tell each other: activations forward, gradients backward, and first of all the shapes.

A send is started and forgotten until its turn comes to be waited for, a receive is started before it is needed, and
both in the order of the schedule's plan: so messages need no names, and no two ranks wait for each other.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from shardlab.schedules import Action, Schedule, Step

from .. import comm

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # of what parts hand on, told by their place
DIMS = 8  # at most, of the same
UNDER_WAY = 16  # messages: with fewer, a stage that is ahead would wait for one that is late
Name = tuple[bool, int, int]  # of a message: whether it goes forward, the part that needs it, the microbatch


class Mail:
    """One stage's messages."""

    def __init__(self, schedule: Schedule, group: comm.Group) -> None:
        self.schedule, self.group, self.stage = schedule, group, group.rank()
        self.sizes: list[int] = []  # samples of each microbatch
        self.borders: list[tuple[list[int], torch.dtype]] = []  # what each part hands to the next, for one sample
        self.begin()

    def begin(self) -> None:
        """Forget what is left of the last batch."""
        self.arriving: dict[Name, tuple[Tensor, Callable[[], Any]]] = {}
        self.here: dict[Name, Tensor] = {}  # from a part of this stage, for a part of this stage
        self.made: dict[Name, Tensor] = {}  # to be sent
        self.sent: deque[tuple[Tensor, Callable[[], Any]]] = deque()

    # ---- one batch ----------------------------------------------------------------------------------------------

    def expect(self, step: Step) -> None:
        """Start to receive."""
        forward, part, microbatch = step.message
        shape, dtype = self.borders[part - 1 if forward else part]
        buffer = torch.empty(self.sizes[microbatch], *shape, dtype=dtype, device=comm.device(self.group))
        (wait,) = comm.start([], [(buffer, step.peer)], self.group)
        self.arriving[step.message] = buffer, wait

    def take(self, action: Action) -> Tensor | None:
        """What the action needs from another part, as soon as it is here; None where it needs nothing."""
        if self.schedule.source(self.stage, action) is None:
            return None
        name = (action.kind == "F", self.schedule.parts[self.stage][action.chunk], action.microbatch)
        if name in self.here:
            return self.here.pop(name)
        buffer, wait = self.arriving.pop(name)
        wait()
        return buffer

    def put(self, action: Action, y: Tensor | None) -> None:
        """What the action has made for another part, of this stage or of another one."""
        part = self.schedule.target(self.stage, action)
        if part is not None and y is not None:
            stays = self.schedule.homes[part][0] == self.stage
            (self.here if stays else self.made)[action.kind == "F", part, action.microbatch] = y

    def send(self, step: Step) -> None:
        """Start to send; but only so many messages are under way, for their tensors must be kept."""
        if len(self.sent) == UNDER_WAY:
            self._wait()
        y = self.made.pop(step.message).contiguous()
        (wait,) = comm.start([(y, step.peer)], [], self.group)
        self.sent.append((y, wait))

    def end(self) -> None:
        """Wait until all that was sent has been received."""
        while self.sent:
            self._wait()

    def _wait(self) -> None:
        _, wait = self.sent.popleft()
        wait()

    # ---- before the first -----------------------------------------------------------------------------------------

    def negotiate(self, parts: Sequence[nn.Module], inputs: Sequence[Tensor]) -> None:
        """Tell all stages how many samples microbatches have, and what each part hands on; all stages call it.

        parts: of this stage, by chunk. inputs: the microbatches, on the stage of the first part.
        """
        homes = self.schedule.homes
        sizes = self._told([len(x) for x in inputs], self.schedule.num_microbatches, homes[0][0])
        x, borders = inputs[0].to("meta") if inputs else torch.empty(0), []
        for home, chunk in homes[:-1]:
            y = _dry_run(parts[chunk], x) if home == self.stage else torch.empty(0)
            number, dims, *shape = self._told([DTYPES.index(y.dtype), y.ndim, *y.shape], 2 + DIMS, home)
            borders.append((shape[1:dims], DTYPES[number]))
            x = torch.empty(shape[:dims], dtype=DTYPES[number], device="meta")
        self.sizes, self.borders = sizes, borders

    def _told(self, numbers: list[int], count: int, source: int) -> list[int]:
        """The source's numbers on every stage, filled up with zeros to so many."""
        mine = torch.tensor((numbers + [0] * count)[:count], device=comm.device(self.group))
        told: list[int] = comm.broadcast(mine, self.group, source).tolist()
        return told

    def swap(self, x: Tensor, stage: int) -> Tensor:
        """Another stage's tensor, of the shape of the one that it gets."""
        return comm.exchange(x, self.group, to=stage, source=stage)


def _dry_run(part: nn.Module, x: Tensor) -> Tensor:
    """What the part returns, on torch's meta device: the shape without the numbers."""
    with torch.no_grad():  # so that what listens to gradients takes none of these for the part's own weights
        state = {name: each.to("meta") for name, each in [*part.named_parameters(), *part.named_buffers()]}
        y: Tensor = functional_call(part, state, (x,))
    return y
