"""Count what autograd keeps from the forward pass for the backward pass, storage by storage.

The hooks are torch's `saved_tensors_hooks`: https://docs.pytorch.org/docs/stable/autograd.html
"""

import time
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode


class SavedTensors:
    """A context manager that counts the bytes kept by autograd for operations in its block.

        with SavedTensors(without=model.parameters()) as saved:
            loss = model(tokens, targets)
            print(saved.nbytes)      # what the forward pass has kept
            loss.backward()
        saved.peak, saved.timeline   # the most at any time; [(seconds since the start, bytes), ...]

    A storage counts once and whole, however many operations keep it or a view of it, until the last
    of them has run its backward. Only tensors count. What a hook inside the block keeps in its own
    way does not: of the non-reentrant `torch.utils.checkpoint` only the inputs count, and not what
    it recomputes.

    without: tensors that do not count because they are resident anyway: parameters, tokens.
    """

    def __init__(self, without: Iterable[Tensor] = ()) -> None:
        self.timeline: list[tuple[float, int]] = []
        self.nbytes = 0
        self._keepers: Counter[int] = Counter()  # by address of a storage: operations that keep it
        # by address; keeping the tensors alive keeps their addresses from being reused
        self._without = {_storage(tensor)._cdata: tensor for tensor in without}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    @property
    def peak(self) -> int:
        """The largest number of bytes that were kept at any time."""
        return max((nbytes for _, nbytes in self.timeline), default=0)

    def __enter__(self) -> "SavedTensors":
        self._start = time.perf_counter()
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> "_Kept":
        # Not the tensor itself: an operation that keeps its own result would keep itself alive.
        return _Kept(tensor.detach(), self)

    def _change(self, address: int, nbytes: int, by: int) -> None:
        if address in self._without:
            return
        before = self._keepers[address]
        self._keepers[address] += by
        if bool(before) != bool(before + by):  # the first keeper, or the last one
            self.nbytes += by * nbytes
            self.timeline.append((time.perf_counter() - self._start, self.nbytes))


class _Kept:
    """A tensor that one operation keeps; autograd drops it after the operation's backward."""

    def __init__(self, tensor: Tensor, counter: SavedTensors) -> None:
        self.tensor = tensor
        self.counter = counter
        storage = _storage(tensor)
        self.place = storage._cdata, storage.nbytes()
        counter._change(*self.place, by=1)

    def __del__(self) -> None:
        self.counter._change(*self.place, by=-1)


def _unpack(kept: _Kept) -> Tensor:
    return kept.tensor


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()


def without_memory() -> FakeTensorMode:
    """Return a context manager whose tensors have shapes but no numbers, to count any model.

    Models run as on a CPU. https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html
    """
    return FakeTensorMode()
