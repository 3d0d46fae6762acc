"""From whole tensors to this rank's pieces of them, and back, as a `cuts.Cut` says.

What holds for a parameter holds for its gradient and for Adam's moments: they have its shape.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ...cuts import Cut
from .. import comm
from . import conjugates


def take(whole: Tensor, cut: Cut, rank: int) -> Tensor:
    """This rank's piece, filled up with zeros where the cut pads; a copy.

    Errors: ValueError for a tensor of another shape.
    """
    if tuple(whole.shape) != cut.shape:
        raise ValueError(f"a tensor of shape {tuple(whole.shape)} is none of shape {cut.shape}; pass the whole one")
    if cut.dim is None:
        return whole.detach().clone()
    held = cut.held(rank)
    piece = whole.detach().narrow(cut.dim, held.start, len(held)).clone(memory_format=torch.contiguous_format)
    missing = cut.size - len(held)
    return F.pad(piece.movedim(cut.dim, -1), (0, missing)).movedim(-1, cut.dim).contiguous() if missing else piece


def join(piece: Tensor, cut: Cut, group: comm.Group) -> Tensor:
    """The whole tensor on every rank, from the pieces of all, without padding; a copy."""
    if cut.dim is None:
        return piece.detach().clone()
    everyone = conjugates.all_gather(piece.detach(), group, cut.dim)
    distinct = everyone.chunk(group.size(), cut.dim)[:: cut.holders]
    return torch.cat(distinct, cut.dim).narrow(cut.dim, 0, cut.shape[cut.dim]).contiguous()
