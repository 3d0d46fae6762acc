"""Model parallelism by hand: some ranks hold pieces of every layer, one more adds up what they compute, and waits.

    rank 0    half of layer 1 |         | half of layer 2 |         |
    rank 1    half of layer 1 |         | half of layer 2 |         |
    rank 2                    | combine |                 | combine |

Nobody is ever busy all the time: the last rank has nothing to add while the others compute, and they have nothing to
compute while it adds. `tensor_parallel` lets the ranks that computed the pieces add them up, too: it has no last rank.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from .. import comm

Layers = Sequence[tuple[Tensor, Tensor]]  # for each layer: up [F, D] and down [D, F]
Span = Callable[[str], AbstractContextManager[Any]]  # names what is computed, as `ledger.Ledger.span` does


def forward(x: Tensor, layers: Layers, group: comm.Group, span: Span = nullcontext) -> Tensor:
    """x + down(gelu(up(x))) for each layer, the same on every rank: [..., D] -> [..., D].

    Every rank is given all weights, and each but the last uses its piece of them. Errors: ValueError for one rank, or
    for layers whose width the others cannot share.
    """
    workers, combiner = group.size() - 1, group.size() - 1
    if workers < 1 or any(up.shape[0] % workers for up, _ in layers):
        widths = sorted({up.shape[0] for up, _ in layers})
        raise ValueError(f"{workers} ranks beside the last do not share layers of width {widths}; use a divisor of it")
    for up, down in layers:
        if group.rank() == combiner:
            parts = [comm.receive(x, group, source) for source in range(workers)]
            with span("combine"):
                x = x + sum(parts[1:], parts[0])
            for worker in range(workers):
                comm.send(x, group, worker)
        else:
            with span("piece"):
                h = F.gelu(F.linear(x, up.chunk(workers)[group.rank()]))     # [..., F/workers]
                part = F.linear(h, down.chunk(workers, 1)[group.rank()])     # [..., D], a partial sum
            comm.send(part, group, combiner)
            x = comm.receive(x, group, combiner)
    return x
