"""Gradients of parameters that several ranks hold: summed where each rank sees another part, counted once in a norm."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ... import cuts
from .. import comm
from ..transformer import Transformer


def share_gradients(model: nn.Module, plan: Mapping[str, cuts.Cut], group: comm.Group, sliced: bool) -> None:
    """Where several ranks hold the same numbers and use them for different things, let backward sum the gradients.

    The query heads of several ranks may share a key/value head; with sequence parallelism (sliced), norms and biases
    that every rank has see the tokens of a slice.
    """
    shared = {cut.holders: None for cut in plan.values() if cut.dim is not None and cut.holders > 1}
    neighbours = {count: comm.split(group, count) for count in shared}
    for path, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            cut = plan.get(f"{path}.{name}")  # a tied head has none
            if cut is not None and cut.dim is None and sliced:
                sum_gradient(module, name, group)
            elif cut is not None and cut.dim is not None and cut.holders > 1:
                sum_gradient(module, name, neighbours[cut.holders])


def sum_gradient(module: nn.Module, name: str, group: comm.Group) -> None:
    """Let every backward sum the gradient of this parameter over the ranks of the group."""
    heard: list[Tensor] = []

    def listen(_module: nn.Module, _inputs: object) -> None:
        """Before each forward: `model.to(...)` may have put another parameter in the place of the one with the hook."""
        parameter = getattr(module, name)
        if parameter.requires_grad and not (heard and heard[0] is parameter):
            heard[:] = [parameter]
            parameter.register_hook(lambda grad: comm.all_reduce(grad, group))

    module.register_forward_pre_hook(listen)


def gradient_norm(model: Transformer, group: comm.Group) -> Tensor:
    """The norm of all gradients of the uncut model, which clipping needs: what several ranks hold counts once."""
    plan = cuts.model(model.spec, group.size())
    squares = [
        parameter.grad.double().pow(2).sum() / plan[name].holders
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    ]
    return comm.all_reduce(torch.stack(squares).sum(), group).sqrt()
