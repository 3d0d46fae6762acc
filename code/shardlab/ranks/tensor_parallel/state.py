"""The state of a cut model as the plain model has it: gathered from ranks, and loaded to them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from shardlab import comm
from shardlab.sharding import cuts

from ..mixture import biases
from ..transformer import Transformer
from . import shards


def gather(model: Transformer, group: comm.Group) -> dict[str, Tensor]:
    """Return the state dict of the plain model, whole, on every rank."""
    plan = cuts.model(model.spec, group.size())
    plain = {}
    for name, parameter in model.named_parameters():
        plain[name] = shards.join(parameter, plan[name], group)
    for name in biases(model.spec):
        plain[name] = model.get_buffer(name).clone()
    if model.spec.tied:
        plain["head.weight"] = plain["embedding.tokens.weight"]
    return plain


@torch.no_grad()
def load(model: Transformer, plain: Mapping[str, Tensor], group: comm.Group) -> None:
    """Fill the cut model from the state dict of a plain one.

    If that is memory-mapped, a rank reads its own pieces only. A model too large for one rank is
    built on the meta device, cut, made real with `to_empty`, and filled here. Errors: ValueError
    for missing names and for other shapes.
    """
    if model.spec.tied:
        model.head.weight = model.embedding.tokens.weight  # `to_empty` has made two of them
    plan = cuts.model(model.spec, group.size())
    whole = biases(model.spec)
    missing = [name for name in (*plan, *whole) if name not in plain]
    if missing:
        raise ValueError(
            f"the state lacks {len(missing)} parameters ({', '.join(missing[:5])}); "
            f"pass the state dict of a plain model"
        )
    for name, parameter in model.named_parameters():
        parameter.copy_(shards.take(plain[name], plan[name], group.rank()))
    for name in whole:
        model.get_buffer(name).copy_(plain[name])
