"""Exercise: average gradients over the samples of all ranks, when no rank knows the others' share.

A step beyond `plain.data_parallel.average_gradients`, which is given the share. Gradients are
whole numbers. Parameters differ between ranks, so that averaging them is noticed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm
from shardlab.costs import units
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.observe import ledger

from .. import evidence
from ..checker import Case, Exercise, Finding, on_each_rank


@dataclass(frozen=True)
class Given:
    """A model, and the number of samples of each rank of the run."""

    make: Callable[[], nn.Module]
    samples: Sequence[int]  # a group's sum is a power of two, so that shares are exact


@dataclass(frozen=True, kw_only=True)
class Averaged(evidence.Seen):
    """What a rank has after the gradients were averaged."""

    gradients: evidence.Named


def vector() -> nn.Module:
    """One parameter."""
    return nn.ParameterDict({"weight": torch.zeros(2)})


def tied() -> nn.Module:
    """Two layers that share their parameter."""
    shared = nn.Parameter(torch.zeros(2))
    return nn.ModuleList(nn.ParameterDict({"weight": shared}) for _ in ("embedding", "head"))


def partly() -> nn.Module:
    """A frozen parameter, one that no rank uses, one that the first rank uses, and another."""
    frozen = nn.Parameter(torch.zeros(2), requires_grad=False)
    names = ("unused", "first", "weight")
    return nn.ParameterDict({"frozen": frozen, **{name: torch.zeros(2) for name in names}})


def shapes() -> nn.Module:
    """A scalar, a matrix that is not contiguous, and a vector."""
    matrix = nn.Parameter(torch.zeros(3, 2).t())
    return nn.ParameterDict({"scalar": torch.zeros(()), "matrix": matrix, "vector": torch.ones(2)})


def small_transformer() -> nn.Module:
    """The reference transformer, one layer of it."""
    spec = TransformerSpec(
        vocab_size=16, context_length=4, hidden_size=8, num_layers=1, num_heads=2
    )
    return transformer.Transformer(spec)


def replica(case: Case, rank: int) -> nn.Module:
    """Build the case's model as backward leaves it on this rank."""
    model: nn.Module = case.given.make().double()
    random = torch.Generator().manual_seed(rank)
    first = rank == case.members(rank).start
    for name, parameter in model.named_parameters():
        parameter.data.random_(10, generator=random)
        used = case.given.samples[rank] > 0 and name != "unused" and (first or name != "first")
        if parameter.requires_grad and used:
            parameter.grad = torch.empty_like(parameter).detach().random_(10, generator=random)
    return model


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Averaged:
    """Let the function average this rank's gradients, and look at the model afterwards."""
    model = replica(case, rank)
    with ledger.Ledger() as book:
        function(model, group, case.given.samples[rank])
    before = dict(replica(case, rank).named_parameters())
    changed = evidence.changed(before, dict(model.named_parameters()))
    return Averaged(gradients=evidence.gradients(model), changed=changed, events=book.events)


def means(case: Case, rank: int) -> dict[str, Tensor]:
    """Average each gradient over the samples of the rank's group, by name of the parameter."""
    members = case.members(rank)
    total = sum(case.given.samples[each] for each in members)
    trained = (named for named in replica(case, rank).named_parameters() if named[1].requires_grad)
    result = {name: torch.zeros_like(parameter) for name, parameter in trained}
    for each in members:
        for name, parameter in replica(case, each).named_parameters():
            if parameter.grad is not None:
                result[name] += parameter.grad * case.given.samples[each] / total
    return result


@on_each_rank
def are_means(case: Case, rank: int, seen: Averaged) -> Finding | None:
    """Compare each gradient of a parameter that is trained with the mean."""
    for name, right in means(case, rank).items():
        got = seen.gradients.get(name)
        place = evidence.first_difference(right, got)
        if place is not None:
            shown = f"{evidence.show_got(got, right, place)} on rank {rank}"
            return Finding(_given(case, rank, name, place), evidence.show(right, place), shown)
    return None


@on_each_rank
def leave_frozen(case: Case, rank: int, seen: Averaged) -> Finding | None:
    """Ask that a frozen parameter gets no gradient."""
    for name, parameter in replica(case, rank).named_parameters():
        got = seen.gradients.get(name)
        if not parameter.requires_grad and got is not None:
            given = f"{name}.requires_grad = False"
            shown = f"{evidence.show(got)} on rank {rank}"
            return Finding(given, f"{name}.grad = None, as before", shown)
    return None


def _given(case: Case, rank: int, name: str, place: int) -> str:
    """Show a gradient, and how many samples it stands for, on each rank of the group."""
    shown = []
    for each in case.members(rank):
        gradient = replica(case, each).get_parameter(name).grad
        samples = units.counted(case.given.samples[each], "sample")
        shown.append(f"{evidence.show(gradient, place)} of {samples} on rank {each}")
    return f"{name}.grad = {', '.join(shown)}"


def payload(case: Case) -> int:
    """Return the bytes of all gradients, and of one number."""
    trained = [p for p in replica(case, 0).parameters() if p.requires_grad]
    return sum(parameter.nbytes for parameter in trained) + evidence.NUMBER


def _case(title: str, make: Callable[[], nn.Module], *samples: int, **options: int) -> Case:
    return Case(world_size=len(samples), title=title, given=Given(make, samples), **options)


CASES = [
    _case("one vector", vector, 2),
    _case("one vector", vector, 1, 1),
    _case("one vector, 3 samples and 1", vector, 3, 1),
    _case("a weight that two layers share", tied, 1, 1),
    _case("a frozen vector, and some that not every rank uses", partly, 1, 1),
    _case("a scalar, a transposed matrix and a vector", shapes, 1, 2, 1),
    _case("a rank without samples", vector, 3, 0, 1),
    _case("a small transformer", small_transformer, 1, 2, 3, 2),
    _case("one vector", vector, 3, 1, 2, 6, group_size=2),
]

EXERCISE = Exercise(
    name="data_parallel.average_gradients",
    compare="shardlab.plain.data_parallel.average_gradients",
    points=2,
    cases=CASES,
    attempt=attempt,
    properties={
        "every gradient is the mean over the samples of all ranks of the group": are_means,
        "a frozen parameter gets no gradient": leave_frozen,
        "parameters stay what they were": evidence.leaves_alone(
            "write the mean into p.grad; p and p.data are for the optimizer to change"
        ),
        "a rank sends as much as one all-reduce of the gradients, and one number": (
            evidence.sends_one_all_reduce(payload)
        ),
    },
)
