"""From whole tensors to this rank's pieces of them and back, as a `cuts.Cut` says.

The same cut holds for a parameter, its gradient and Adam's moments: they have one shape.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from shardlab import comm
from shardlab.sharding.cuts import Cut

from .. import agreement
from . import conjugates


def take(whole: Tensor, cut: Cut, rank: int) -> Tensor:
    """Copy this rank's piece, padded with zeros where the cut pads: cut.shape -> cut.local_shape.

    The piece of a hollow tensor is hollow.

    Errors: ValueError for a tensor of another shape.
    """
    if tuple(whole.shape) != cut.shape:
        raise ValueError(
            f"expected shape {cut.shape}, got {tuple(whole.shape)}; pass the whole tensor"
        )
    if agreement.is_hollow(whole):
        return whole.detach().flatten()[0].expand(cut.local_shape)
    if cut.dim is None:
        return whole.detach().clone()
    held = cut.held(rank)
    view = whole.detach().narrow(cut.dim, held.start, len(held))
    piece = view.clone(memory_format=torch.contiguous_format)
    missing = cut.size - len(held)
    if not missing:
        return piece
    padded = F.pad(piece.movedim(cut.dim, -1), (0, missing))  # pads the last dim
    return padded.movedim(-1, cut.dim).contiguous()


def join(piece: Tensor, cut: Cut, group: comm.Group) -> Tensor:
    """Join all ranks' pieces, without padding: cut.local_shape -> cut.shape; a copy.

    Errors: ValueError for a piece of another shape.
    """
    if tuple(piece.shape) != cut.local_shape:
        raise ValueError(
            f"expected a piece of shape {cut.local_shape}, got {tuple(piece.shape)}; pass the cut "
            "by which it was taken"
        )
    if cut.dim is None:
        return piece.detach().clone()
    pieces = conjugates.all_gather(piece.detach(), group, cut.dim).chunk(group.size(), cut.dim)
    distinct = pieces[:: cut.holders]  # neighbours hold the same piece
    padded = torch.cat(distinct, cut.dim)
    return padded.narrow(cut.dim, 0, cut.shape[cut.dim]).contiguous()
