"""The state of a cut model, as the plain model has it: gathered from the ranks, and dealt to them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ... import cuts
from .. import comm
from ..transformer import Transformer
from . import shards


def gather(model: Transformer, group: comm.Group) -> dict[str, Tensor]:
    """The state dict of the plain model, whole, on every rank."""
    plan = cuts.model(model.spec, group.size())
    plain = {name: shards.join(parameter, plan[name], group) for name, parameter in model.named_parameters()}
    return {**plain, "head.weight": plain["embedding.tokens.weight"]} if model.spec.tied else plain


@torch.no_grad()
def load(model: Transformer, plain: Mapping[str, Tensor], group: comm.Group) -> None:
    """Fill the cut model from the state dict of a plain one; a memory-mapped one is read where a rank needs it.

    A model too large for one rank is built on the meta device, cut, made real (`to_empty`), and filled here.
    Errors: ValueError for missing names and for other shapes.
    """
    if model.spec.tied:
        model.head.weight = model.embedding.tokens.weight  # `to_empty` makes two of them
    plan = cuts.model(model.spec, group.size())
    missing = [name for name in plan if name not in plain]
    if missing:
        raise ValueError(f"the state lacks {len(missing)} parameters ({', '.join(missing[:5])}); pass a plain model's")
    for name, parameter in model.named_parameters():
        parameter.copy_(shards.take(plain[name], plan[name], group.rank()))
