"""What the ranks of a bug hold in the end, if it is right and if it is wrong."""

import torch
from torch import Tensor

from shardlab.sharding.types.bugs.bug import Bug
from shardlab.sharding.types.states import Mesh, parse

from .players import Players


def numbers(bug: Bug, right: bool, mesh: Mesh | None = None) -> Tensor:
    """Play one of a bug's programs, on its own mesh or another: [*mesh, *local]."""
    players = Players(mesh or bug.mesh)
    inputs = bug.inputs
    if bug.wrong_inputs and not right:
        inputs = bug.wrong_inputs
    played = []
    for text, whole in inputs:
        tensor = torch.tensor(whole, dtype=torch.double)
        played.append(players.given(tensor, parse(text)))
    result = bug.text(players, right, *played)
    held: Tensor = result.held
    return held.detach()
