"""Gradients from backward to the rank that needs them: a reduce-scatter per flat buffer.

Shapes: [N * piece] is a whole buffer, [piece] what this one of N ranks keeps of it, see `flat`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from shardlab import comm

from .. import backward
from .flat import Flat


class Gradients:
    """Gradients of a flat buffer's parameters: whole while backward makes them, then one piece.

    dtype: in which ranks add up; None: that of the parameters. A sum over ranks in fp16 may
    overflow before it is divided by their number: pass torch.float32 there.
    """

    def __init__(self, flat: Flat, dtype: torch.dtype | None = None):
        self.flat = flat
        self.dtype = dtype or flat.whole.dtype
        self.average: Tensor | None = None  # [piece], over ranks, of all backwards since `forget`
        self._buffer: Tensor | None = None  # [N * piece]
        self._views: list[Tensor] = []  # of the buffer, in the parameters' shapes
        self._wait: Callable[[], Tensor] | None = None  # for a reduce-scatter in flight
        self.missing: set[int] = set()  # numbers of the parameters whose gradient has not arrived
        self._expect_all()

    def take(self, index: int) -> None:
        """Move one parameter's gradient into the buffer."""
        if index not in self.missing:
            raise RuntimeError(
                f"{self.flat.names[index]} received its gradient twice in one backward; if it is "
                "checkpointed, use shardlab.ranks.memory.recompute, or use_reentrant=False"
            )
        self._allocate()
        self.missing.remove(index)
        self._views[index].copy_(self._gradient(index))
        self.flat.parameters[index].grad = None

    def take_all(self) -> bool:
        """Take every gradient that is whole, and zeros for the others; return False if none is."""
        parameters = self.flat.parameters
        if all(parameter.grad is None for parameter in parameters):
            return False
        gradients = [self._gradient(index) for index in range(len(parameters))]
        self._buffer = self.flat.flatten(gradients).to(self.dtype)        # [N * piece]
        for parameter in parameters:
            parameter.grad = None
        return True

    def send(self) -> None:
        """Begin to sum the buffer over ranks, each keeping its piece."""
        assert self._buffer is not None
        self._wait = comm.start_reduce_scatter(self._buffer, self.flat.group)
        self._expect_all()

    def arrive(self) -> None:
        """Wait for this rank's piece, and add it to that of earlier backwards."""
        if self._wait is not None:
            piece = self._wait().div_(self.flat.group.size())
            self.average = piece if self.average is None else self.average.add_(piece)
            self._free()

    def forget(self) -> None:
        """Drop all gradients, whole ones and the average."""
        self.average = None
        self._free()
        self._expect_all()
        for parameter in self.flat.parameters:
            parameter.grad = None

    def _gradient(self, index: int) -> Tensor:
        """Return one parameter's gradient, or zeros if backward has not reached it."""
        parameter = self.flat.parameters[index]
        if parameter.grad is None:
            return torch.zeros_like(parameter)
        if parameter.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of {self.flat.names[index]} is sparse, and a flat buffer is dense; "
                f"use sparse=False in nn.Embedding"
            )
        return parameter.grad

    def _expect_all(self) -> None:
        """Mark every gradient as missing."""
        self.missing = set(range(len(self.flat.parameters)))

    def _allocate(self) -> None:
        """Make the buffer, unless it is there; only its padding is set to zero."""
        if self._buffer is None:
            flat = self.flat
            size = flat.length * flat.group.size()
            self._buffer = flat.whole.new_empty(size, dtype=self.dtype)
            self._buffer[flat.numel :] = 0
            self._views = flat.unflatten(self._buffer)

    def _free(self) -> None:
        """Free the buffer."""
        self._wait = None
        self._buffer = None
        self._views = []


class Reducer:
    """Sends every buffer of gradients as soon as backward has filled it (ZeRO-2 and -3).

    One buffer is in flight while backward fills the next, so two exist at a time, and that of the
    parameters outside all units, which is full last. Backward must reach the same parameters in the
    same order on every rank. listen: False reduces only when `reduce` is called (ZeRO-1).
    """

    def __init__(self, gradients: Sequence[Gradients], *, listen: bool):
        self.gradients = gradients
        self.synchronize = True  # False inside `no_sync`
        self._in_flight: Gradients | None = None
        self._backwards = backward.Once()
        if listen:
            for each in gradients:
                self._listen(each)

    def _listen(self, gradients: Gradients) -> None:
        """Hook the parameters of one buffer."""
        for index, parameter in enumerate(gradients.flat.parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(gradients, index))

    def _hook(self, gradients: Gradients, index: int) -> Callable[[nn.Parameter], None]:
        """Make the hook that runs when a parameter's gradient has arrived."""

        def arrived(parameter: nn.Parameter) -> None:
            if self.synchronize:
                self._backwards.begins(self._finish)
                gradients.take(index)
                if not gradients.missing:
                    self._send(gradients)

        return arrived

    def reduce(self) -> None:
        """Average gradients that are whole: all of them in ZeRO-1, else those made in `no_sync`."""
        for each in self.gradients:
            if each.take_all():
                self._send(each)
        self._wait()

    def forget(self) -> None:
        """Drop all gradients, also those that a failed backward left."""
        self._wait()
        for each in self.gradients:
            each.forget()

    def _send(self, gradients: Gradients) -> None:
        """Start this reduce-scatter, then wait for the previous one."""
        gradients.send()
        self._wait()
        self._in_flight = gradients

    def _wait(self) -> None:
        """Wait for the reduce-scatter in flight, if there is one."""
        if self._in_flight is not None:
            self._in_flight.arrive()
            self._in_flight = None

    def _finish(self) -> None:
        """Wait at the end of backward, and refuse buffers that are filled in part."""
        self._wait()
        names = []
        for each in self.gradients:
            if len(each.missing) < len(each.flat.parameters):
                names += [each.flat.names[index] for index in sorted(each.missing)]
        if names:
            raise RuntimeError(
                f"backward gave no gradient to {len(names)} parameters that share a buffer with "
                f"others ({', '.join(names[:5])}); freeze them (requires_grad=False) before "
                f"sharding, or run backward inside no_sync(), which counts them as zero"
            )
