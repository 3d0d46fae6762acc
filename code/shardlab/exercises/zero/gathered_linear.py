"""Exercise: a linear layer that has its weight only while it computes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import trace
from shardlab.costs import collectives
from shardlab.ranks import comm
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Exercise, Finding, Judge

INPUTS, ROWS, SAMPLES = 6, 5, 2  # of the weight, for each rank; and in x
PATIENCE = 0.5  # seconds
STARTER = '''\
import torch
from torch.nn import functional as F
from shardlab.ranks import comm

def my_gathered_linear(x, piece, group):
    """F.linear(x, weight), of whose weight each rank has some rows: its piece.

    x: [samples, inputs], other ones on each rank. In backward x gets its own
    gradient, and the piece the mean over ranks of its rows' gradients. Between
    the two passes a rank has its piece only: write an autograd.Function.
    """
    weight = comm.all_gather(piece.detach(), group)
    return F.linear(x, weight)  # forward is right, and backward is not: mend it
'''


@dataclass(frozen=True)
class Seen:
    """What both passes left on a rank."""

    got: evidence.Named
    kept: int  # bytes between forward and backward, beside the output
    forward: list[trace.Event]
    backward: list[trace.Event]


def numbers(seed: int, *shape: int) -> Tensor:
    """Whole numbers."""
    return torch.randint(1, 6, shape, generator=torch.Generator().manual_seed(seed)).double()


def tensors(case: Case, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """A rank's x, its piece of the weight, and the gradient that comes into its output."""
    rows = ROWS * len(case.members(rank))
    return numbers(rank, SAMPLES, INPUTS), numbers(50 + rank, ROWS, INPUTS), numbers(100 + rank, SAMPLES, rows)


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """Forward and backward, with a look at what is held between them."""
    x, piece, incoming = tensors(case, rank)
    x.requires_grad_()
    piece.requires_grad_()
    with evidence.Held() as held:
        with ledger.Ledger() as ahead:
            y = function(x, piece, group)
        kept = settled(held, tensors(case, rank)[0].nbytes + incoming.nbytes) - incoming.nbytes
        with ledger.Ledger() as back:
            if isinstance(y, Tensor) and y.requires_grad and y.shape == incoming.shape:
                y.backward(incoming)
    output = y.detach().clone() if isinstance(y, Tensor) else None
    return Seen({"output": output, "x.grad": x.grad, "piece.grad": piece.grad}, kept, ahead.events, back.events)


def settled(held: evidence.Held, budget: int) -> int:
    """Bytes that are held, once threads of gloo have let go of what they have sent; a moment is enough for them."""
    end = time.perf_counter() + PATIENCE
    while (nbytes := held.nbytes) > budget and time.perf_counter() < end:
        time.sleep(0.01)
    return nbytes


def reference(case: Case, rank: int) -> dict[str, Tensor]:
    """By hand, from the tensors of all ranks."""
    members = case.members(rank)
    weight = torch.cat([tensors(case, each)[1] for each in members])
    x, _, incoming = tensors(case, rank)
    grads = torch.stack([tensors(case, each)[2].T @ tensors(case, each)[0] for each in members])
    mine = grads.mean(dim=0).chunk(len(members))[rank - members.start]
    return {"output": x @ weight.T, "x.grad": incoming @ weight, "piece.grad": mine}


def has(name: str) -> Judge:
    """This tensor is what it should be, on every rank."""

    def judge(case: Case, seen: list[Seen]) -> Finding | None:
        for rank, mine in enumerate(seen):
            right, got = reference(case, rank)[name], mine.got[name]
            place = evidence.first_difference(right, got)
            if place is not None:
                shown = f"{name} = {evidence.show(right, place)} on rank {rank}"
                shape = f" of shape {list(got.shape)}" if got is not None and got.shape != right.shape else ""
                told = evidence.show(got, 0 if shape else place)
                return Finding(f"{ROWS} of {ROWS * len(case.members(rank))} rows on each rank", shown, told + shape)
        return None

    return judge


def whole_bytes(case: Case) -> int:
    """Of the weight."""
    return len(case.members(0)) * tensors(case, 0)[1].nbytes


def forgets(case: Case, seen: list[Seen]) -> Finding | None:
    """No weight, and nothing as large, is held between the passes; one rank has the weight anyway."""
    for rank, mine in enumerate(seen):
        budget = tensors(case, rank)[0].nbytes
        if len(case.members(rank)) > 1 and mine.kept > budget:
            given = f"a weight of {whole_bytes(case)} bytes, of which a rank has {tensors(case, rank)[1].nbytes}"
            return Finding(given, f"at most {budget} bytes more after forward", f"{mine.kept} bytes on rank {rank}")
    return None


def sends(case: Case, seen: list[Seen]) -> Finding | None:
    one = collectives.all_gather(whole_bytes(case), len(case.members(0))).sent
    for rank, mine in enumerate(seen):
        for name, times, events in (("forward", 1, mine.forward), ("backward", 2, mine.backward)):
            sent = sum(map(trace.wire_bytes, events))
            if sent > times * one + 0.5:
                expected = f"at most {times * one:.0f} bytes sent by a rank in {name}"
                return Finding(case.title, expected, f"{sent:.0f} bytes sent by rank {rank}")
    return None


EXERCISE = Exercise(
    name="zero.gathered_linear",
    prompt="A linear layer of ZeRO-3: gather the weight in forward and again in backward, keep your piece between.",
    starter=STARTER,
    hint=(
        "In forward save x and the piece. In backward gather again; the weight's gradient on this rank is grad.T @ x, "
        "and comm.reduce_scatter of it is the sum over ranks of your rows."
    ),
    points=4,
    cases=[
        Case(world_size=1, title="all rows"),
        Case(world_size=2, title="half of the rows on each"),
        Case(world_size=3, title="a third of the rows on each"),
        Case(world_size=4, title="half of the rows on each", group_size=2),
    ],
    attempt=attempt,
    properties={
        "every rank has its output": has("output"),
        "x gets its gradient": has("x.grad"),
        "the piece gets its rows of the mean gradient": has("piece.grad"),
        "between forward and backward a rank has its piece only": forgets,
        "forward sends one all-gather, backward one more and a reduce-scatter": sends,
    },
)
