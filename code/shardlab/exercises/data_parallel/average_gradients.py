"""Exercise: the average of every gradient over the ranks of a group.

Gradients are whole numbers, so that a report can be checked in your head. Parameters, too, differ from rank to rank:
who averages them is found out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardlab import trace
from shardlab.ranks import comm, transformer
from shardlab.ranks.observe import ledger
from shardlab.spec import TransformerSpec

from .. import evidence
from ..checker import Case, Exercise, Finding

STARTER = '''\
from shardlab.ranks import comm

def my_average_gradients(model, group):
    """Make every parameter's grad its average over the ranks of the group."""
    for parameter in model.parameters():
        ...  # comm.all_reduce(x, group) is the sum over ranks
'''


@dataclass(frozen=True)
class Seen:
    """What a rank has afterwards."""

    gradients: evidence.Named
    changed: list[str]  # parameters that are no longer what they were
    events: list[trace.Event]


def vector() -> nn.Module:
    return nn.ParameterDict({"weight": torch.zeros(2)})


def tied() -> nn.Module:
    shared = nn.Parameter(torch.zeros(2))
    return nn.ModuleList(nn.ParameterDict({"weight": shared}) for _ in ("embedding", "head"))


def partly() -> nn.Module:
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    return nn.ParameterDict({"frozen": frozen, "unused": torch.zeros(2), "weight": torch.zeros(2)})


def shapes() -> nn.Module:
    transposed = nn.Parameter(torch.zeros(3, 2).t())
    return nn.ParameterDict({"scalar": torch.zeros(()), "transposed": transposed, "vector": torch.zeros(2)})


def small_transformer() -> nn.Module:
    sizes = TransformerSpec(vocab_size=16, context_length=4, hidden_size=8, num_layers=1, num_heads=2)
    return transformer.Transformer(sizes)


def replica(case: Case, rank: int) -> nn.Module:
    """The case's model as backward leaves it on this rank."""
    model: nn.Module = case.given().double()
    random = torch.Generator().manual_seed(rank)
    for name, parameter in model.named_parameters():
        parameter.data.random_(10, generator=random)
        if parameter.requires_grad and name != "unused":
            parameter.grad = torch.empty_like(parameter).detach().random_(10, generator=random)
    return model


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Seen:
    """Let the function average this rank's gradients, and see what became of them."""
    model, before = replica(case, rank), dict(replica(case, rank).named_parameters())
    with ledger.Ledger() as book:
        function(model, group)
    after = dict(model.named_parameters())
    changed = [name for name, p in before.items() if name not in after or not torch.equal(after[name], p)]
    return Seen(evidence.gradients(model), changed, book.events)


def are_averages(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        everyone = {each: evidence.gradients(replica(case, each)) for each in case.members(rank)}
        for name in everyone[rank]:
            tensors = [gradients[name] for gradients in everyone.values()]
            present = [tensor for tensor in tensors if tensor is not None]
            if not present:
                continue
            average, got = torch.stack(present).mean(dim=0), mine.gradients.get(name)
            place = evidence.first_difference(average, got)
            if place is not None:
                pairs = zip(everyone, tensors, strict=True)
                given = ", ".join(f"{evidence.show(tensor, place)} on rank {each}" for each, tensor in pairs)
                right, wrong = evidence.show(average, place), evidence.show(got, place)
                return Finding(f"{name}.grad = {given}", right, f"{wrong} on rank {rank}")
    return None


def leave_none(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        for name, before in evidence.gradients(replica(case, rank)).items():
            got = mine.gradients.get(name)
            if before is None and got is not None:
                return Finding(f"{name}.grad = None", "None, as before", f"{evidence.show(got)} on rank {rank}")
    return None


def change_no_parameter(case: Case, seen: list[Seen]) -> Finding | None:
    for rank, mine in enumerate(seen):
        if mine.changed:
            given = "parameters, other ones on every rank"
            return Finding(given, "the same parameters afterwards", f"another {mine.changed[0]} on rank {rank}")
    return None


def gradient_bytes(case: Case) -> int:
    return evidence.nbytes(evidence.gradients(replica(case, 0)))


CASES = [
    Case(world_size=1, title="one vector", given=vector),
    Case(world_size=2, title="one vector", given=vector),
    Case(world_size=2, title="a weight that two layers share", given=tied),
    Case(world_size=2, title="a frozen, an unused and another vector", given=partly),
    Case(world_size=3, title="a scalar, a transposed matrix and a vector", given=shapes),
    Case(world_size=4, title="a small transformer", given=small_transformer),
    Case(world_size=4, title="one vector", given=vector, group_size=2),
]

EXERCISE = Exercise(
    name="data_parallel.average_gradients",
    prompt="After backward, replace the gradient of every parameter by its average over the ranks of the group.",
    starter=STARTER,
    hint="An all-reduce gives the sum; group.size() says of how many. Some parameters have no gradient: grad is None.",
    points=2,
    cases=CASES,
    attempt=attempt,
    properties={
        "every gradient is the average over the ranks of its group": are_averages,
        "where there was no gradient, there is none": leave_none,
        "parameters stay what they were": change_no_parameter,
        "a rank sends no more than one all-reduce of the gradients": evidence.sends_one_all_reduce(gradient_bytes),
    },
)
