"""Exercise: a linear layer that has its whole weight only while it computes.

It is a layer's turn in `plain.zero.ZeRO3.step`, as one autograd.Function.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import comm
from shardlab.costs import collectives
from shardlab.ranks.observe import ledger

from .. import evidence, tensors
from ..checker import Case, Dependent, Exercise, Finding, on_each_rank

SAMPLES = 2
PATIENCE = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class Gathered(tensors.Returned):
    """What a rank has after both passes, and what it had between them."""

    kept: int  # bytes between forward and backward, beside the output


def weight(case: Case) -> Tensor:
    """Make the whole weight: [outputs, inputs]."""
    return evidence.whole_numbers(50, *case.given)


def samples(case: Case, rank: int) -> tuple[Tensor, Tensor]:
    """Make a rank's x, and the gradient of its output."""
    outputs, inputs = case.given
    x = evidence.whole_numbers(rank, SAMPLES, inputs)
    return x, evidence.whole_numbers(100 + rank, SAMPLES, outputs)


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Gathered:
    """Run forward and backward, and look at what is held between them."""
    x, incoming = samples(case, rank)
    piece = tensors.row(weight(case), case, rank)
    x.requires_grad_()
    piece.requires_grad_()
    with evidence.Held() as held:
        with ledger.Ledger() as ahead:
            y = function(x, piece, torch.Size(case.given), group)
        kept = settled(held, x.nbytes + incoming.nbytes) - incoming.nbytes
        with ledger.Ledger() as back:
            if isinstance(y, Tensor) and y.requires_grad and y.shape == incoming.shape:
                y.backward(incoming)
    output = y.detach().clone() if isinstance(y, Tensor) else None
    return Gathered(
        got={"output": output, "x.grad": x.grad, "piece.grad": piece.grad},
        kept=kept,
        forward=ahead.events,
        backward=back.events,
    )


def settled(held: evidence.Held, budget: int) -> int:
    """Return the bytes that are held, once gloo's threads have freed what they sent."""
    end = time.perf_counter() + PATIENCE
    while (nbytes := held.nbytes) > budget and time.perf_counter() < end:
        time.sleep(0.01)
    return nbytes


def reference(case: Case, rank: int) -> evidence.Named:
    """Compute what a rank should get, from the tensors of all ranks."""
    whole = weight(case)
    x, incoming = samples(case, rank)
    total = torch.zeros_like(whole)
    for each in case.members(rank):
        inputs, gradient = samples(case, each)
        total += gradient.T @ inputs
    return {
        "output": x @ whole.T,
        "x.grad": incoming @ whole,
        "piece.grad": tensors.row(total, case, rank),
    }


def padded_bytes(case: Case) -> int:
    """Return the bytes of all rows of the weight."""
    return evidence.NUMBER * tensors.row(weight(case), case, 0).numel() * len(case.members(0))


@Dependent
@on_each_rank
def keeps_its_piece(case: Case, rank: int, seen: Gathered) -> Finding | None:
    """Ask that nothing as large as x is held between the passes; one rank has the weight anyway."""
    x, _ = samples(case, rank)
    if len(case.members(rank)) == 1 or seen.kept <= x.nbytes:
        return None
    expected = f"at most {x.nbytes} bytes more after forward"
    advice = "in backward, gather the weight again"
    return Finding(_given(case), expected, f"{seen.kept} bytes on rank {rank}", advice)


def one_gather(case: Case) -> float:
    """Return the bytes that a rank sends to gather the weight."""
    return collectives.all_gather(padded_bytes(case), len(case.members(0))).sent


@Dependent
def sends(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for one all-gather in forward, and twice its bytes in backward."""
    forward = evidence.sends_at_most(one_gather, "forward")
    backward = evidence.sends_at_most(lambda case: 2 * one_gather(case), "backward")
    return forward(case, observed) or backward(case, observed)


def _given(case: Case) -> str:
    ranks = len(case.members(0))
    whole = weight(case)
    size = f"a weight of shape {list(whole.shape)}, {whole.nbytes} bytes"
    return f"{size}, of which each of {ranks} ranks has {padded_bytes(case) // ranks} bytes"


has = functools.partial(tensors.has, reference=reference, given=lambda case, rank: _given(case))

EXERCISE = Exercise(
    name="zero.gathered_linear",
    compare="shardlab.plain.zero.ZeRO3.step",
    points=4,
    cases=[
        Case(world_size=1, title="the whole weight", given=(4, 6)),
        Case(world_size=2, title="half of the weight on each", given=(10, 6)),
        Case(world_size=2, title="an odd number of weights", given=(9, 5)),
        Case(world_size=3, title="a third of the weight on each", given=(15, 6)),
        Case(world_size=4, title="half of the weight on each", given=(10, 6), group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has its output": has("output"),
        "x gets its gradient": has("x.grad"),
        "the piece gets its row of the summed gradient": has("piece.grad"),
        "between forward and backward a rank has its piece only": keeps_its_piece,
        "forward sends at most one all-gather, backward one more and a reduce-scatter": sends,
    },
)
