"""Model parallelism by hand: workers hold pieces of each layer, one more rank adds up results.

    rank 0    half of layer 1 |         | half of layer 2 |         |
    rank 1    half of layer 1 |         | half of layer 2 |         |
    rank 2                    | combine |                 | combine |

No rank is ever busy all the time: the last rank waits while the workers compute, and the workers
wait while it adds. Tensor parallelism has no last rank: the workers add up their results
themselves.

Shapes: h is the width of a token, f that of a layer inside; [...] are batch and sequence.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from shardlab import comm

Layers = Sequence[tuple[Tensor, Tensor]]  # for each layer: up [f, h] and down [h, f]
Span = Callable[[str], AbstractContextManager[Any]]  # records a name, as `ledger.Ledger.span` does


def forward(x: Tensor, layers: Layers, group: comm.Group, span: Span = nullcontext) -> Tensor:
    """Compute x + down(gelu(up(x))) for each layer, the same on every rank: [..., h] -> [..., h].

    Every rank is given all weights, and each worker uses its piece of them. Errors: ValueError for
    one rank, or for a width f that the workers cannot share.
    """
    workers = group.size() - 1
    combiner = workers  # the last rank
    if workers < 1 or any(up.shape[0] % workers for up, _ in layers):
        widths = sorted({up.shape[0] for up, _ in layers})
        raise ValueError(
            f"{workers} ranks beside the last do not share layers of width {widths}; "
            f"use a divisor of it"
        )
    for up, down in layers:
        if group.rank() == combiner:
            parts = [comm.receive(x, group, source) for source in range(workers)]
            with span("combine"):
                x = x + sum(parts[1:], parts[0])                       # [..., h], whole
            for worker in range(workers):
                comm.send(x, group, worker)
        else:
            with span("piece"):
                local_up = up.chunk(workers)[group.rank()]             # [f/workers, h]
                local_down = down.chunk(workers, 1)[group.rank()]      # [h, f/workers]
                inner = F.gelu(F.linear(x, local_up))                  # [..., f/workers]
                part = F.linear(inner, local_down)                     # [..., h], a partial sum
            comm.send(part, group, combiner)
            x = comm.receive(x, group, combiner)                       # [..., h], whole
    return x
