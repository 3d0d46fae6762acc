"""A hollow model: every parameter has its shape and one number, so that no rank holds all of them.

    model = hollow.build(spec)                       # almost no memory, whatever the size
    trainer = Trainer(model, mesh, schedule, ...)    # cuts it, and makes room for this rank's part

A model that is read from files needs no numbers before. The methods cut hollow parameters as they
cut others, and only what a rank keeps gets memory. Torch's meta device would not do: what a meta
parameter is replaced by is another parameter, which unties a tied head and loses hooks.
"""

import torch
from torch import nn

from shardlab.model.spec import TransformerSpec

from ..transformer import Transformer


def build(
    spec: TransformerSpec,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Transformer:
    """Build a model whose parameters are one zero each, expanded. Errors: as in `Transformer`."""
    with torch.device("meta"):
        model = Transformer(spec)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zero = torch.zeros((), dtype=dtype, device=device)         # []
            hollow = nn.Parameter(zero.expand(parameter.shape))
            setattr(module, name, hollow)
        for name, buffer in module.named_buffers(recurse=False):
            own = dtype if buffer.is_floating_point() else buffer.dtype
            setattr(module, name, torch.zeros(buffer.shape, dtype=own, device=device))
    if spec.tied:
        model.head.weight = model.embedding.tokens.weight
    return model
