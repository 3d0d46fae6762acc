"""What exercises on expert parallelism share: tokens, the experts they chose, and where they go.

Shapes: T tokens of a rank, h numbers each, E experts on N ranks, k of them chosen by a token; A
rows that a rank receives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import evidence
from ..checker import Case

WIDTH = 3  # h


@dataclass(frozen=True)
class Given:
    """The tokens of each rank, and which experts they choose.

    busy: only the first `busy` experts are chosen. without_slot: some choices are dropped.
    """

    num_tokens: Sequence[int]
    num_experts: int
    per_token: int = 1
    busy: int | None = None
    without_slot: bool = False


def place(case: Case, rank: int) -> int:
    """Return a rank's place in its group."""
    return rank - case.members(rank).start


def hidden(case: Case, rank: int) -> Tensor:
    """Make the tokens of a rank: [T, h]."""
    return evidence.whole_numbers(rank, case.given.num_tokens[place(case, rank)], WIDTH)


def chosen(case: Case, rank: int) -> Tensor:
    """Choose experts for the tokens of a rank: [T, k]; E where a token found no slot."""
    given: Given = case.given
    random = torch.Generator().manual_seed(rank)
    count = given.num_tokens[place(case, rank)]
    scores = torch.rand(count, given.busy or given.num_experts, generator=random)
    found = scores.argsort(-1)[:, : given.per_token]
    if given.without_slot:
        found[::2, -1] = given.num_experts
    return found


def weights(case: Case, rank: int) -> Tensor:
    """Make the weights of the chosen experts: [T, k]."""
    shape = chosen(case, rank).shape
    return evidence.whole_numbers(10 + rank, *shape) / 8


def shares(case: Case, rank: int, weight: Tensor) -> Tensor:
    """Write the weight of each expert for each token, 0 if it is not chosen: [T, k] -> [T, E]."""
    dense = weight.new_zeros(len(weight), case.given.num_experts + 1)
    return dense.scatter(1, chosen(case, rank), weight)[:, :-1]


def experts_of(case: Case, rank: int) -> slice:
    """Return which experts are on a rank."""
    here = case.given.num_experts // len(case.members(rank))
    return slice(place(case, rank) * here, (place(case, rank) + 1) * here)


def going(case: Case, source: int, to: int) -> Tensor:
    """List the tokens of a rank that chose an expert on another one, in their order."""
    dense = shares(case, source, weights(case, source))
    return dense[:, experts_of(case, to)].any(1).nonzero()[:, 0]


def leaving(case: Case, rank: int) -> int:
    """Count the rows that a rank sends to others."""
    return sum(len(going(case, rank, to)) for to in case.members(rank) if to != rank)


def arriving(case: Case, rank: int) -> int:
    """Count the rows that a rank receives from others."""
    return sum(len(going(case, source, rank)) for source in case.members(rank) if source != rank)


def received(case: Case, rank: int, named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Collect what a rank receives: rows of "x 0", "x 1", ... and shares of "weights 0", ..."""
    rows, dense = [], []
    for source in case.members(rank):
        tokens = going(case, source, rank)
        x, weight = named[f"x {source}"], named[f"weights {source}"]
        rows.append(x[tokens])
        dense.append(shares(case, source, weight)[tokens, experts_of(case, rank)])
    return {"rows": torch.cat(rows), "shares": torch.cat(dense)}


def whole(case: Case, rank: int) -> dict[str, Tensor]:
    """Make tokens and weights of all ranks of a group: "x 0", "weights 0", "x 1", ..."""
    members = case.members(rank)
    found = {f"x {each}": hidden(case, each) for each in members}
    return found | {f"weights {each}": weights(case, each) for each in members}


def describe(case: Case) -> str:
    """Describe the choices of all ranks."""
    ranks = range(case.world_size)
    shown = ", ".join(f"{chosen(case, rank).tolist()} on rank {rank}" for rank in ranks)
    return f"{case.given.num_experts} experts in a group, chosen = {shown}"


CASES = [
    Case(1, "one choice", Given((2,), 2)),
    Case(1, "two choices", Given((2,), 2, 2)),
    Case(2, "one choice", Given((2, 2), 2)),
    Case(2, "two choices", Given((2, 3), 4, 2)),
    Case(2, "a choice without a slot", Given((3, 2), 4, 2, without_slot=True)),
    Case(3, "a rank that no token chooses", Given((2, 1, 2), 6, 2, busy=4)),
    Case(4, "a rank without tokens", Given((2, 0, 3, 1), 8, 3)),
    Case(4, "three choices", Given((3, 2), 6, 3), group_size=2),
]
