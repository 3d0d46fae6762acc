"""Offload: parameters live in the host's memory and visit the device module by module, in forward and in backward.

ZeRO-Offload (Ren et al. 2021, https://arxiv.org/abs/2101.06840) and ZeRO-Infinity (Rajbhandari et al. 2021,
https://arxiv.org/abs/2104.07857). Gradients go home, where they add up and where any optimizer steps:

    offload = Offload(model.blocks, device)            # the rest of the model is on the device already
    optimizer = torch.optim.Adam(model.parameters())   # its states are made where the parameters live
    model(tokens, targets).backward()
    optimizer.step()
    offload.moved                                      # bytes each way

Where there is no GPU, the device is the CPU, too: the copies are real, from one place in its memory to another.
"""

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .. import backward
from .homes import Home

WORD = 8  # bytes: a room holds a whole number of them, so that it can be read as any dtype


class Offload:
    """Modules that compute on a device and live elsewhere.

    modules   in the order in which they compute; no parameter may be in two of them
    device    where they compute; their buffers move there for good
    prefetch  copy the next module in while one computes: two have room on the device, not one
    folder    keep the parameters in files there, not in memory

    Between steps parameters are at home, and so are their gradients, which the next backward may overwrite. Modules
    that are computed again in backward (`recompute.wrap`) come in twice for each microbatch, as others do.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        device: torch.device | str = "cpu",
        *,
        prefetch: bool = False,
        folder: str | Path | None = None,
    ):
        _check(modules)
        self.device, self.moved = torch.device(device), Counter({"to device": 0, "to host": 0})
        self._homes = [
            Home(module, self.device, None if folder is None else Path(folder, f"{index}.bin"))
            for index, module in enumerate(modules)
        ]
        words = max(-(-home.numbers.nbytes // WORD) for home in self._homes)
        self.rooms = [torch.empty(words * WORD, dtype=torch.uint8, device=self.device) for _ in range(1 + prefetch)]
        self._guests: dict[int, _Guest] = {}  # who was needed last comes last
        self._carry = _in_background(self.device) if prefetch else _at_once
        self._backwards = backward.Once()
        for index, module in enumerate(modules):
            setattr(module, "forward", functools.partial(self._visit, index, module.forward))  # noqa: B010
            for place, parameter in enumerate(self._homes[index].parameters):
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(functools.partial(self._send_home, index, place))

    def _visit(self, index: int, forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
        """A module's forward, with its parameters on the device."""
        again = backward.is_running()  # it recomputes, and will need them at once
        self._come_back(index) if again else self._come_in(index, then=index + 1)
        try:
            with torch.autograd.graph.saved_tensors_hooks(functools.partial(self._keep, index), self._find):
                result = forward(*inputs, **options)
        finally:
            if not again:
                self._leave(index)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.requires_grad and not again:
                tensor.register_hook(lambda _: self._come_back(index) and None)  # a hook that changes nothing
        return result

    def _come_back(self, index: int) -> "_Guest":
        """Come in for backward, which goes from the last module to the first; when it ends, everybody leaves."""
        self._backwards.begins(self._all_leave)
        return self._come_in(index, then=index - 1)

    def _come_in(self, index: int, then: int) -> "_Guest":
        """Bring a module's parameters to the device, and begin to bring those of the one needed then."""
        self._call(index)
        guest = self._guests[index] = self._guests.pop(index)  # the last to go
        if not self._homes[index].away:
            guest.wait()
            self._homes[index].lend(guest.room)
        if len(self.rooms) > 1 and 0 <= then < len(self._homes):
            self._call(then)
        return guest

    def _call(self, index: int) -> None:
        """Begin to copy parameters into a room, unless they are there; who was not needed for longest makes room."""
        home, guest = self._homes[index], self._guests.get(index)
        if guest is not None and guest.versions == home.versions:
            return
        if guest is not None:  # they have changed since they were called
            self._leave(index)
        if len(self._guests) == len(self.rooms):
            self._leave(next(iter(self._guests)))
        taken = [guest.room.data_ptr() for guest in self._guests.values()]
        room = next(room for room in self.rooms if room.data_ptr() not in taken)
        self._guests[index] = _Guest(room, self._carry(home.numbers, home.in_room(room)), home.versions)
        self.moved["to device"] += home.numbers.nbytes

    def _leave(self, index: int) -> None:
        """Free the room; what was copied is dropped, for nothing has changed it."""
        guest, home = self._guests.pop(index), self._homes[index]
        guest.wait()
        if home.away:
            home.take_back()
            if guest.versions != home.versions:
                raise RuntimeError("a parameter changed while it was on the device; step the optimizer after backward")

    def _all_leave(self) -> None:
        for index in list(self._guests):
            self._leave(index)

    def _keep(self, index: int, tensor: Tensor) -> Any:
        """What backward keeps of a parameter on the device: where it is, for the room will have other guests."""
        room = self._guests[index].room
        if tensor.untyped_storage().data_ptr() != room.data_ptr():
            return tensor.detach()
        return _Place(index, tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def _find(self, kept: Any) -> Tensor:
        if isinstance(kept, Tensor):
            return kept
        here = self._homes[kept.index].away
        room = (self._guests[kept.index] if here else self._come_back(kept.index)).room
        return room.view(kept.dtype).as_strided(kept.shape, kept.stride, kept.offset)

    def _send_home(self, index: int, place: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.moved["to host"] += parameter.grad.nbytes
        self._homes[index].receive(place)


@dataclass
class _Guest:
    """A module's parameters on the device, or on their way."""

    room: Tensor
    wait: Callable[[], object]  # returns when they are there
    versions: list[int]  # of what was copied


@dataclass(frozen=True)
class _Place:
    """A saved parameter, or a view of one, without its numbers."""

    index: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


def _at_once(source: Tensor, target: Tensor) -> Callable[[], object]:
    target.copy_(source)
    return lambda: None


def _in_background(device: torch.device) -> Callable[[Tensor, Tensor], Callable[[], object]]:
    """Copies on a thread of their own; on a GPU also on a stream of their own, after what was asked of it before."""
    thread = ThreadPoolExecutor(max_workers=1)
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(source: Tensor, target: Tensor, before: Any) -> None:
        if stream is None:
            target.copy_(source)
            return
        with torch.cuda.stream(stream):
            stream.wait_event(before)
            target.copy_(source, non_blocking=True)
        stream.synchronize()

    def start(source: Tensor, target: Tensor) -> Callable[[], object]:
        before = None if stream is None else torch.cuda.current_stream(device).record_event()
        return thread.submit(copy, source, target, before).result

    return start


def _check(modules: Sequence[nn.Module]) -> None:
    seen: set[int] = set()
    for index, module in enumerate(modules):
        parameters = list(module.parameters())
        if len(dtypes := {parameter.dtype for parameter in parameters}) != 1:
            raise ValueError(f"module {index} has parameters of {len(dtypes)} dtypes; offload modules that have one")
        if seen & {id(parameter) for parameter in parameters}:
            raise ValueError(f"module {index} shares a parameter with an earlier one; offload them as one module")
        seen |= {id(parameter) for parameter in parameters}
