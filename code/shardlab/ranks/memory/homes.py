"""Where the parameters of a module are at home while it is offloaded: in the host's memory, or in a file there."""

from pathlib import Path

import torch
from torch import Tensor, nn


class Home:
    """The parameters of one module, side by side in the host's memory."""

    def __init__(self, module: nn.Module, device: torch.device, file: Path | None):
        for buffer in module.buffers():
            buffer.data = buffer.data.to(device)
        self.parameters = list(module.parameters())
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.away = False
        self.gradients: list[Tensor | None] = [None for _ in self.parameters]  # while the parameters are away
        self.numbers = self._memory(device, file)
        self.at_home = self._views(self.numbers)
        for view, parameter in zip(self.at_home, self.parameters, strict=True):
            parameter.data = view.copy_(parameter.data)
        self._device = device
        self._sums: list[Tensor] | None = None

    def _memory(self, device: torch.device, file: Path | None = None) -> Tensor:
        dtype = self.parameters[0].dtype
        if file is not None:
            return torch.from_file(str(file), shared=True, size=sum(self.sizes), dtype=dtype)
        return torch.empty(sum(self.sizes), dtype=dtype, pin_memory=device.type == "cuda")  # pinned: copies are faster

    def _views(self, numbers: Tensor) -> list[Tensor]:
        return [part.view_as(p) for part, p in zip(numbers.split(self.sizes), self.parameters, strict=True)]

    @property
    def versions(self) -> list[int]:
        """Numbers that grow whenever a parameter is changed."""
        return [parameter._version for parameter in self.parameters]

    def in_room(self, room: Tensor) -> Tensor:
        """The part of a room that the parameters fill."""
        return room[: self.numbers.nbytes].view(self.numbers.dtype)

    def lend(self, room: Tensor) -> None:
        """Let the parameters be those in the room, and put their gradients aside."""
        for place, (view, parameter) in enumerate(zip(self._views(self.in_room(room)), self.parameters, strict=True)):
            self.gradients[place], parameter.grad = parameter.grad, None
            parameter.data = view
        self.away = True

    def take_back(self) -> None:
        """Let the parameters be those at home again."""
        for place, (view, parameter) in enumerate(zip(self.at_home, self.parameters, strict=True)):
            parameter.data = view
            parameter.grad, self.gradients[place] = self.gradients[place], None
        self.away = False

    def receive(self, place: int) -> None:
        """Copy a gradient from the device, or add it to what came before."""
        parameter, before = self.parameters[place], self.gradients[place]
        new, parameter.grad = parameter.grad, None
        assert new is not None
        if before is not None:
            before += new.to(before.device)
        else:
            self._sums = self._sums or self._views(self._memory(self._device))
            self.gradients[place] = self._sums[place].copy_(new)
        if not self.away:  # it came late
            parameter.grad, self.gradients[place] = self.gradients[place], None
