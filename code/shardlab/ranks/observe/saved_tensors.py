"""Counts what autograd keeps from the forward pass for the backward pass, storage by storage.

The hooks are torch's: https://docs.pytorch.org/docs/stable/autograd.html#torch.autograd.graph.saved_tensors_hooks
"""

import time
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode


class SavedTensors:
    """Context manager: bytes that autograd keeps, of the operations that run inside its block.

        with SavedTensors(without=model.parameters()) as saved:
            loss = model(tokens, targets)
            print(saved.nbytes)      # what the forward pass left
            loss.backward()
        saved.peak, saved.timeline   # the most at any time; [(seconds since the start, bytes), ...]

    A storage counts once and whole, however many operations keep it or a view of it, until the last of them is done.
    without: tensors that are there anyway (parameters, tokens) and do not count. What an operation keeps as other
    things than tensors is not seen; nor is what a hook inside the block keeps in its own way: the
    non-reentrant `torch.utils.checkpoint` shows only the inputs it keeps, not what it computes again.
    """

    def __init__(self, without: Iterable[Tensor] = ()) -> None:
        self.timeline: list[tuple[float, int]] = []
        self.nbytes = 0
        self._keepers: Counter[int] = Counter()  # address of a storage -> how many operations keep it
        self._without = {_storage(tensor)._cdata: tensor for tensor in without}  # alive: no address is used again
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda kept: kept.tensor)

    @property
    def peak(self) -> int:
        """The most bytes that were kept at any time."""
        return max((nbytes for _, nbytes in self.timeline), default=0)

    def __enter__(self) -> "SavedTensors":
        self._start = time.perf_counter()
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> "_Kept":
        return _Kept(tensor.detach(), self)  # not the tensor itself: an operation that keeps its result keeps itself

    def _change(self, address: int, nbytes: int, by: int) -> None:
        if address in self._without:
            return
        before = self._keepers[address]
        self._keepers[address] += by
        if bool(before) != bool(before + by):  # the first keeper, or the last one
            self.nbytes += by * nbytes
            self.timeline.append((time.perf_counter() - self._start, self.nbytes))


class _Kept:
    """A tensor for as long as one operation keeps it: autograd drops it when the operation's backward is done."""

    def __init__(self, tensor: Tensor, counter: SavedTensors) -> None:
        self.tensor, self.counter = tensor, counter
        storage = _storage(tensor)
        self.place = storage._cdata, storage.nbytes()
        counter._change(*self.place, by=1)

    def __del__(self) -> None:
        self.counter._change(*self.place, by=-1)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def without_memory() -> FakeTensorMode:
    """Context manager: tensors made inside have a shape and no numbers, so that a model of any size can be counted.

    Models run as on a CPU. https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html
    """
    return FakeTensorMode()
