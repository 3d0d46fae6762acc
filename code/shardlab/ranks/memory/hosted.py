"""The host's side of `offload`: a module's parameters in the host's memory, and copies from there.

Shapes: n = all numbers of one module.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Wait = Callable[[], object]  # returns when a copy has completed
Copy = Callable[[Tensor, Tensor, bool], Wait]  # from the first tensor to the second, or added to it


class Hosted:
    """The parameters of one module, side by side in the host's memory."""

    def __init__(self, module: nn.Module, device: torch.device, file: Path | None):
        for buffer in module.buffers():
            buffer.data = buffer.data.to(device)
        self.parameters = list(module.parameters())
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.on_device = False
        # while the parameters are on the device, the gradients that the host has already
        self.gradients: list[Tensor | None] = [None for _ in self.parameters]
        self.numbers = self._memory(device, file)                     # [n], all parameters
        self.views = self._views(self.numbers)                        # one for each parameter
        for view, parameter in zip(self.views, self.parameters, strict=True):
            parameter.data = view.copy_(parameter.data)
        self._device = device
        self._sums: list[Tensor] | None = None

    def _memory(self, device: torch.device, file: Path | None = None) -> Tensor:
        size = sum(self.sizes)
        dtype = self.parameters[0].dtype
        if file is not None:
            return torch.from_file(str(file), shared=True, size=size, dtype=dtype)
        pinned = device.type == "cuda"  # copies from pinned memory are faster
        return torch.empty(size, dtype=dtype, pin_memory=pinned)

    def _views(self, numbers: Tensor) -> list[Tensor]:
        """Cut numbers into the shapes of the parameters: [n] -> one tensor for each parameter."""
        parts = numbers.split(self.sizes)
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    @property
    def versions(self) -> list[int]:
        """Numbers that grow whenever a parameter is changed."""
        return [parameter._version for parameter in self.parameters]

    def part_of(self, slot: Tensor) -> Tensor:
        """Return the part of a slot that the parameters fill: [bytes] -> [n]."""
        return slot[: self.numbers.nbytes].view(self.numbers.dtype)

    def use(self, slot: Tensor) -> None:
        """Point the parameters at their copies in the slot, and put their gradients aside."""
        views = self._views(self.part_of(slot))
        for place, (view, parameter) in enumerate(zip(views, self.parameters, strict=True)):
            self.gradients[place] = parameter.grad
            parameter.grad = None
            parameter.data = view
        self.on_device = True

    def restore(self) -> None:
        """Point the parameters at the host's memory again, with their gradients."""
        for place, (view, parameter) in enumerate(zip(self.views, self.parameters, strict=True)):
            parameter.data = view
            self._restore_gradient(place)
        self.on_device = False

    def receive(self, place: int, copy: Copy) -> Wait:
        """Start to copy a gradient from the device, or to add it to what the host has."""
        parameter = self.parameters[place]
        new = parameter.grad
        before = self.gradients[place]
        assert new is not None
        parameter.grad = None
        total = before
        if total is None:
            self._sums = self._sums or self._views(self._memory(self._device))
            total = self.gradients[place] = self._sums[place]
        arrives = copy(new, total, before is not None)
        if not self.on_device:  # backward made it after the module was evicted
            self._restore_gradient(place)
        return arrives

    def _restore_gradient(self, place: int) -> None:
        self.parameters[place].grad = self.gradients[place]
        self.gradients[place] = None


def at_once(source: Tensor, target: Tensor, add: bool) -> Wait:
    """Copy now, or add."""
    if add:
        target += source.to(target.device)
    else:
        target.copy_(source)
    return lambda: None


def in_background(device: torch.device) -> Copy:
    """Return a copy on a thread of its own; on a GPU also on a stream of its own.

    Copies follow one another; each waits for the work that is queued on the current stream when it
    is started. Neither the caller nor the current stream waits for it.
    """
    thread = ThreadPoolExecutor(max_workers=1)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(source: Tensor, target: Tensor, add: bool, before: Any) -> None:
        if stream is None:
            at_once(source, target, add)
            return
        with torch.no_grad(), torch.cuda.stream(stream):
            stream.wait_event(before)
            if add:
                at_once(source, target, add)
            else:
                target.copy_(source, non_blocking=True)
        stream.synchronize()  # this thread alone waits; `source` lives until then

    def start(source: Tensor, target: Tensor, add: bool = False) -> Wait:
        before = None if stream is None else torch.cuda.current_stream(device).record_event()
        return thread.submit(copy, source, target, add, before).result

    return start
