"""Ring attention: keys and values travel from rank to rank, the next block while this one is used.

Liu et al. 2023 (https://arxiv.org/abs/2310.01889). In turn i a rank has the block of the rank i
places before it. Backward is a second round: the gradient of a block starts on the next rank,
follows its block, and comes home after N - 1 steps; the owner adds its own part there.

A rank holds at most three blocks of keys and values: its own, the one in use, the one on its way.

Shapes: as in `tiles`, with G query heads for each of K; [2, B, K, n, e] is a block, keys before
values.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from shardlab import comm
from shardlab.sharding.sequences import Tile

from . import tiles


@dataclass(frozen=True, kw_only=True)
class Round:
    """One rank's part in a round: what comes by, and what it computes, turn by turn."""

    group: comm.Group
    lengths: Sequence[int]  # tokens of the block of each turn
    tiles: Sequence[Sequence[Tile]]

    def pass_on(self, x: Tensor, turn: int) -> Callable[[], Tensor]:
        """Start to send x to the next rank, and to receive what comes with the block of `turn`.

        Returns a function that waits for both, and returns what has arrived: [2, B, K, n, e].
        """
        rank, size = self.group.rank(), self.group.size()
        length = self.lengths[turn % size]
        y = x.new_empty(*x.shape[:-2], length, x.shape[-1])
        waits = comm.start_messages([(x, (rank + 1) % size)], [(y, (rank - 1) % size)], self.group)
        lent = [x]

        def finish() -> Tensor:
            for wait in waits:
                wait()
            waits.clear()  # they would keep x in memory for another turn
            lent.clear()
            return y

        return finish


def attend(q: Tensor, k: Tensor, v: Tensor, plan: Round) -> Tensor:
    """Attend to the keys and values of all ranks of a ring.

    q: [B, H, c, e], k and v: [B, K, c, e] -> [B, H, c, e].
    """
    if q.is_meta:  # a dry run
        return torch.empty_like(q)
    q = q.unflatten(1, (k.shape[1], -1)) / q.shape[-1] ** 0.5         # [B, K, G, c, e]
    y: Tensor = Ring.apply(q, torch.stack([k, v]), plan)
    return y.flatten(1, 2)                                            # [B, H, c, e]


class Ring(Function):
    """Attention whose keys come by, in forward and again in backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, own: Tensor, plan: Round) -> Tensor:
        so_far = tiles.begin(q)
        block = own                                                   # [2, B, K, n, e]
        for turn, here in enumerate(plan.tiles):
            last = turn + 1 == len(plan.tiles)
            arriving = None if last else plan.pass_on(block, turn + 1)
            tiles.attend(q, block, here, so_far)
            block = arriving() if arriving else block
        ctx.plan = plan
        ctx.save_for_backward(q, own, so_far.y, so_far.lse)
        return so_far.y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        q, own, y, lse = ctx.saved_tensors
        delta = (dy * y).sum(-1, keepdim=True)                        # [B, K, G, c, 1]
        at = tiles.Backward(q=q, lse=lse, dy=dy, delta=delta, dq=torch.zeros_like(q))
        return at.dq, second_round(at, own, ctx.plan), None


def second_round(at: tiles.Backward, own: Tensor, plan: Round) -> Tensor:
    """Let blocks travel once more, their gradients behind them; returns that of `own`, whole."""
    block, home = own, torch.empty(0)
    coming: Callable[[], Tensor] | None = None                        # a gradient on its way here
    for turn, here in enumerate(plan.tiles):
        last = turn + 1 == len(plan.tiles)
        arriving = None if last else plan.pass_on(block, turn + 1)
        gradient = tiles.differentiate(at, block, here)               # partial
        if coming is not None:
            gradient += coming()                                      # of the ranks before
            coming = None                                             # frees what came
        if turn == 0:
            home = gradient
        else:
            coming = plan.pass_on(gradient, turn + 1)
        block = arriving() if arriving else block
    return home if coming is None else home + coming()
