"""Gradients of parameters that several ranks hold: summed over them, and counted once in a norm.

Shapes: a gradient has the shape of this rank's piece of its parameter.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from shardlab import comm
from shardlab.sharding import cuts

from ..transformer import Transformer

HEAD_NORMS = ("attention.q_scale", "attention.k_scale")


def share_gradients(
    model: nn.Module, plan: Mapping[str, cuts.Cut], group: comm.Group, sliced: bool
) -> None:
    """Sum gradients in backward where several ranks hold the same numbers and use them differently.

    The query heads of several ranks may share a key/value head. With sequence parallelism
    (`sliced`), norms and biases that every rank holds see only the tokens of a slice. Norms of
    queries and keys see only the heads of this rank.
    """
    counts = {cut.holders for cut in plan.values() if cut.dim is not None and cut.holders > 1}
    neighbours = {count: comm.split(group, count) for count in sorted(counts)}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            cut = plan.get(f"{path}.{name}")
            if cut is None or cut.holders == 1:  # None: a tied head, which is cut as the embedding
                continue
            if cut.dim is not None:
                module.register_forward_pre_hook(SumGradient(name, neighbours[cut.holders]))
            elif sliced or path.endswith(HEAD_NORMS):
                module.register_forward_pre_hook(SumGradient(name, group))


class SumGradient:
    """A hook before a module's forward that lets backward sum one gradient over the group.

    It looks at every forward, because `model.to(...)` may replace the parameter that was hooked.
    """

    def __init__(self, name: str, group: comm.Group) -> None:
        self.name = name
        self.group = group
        self.hooked: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: object) -> None:
        parameter = getattr(module, self.name)
        if parameter.requires_grad and parameter is not self.hooked:
            self.hooked = parameter
            parameter.register_hook(lambda grad: comm.all_reduce(grad, self.group))


def gradient_norm(model: Transformer, group: comm.Group) -> Tensor:
    """Return the norm of all gradients of the uncut model, which clipping needs, in float64: [].

    A number that several ranks hold counts once.
    """
    plan = cuts.model(model.spec, group.size())
    squares = []
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            square = parameter.grad.double().pow(2).sum()
            squares.append(square / plan[name].holders)
    return comm.all_reduce(torch.stack(squares).sum(), group).sqrt()
