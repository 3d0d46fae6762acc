"""Dispatch tokens to the ranks that hold the experts they chose, and combine what comes back.

A token travels once to each member of a group, a rank or a node, however many of its experts are
there. There its experts are computed, weighted and added up, so that one row comes back. What is
done there is a function, which may be a second dispatch. DeepEP does so on two levels
(https://github.com/deepseek-ai/DeepEP; DeepSeek-V3, section 3.2.2,
https://arxiv.org/abs/2412.19437).

Shapes: T tokens of this rank, h numbers each, k chosen experts; N members of the group. R = rows
that leave, A = rows that arrive.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from shardlab import comm

# x [A, h], chosen [A, k], weights [A, k] -> [A, h]
Inner = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class TokenDispatcher:
    """Dispatches tokens to the members of a group, each of which leads to `span` experts.

    first: the number of the first expert to which the first member leads. Tokens of experts to
    which nobody here leads, and choices without a slot, are not sent.
    """

    group: comm.Group
    first: int
    span: int

    def __call__(
        self,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        inner: Inner,
        meanwhile: Callable[[], Tensor | None] = lambda: None,
    ) -> tuple[Tensor, Tensor | None]:
        """Send tokens, call `inner` on those that arrive, and add up what comes back.

        meanwhile: is computed while the tokens travel, and their gradients in backward.
        Returns the sums, [T, h], and what `meanwhile` has returned.
        """
        tokens, sends = self.plan(chosen)                             # [R], [N]
        counts = torch.tensor(sends, device=x.device)
        receives = comm.all_to_all(counts, self.group).tolist()       # [N]
        choices = chosen[tokens].int()                                # [R, k]
        there = comm.all_to_all(choices, self.group, sends, receives)  # [A, k]
        payload = torch.cat([x, weights.to(x.dtype)], dim=1)[tokens]  # [R, h + k]
        flight = Flight(self.group, sends, receives)
        sent = Leave.apply(payload, flight)                           # [A, h + k], on its way
        other = meanwhile()
        rows, scales = Arrive.apply(sent, flight).split([x.shape[1], chosen.shape[1]], dim=1)
        rows = inner(rows, there.long(), scales)                      # [A, h]
        flight = Flight(self.group, receives, sends)
        rows = Arrive.apply(Leave.apply(rows, flight), flight)        # [R, h]
        return torch.zeros_like(x).index_add(0, tokens, rows), other

    def plan(self, chosen: Tensor) -> tuple[Tensor, list[int]]:
        """List the rows to send, by member: the token of each, [R], and the rows of each member."""
        size = self.group.size()
        member = (chosen - self.first).div(self.span, rounding_mode="floor")
        outside = (member < 0) | (member >= size)
        member = member.masked_fill(outside, size)                    # [T, k], `size` is nobody
        goes = member.new_zeros(len(chosen), size + 1, dtype=torch.bool)
        goes = goes.scatter(1, member, True)[:, :size]                # [T, N]
        _, tokens = goes.T.nonzero(as_tuple=True)                     # [R]
        return tokens, goes.sum(0).tolist()


class Flight:
    """Rows on their way, in forward and later in backward; one message at a time."""

    def __init__(self, group: comm.Group, sends: Sequence[int], receives: Sequence[int]) -> None:
        self.group = group
        self.sends = sends
        self.receives = receives
        self._moving: tuple[Tensor, Tensor, comm.Wait] | None = None  # sent, filled, its wait

    def start(self, x: Tensor, sends: Sequence[int], receives: Sequence[int]) -> Tensor:
        """Start to send rows, and return the tensor that they will fill."""
        x = x.contiguous()
        y, wait = comm.start_all_to_all(x, self.group, sends, receives)
        self._moving = x, y, wait
        return y

    def finish(self) -> Tensor:
        """Wait until the rows have arrived, and return them."""
        assert self._moving is not None
        _, y, wait = self._moving
        wait()
        self._moving = None
        return y


class Leave(Function):
    """Start to send rows; in backward wait for their gradients, which `Arrive` has sent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flight: Flight) -> Tensor:
        ctx.flight = flight
        return flight.start(x, flight.sends, flight.receives)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.flight.finish(), None


class Arrive(Function):
    """Wait for rows; in backward start to send their gradients the way back.

    What backward returns is no gradient but has the shape that autograd expects: the gradients are
    on their way, and only `Leave` has them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, flight: Flight) -> Tensor:
        ctx.flight = flight
        flight.finish()
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        flight = ctx.flight
        flight.start(grad, flight.receives, flight.sends)
        return grad, None
