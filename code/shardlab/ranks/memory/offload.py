"""Offload: keep parameters in the host's memory, and load them on the device module by module.

ZeRO-Offload (Ren et al. 2021, https://arxiv.org/abs/2101.06840) and ZeRO-Infinity (Rajbhandari et
al. 2021, https://arxiv.org/abs/2104.07857). Gradients go to the host, where they accumulate and
where any optimizer steps:

    offload = Offload(model.blocks, device)            # all other modules are on the device already
    optimizer = torch.optim.Adam(model.parameters())   # its states are made on the host
    model(tokens, targets).backward()
    optimizer.step()
    offload.moved                                      # bytes in each direction

Without a GPU, the device is the CPU, too: the copies are real, from one place in its memory to
another. With `prefetch`, a GPU computes on while gradients leave it: of the module in backward, and
of the one before. Without, it waits for each copy.
"""

import functools
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .. import backward
from .hosted import Hosted, Wait, at_once, in_background

WORD = 8  # bytes: a slot holds a whole number of words, so that it can be read as any dtype


class Offload:
    """Modules that compute on a device and keep their parameters in the host's memory.

    modules   in the order in which they compute; no parameter may be in two of them
    device    where they compute; their buffers move there for good
    prefetch  load the next module while one computes: the device has slots for two, not one
    folder    keep the parameters in files there, not in memory

    Between steps the parameters and their gradients are on the host; the next backward may
    overwrite the gradients. Modules that are recomputed in backward are loaded twice for each
    microbatch, as other modules are; call `recompute.wrap` first.

    Errors: ValueError for modules that share a parameter, or have parameters of several dtypes;
    RuntimeError for a parameter that changed while it was on the device.
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
        self.device = torch.device(device)
        self.moved = Counter({"to device": 0, "to host": 0})  # bytes
        self._hosted: list[Hosted] = []
        for index, module in enumerate(modules):
            file = None if folder is None else Path(folder, f"{index}.bin")
            self._hosted.append(Hosted(module, self.device, file))
        words = max(math.ceil(hosted.numbers.nbytes / WORD) for hosted in self._hosted)
        self.slots = [self._make_slot(words * WORD) for _ in range(1 + prefetch)]
        self._loaded: dict[int, _Loaded] = {}  # by module; the most recently used comes last
        self._copy, self._send = (
            in_background(self.device) if prefetch else at_once for _ in range(2)
        )
        self._leaving: deque[list[Wait]] = deque()  # gradients on their way, a list a module
        self._backwards = backward.Once()
        for index, module in enumerate(modules):
            forward = functools.partial(self._forward, index, module.forward)
            setattr(module, "forward", forward)  # noqa: B010
            for place, parameter in enumerate(self._hosted[index].parameters):
                if parameter.requires_grad:
                    send = functools.partial(self._send_gradient, index, place)
                    parameter.register_post_accumulate_grad_hook(send)

    def _make_slot(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self.device)

    def _forward(
        self, index: int, forward: Callable[..., Any], *inputs: Any, **options: Any
    ) -> Any:
        """Run a module's forward with its parameters on the device."""
        recomputes = backward.is_running()  # its backward follows at once, and needs them, too
        if recomputes:
            self._load_for_backward(index)
        else:
            self._load(index, then=index + 1)
        pack = functools.partial(self._pack, index)
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, self._unpack):
                result = forward(*inputs, **options)
        finally:
            if not recomputes:
                self._evict(index)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.requires_grad and not recomputes:
                # `and None`: the hook must not replace the gradient
                tensor.register_hook(lambda _: self._load_for_backward(index) and None)
        return result

    # ---- which parameters are on the device ----------------------------------------------------

    def _load_for_backward(self, index: int) -> "_Loaded":
        """Load a module in backward, which runs from the last module to the first."""
        self._backwards.begins(self._end_backward)
        if index not in self._loaded or not self._hosted[index].on_device:
            self._wait_for_gradients(but=1)
            self._leaving.append([])
        return self._load(index, then=index - 1)

    def _load(self, index: int, then: int) -> "_Loaded":
        """Put a module's parameters on the device; prefetch those of module `then`."""
        self._start_copy(index)
        loaded = self._loaded.pop(index)
        self._loaded[index] = loaded  # now the most recently used
        if not self._hosted[index].on_device:
            loaded.wait()
            self._hosted[index].use(loaded.slot)
        if len(self.slots) > 1 and 0 <= then < len(self._hosted):
            self._start_copy(then)
        return loaded

    def _start_copy(self, index: int) -> None:
        """Start to copy parameters to a slot, unless they are there; evict the oldest if needed."""
        hosted = self._hosted[index]
        loaded = self._loaded.get(index)
        if loaded is not None and loaded.versions == hosted.versions:
            return
        if loaded is not None:  # the parameters have changed since they were copied
            self._evict(index)
        if len(self._loaded) == len(self.slots):
            self._evict(next(iter(self._loaded)))
        taken = [each.slot.data_ptr() for each in self._loaded.values()]
        slot = next(slot for slot in self.slots if slot.data_ptr() not in taken)
        wait = self._copy(hosted.numbers, hosted.part_of(slot), False)
        self._loaded[index] = _Loaded(slot, wait, hosted.versions)
        self.moved["to device"] += hosted.numbers.nbytes

    def _evict(self, index: int) -> None:
        """Free a module's slot; nothing has changed the parameters, so they are not copied back."""
        loaded = self._loaded.pop(index)
        hosted = self._hosted[index]
        loaded.wait()
        if hosted.on_device:
            hosted.restore()
            if loaded.versions != hosted.versions:
                raise RuntimeError(
                    "a parameter changed while it was on the device; "
                    "step the optimizer after backward"
                )

    def _end_backward(self) -> None:
        for index in list(self._loaded):
            self._evict(index)
        self._wait_for_gradients()

    def _wait_for_gradients(self, but: int = 0) -> None:
        """Wait until gradients have arrived, except those of the `but` latest modules."""
        while len(self._leaving) > but:
            for arrives in self._leaving.popleft():
                arrives()

    # ---- what autograd keeps, and what it makes ------------------------------------------------

    def _pack(self, index: int, tensor: Tensor) -> Any:
        """Keep a tensor for backward; of a parameter only its place, because slots are reused."""
        slot = self._loaded[index].slot
        if tensor.untyped_storage().data_ptr() != slot.data_ptr():
            return tensor.detach()
        return _Place(
            index=index,
            dtype=tensor.dtype,
            shape=tensor.shape,
            stride=tensor.stride(),
            offset=int(tensor.storage_offset()),
        )

    def _unpack(self, kept: Any) -> Tensor:
        """Return a tensor that `_pack` has kept; load the module of a parameter."""
        if isinstance(kept, Tensor):
            return kept
        if not self._hosted[kept.index].on_device:
            self._load_for_backward(kept.index)
        slot = self._loaded[kept.index].slot
        return slot.view(kept.dtype).as_strided(kept.shape, kept.stride, kept.offset)

    def _send_gradient(self, index: int, place: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        self.moved["to host"] += parameter.grad.nbytes
        self._leaving[-1].append(self._hosted[index].receive(place, self._send))


@dataclass
class _Loaded:
    """A module's parameters on the device, or in flight to it."""

    slot: Tensor
    wait: Wait
    versions: list[int]  # of what was copied


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a saved parameter, or a view of one, is in its slot."""

    index: int  # of the module
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int


def _check(modules: Sequence[nn.Module]) -> None:
    seen: set[int] = set()
    for index, module in enumerate(modules):
        parameters = list(module.parameters())
        dtypes = {parameter.dtype for parameter in parameters}
        if len(dtypes) != 1:
            raise ValueError(
                f"module {index} has parameters of {len(dtypes)} dtypes; "
                "offload modules that have one"
            )
        ids = {id(parameter) for parameter in parameters}
        if seen & ids:
            raise ValueError(
                f"module {index} shares a parameter with an earlier one; offload them as one module"
            )
        seen |= ids
