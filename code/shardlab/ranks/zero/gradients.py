"""Gradients on their way from backward to the rank that needs them: averaged by a reduce-scatter, buffer by buffer."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .. import backward, comm
from .flat import Flat


class Gradients:
    """The gradients of one flat buffer's parameters: whole while backward makes them, then this rank's piece.

    dtype: what ranks add up in; None: that of the parameters. A sum over ranks in fp16 may overflow before it is
    divided by their number: there use torch.float32.
    """

    def __init__(self, flat: Flat, dtype: torch.dtype | None = None):
        self.flat, self.dtype = flat, dtype or flat.whole.dtype
        self.average: Tensor | None = None  # [piece], over the ranks; of all backwards since it was None
        self.missing = set(range(len(flat.parameters)))
        self._buffer: Tensor | None = None  # [n * piece]
        self._views: list[Tensor] = []
        self._wait: Callable[[], Tensor] | None = None

    def take(self, index: int) -> None:
        """Move one parameter's gradient into the buffer."""
        parameter = self.flat.parameters[index]
        if index not in self.missing:
            raise RuntimeError(
                f"{self.flat.names[index]} received its gradient twice in one backward; "
                "if it is checkpointed, use shardlab.ranks.memory.recompute, or use_reentrant=False"
            )
        if parameter.grad is None or parameter.grad.layout != torch.strided:
            raise ValueError(f"the gradient of {self.flat.names[index]} is sparse; use sparse=False in nn.Embedding")
        self._begin()
        self.missing.remove(index)
        self._views[index].copy_(parameter.grad)
        parameter.grad = None

    def take_all(self) -> bool:
        """Take every gradient that backward left with its parameter, zeros for the others; whether there was any."""
        found = [index for index in sorted(self.missing) if self.flat.parameters[index].grad is not None]
        for index in found:
            self.take(index)
        for index in self.missing if found else ():
            self._views[index].zero_()
        return bool(found)

    def send(self) -> None:
        """Begin to add up over ranks."""
        assert self._buffer is not None
        self._wait = comm.start_reduce_scatter(self._buffer, self.flat.group)
        self.missing = set(range(len(self.flat.parameters)))

    def arrive(self) -> None:
        """Wait for this rank's piece, and add it to that of earlier backwards."""
        if self._wait is not None:
            piece = self._wait().div_(self.flat.group.size())
            self.average = piece if self.average is None else self.average.add_(piece)
            self._wait, self._buffer, self._views = None, None, []

    def forget(self) -> None:
        """There is no gradient any more."""
        self.average, self._buffer, self._views = None, None, []
        self.missing = set(range(len(self.flat.parameters)))
        for parameter in self.flat.parameters:
            parameter.grad = None

    def _begin(self) -> None:
        if self._buffer is None:
            flat = self.flat
            self._buffer = flat.whole.new_empty(flat.length * flat.group.size(), dtype=self.dtype)
            self._buffer[flat.numel :] = 0
            self._views = flat.unflatten(self._buffer)


class Reducer:
    """Sends every buffer of gradients as soon as backward has completed it, while it computes the next (ZeRO-2, -3).

    One buffer is on its way while the next one fills: there are two at a time, and that of the parameters outside the
    units, which is complete last. Every rank's backward must reach the same parameters, in the same order.
    """

    def __init__(self, gradients: Sequence[Gradients], *, listen: bool):
        self.gradients, self.synchronize = gradients, True
        self._on_its_way: Gradients | None = None
        self._backwards = backward.Once()
        for each in gradients if listen else ():
            for index, parameter in enumerate(each.flat.parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(each, index))

    def _hook(self, gradients: Gradients, index: int) -> Callable[[nn.Parameter], None]:
        def arrived(parameter: nn.Parameter) -> None:
            if self.synchronize:
                self._backwards.begins(self._finish)
                gradients.take(index)
                if not gradients.missing:
                    self._send(gradients)

        return arrived

    def reduce(self) -> None:
        """Average what backward has left with the parameters: all of it in ZeRO-1, else that of `no_sync`."""
        for each in self.gradients:
            if each.take_all():
                self._send(each)
        self._arrive()

    def forget(self) -> None:
        """There are no gradients any more, nor what a backward that failed left."""
        self._arrive()
        for each in self.gradients:
            each.forget()

    def _send(self, gradients: Gradients) -> None:
        """One leaves, and the one before it arrives."""
        gradients.send()
        self._arrive()
        self._on_its_way = gradients

    def _arrive(self) -> None:
        if self._on_its_way is not None:
            self._on_its_way.arrive()
            self._on_its_way = None

    def _finish(self) -> None:
        self._arrive()
        names = [
            each.flat.names[index]
            for each in self.gradients
            for index in sorted(each.missing)
            if len(each.missing) < len(each.flat.parameters)
        ]
        if names:
            raise RuntimeError(
                f"backward gave no gradient to {len(names)} parameters beside others of their unit "
                f"({', '.join(names[:5])}); freeze them (requires_grad=False) before sharding, or go back inside "
                "no_sync(), after which they count as zero"
            )
