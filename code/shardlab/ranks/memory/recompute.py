"""Recomputation, or activation checkpointing: forget what a function computes on the way, compute it again in backward.

Chen et al. 2016 (https://arxiv.org/abs/1604.06174). Of a block its input stays; the price is a second forward pass.
Selective recomputation (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198) forgets what lies inside attention
alone: it grows with the square of the sequence, and costs little to compute again.

    recompute.wrap(model.blocks)             # every block; model.blocks[::2] for every second one
    recompute.wrap_attention(model.blocks)   # what lies between the queries, keys, values and the result
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten


def checkpoint(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """function(*inputs, **options), of which backward keeps the inputs alone and computes the rest again.

    Inputs and results may be nested, and need not be tensors. Parameters that the function uses get their gradients.
    It must compute the same the second time: torch's random numbers and autocast are as they were, but what it
    changes, it changes twice (such as the running means of batch normalisation).
    Errors: ValueError if it uses a tensor with a history that is not among its inputs; RuntimeError in backward if a
    parameter has changed since.
    """
    if not torch.is_grad_enabled():
        return function(*inputs, **options)
    tensors = _tensors((inputs, options))
    slots = tree_map_only(Tensor, lambda _: _Slot(), (inputs, options))  # what is kept must not hold the tensors

    def run(tensors: Sequence[Tensor]) -> Any:
        filling = iter(tensors)
        positional, named = tree_map_only(_Slot, lambda _: next(filling), slots)
        return function(*positional, **named)

    conditions, parameters, detached = _Conditions(), _Parameters(), [tensor.detach() for tensor in tensors]
    with torch.no_grad(), parameters:
        results, form = tree_flatten(run(detached))
    parameters.note(*results)  # one that is returned as it is, too
    again = functools.partial(conditions.restore, run)
    outputs = iter(_Recompute.apply(again, _tensors(results), parameters.used, *tensors, *parameters.used))
    return tree_unflatten([next(outputs) if isinstance(each, Tensor) else each for each in results], form)


class _Recompute(torch.autograd.Function):
    """One node in the graph for all that a function did."""

    @staticmethod
    def forward(ctx: Any, again: Any, outputs: list[Tensor], parameters: list[Tensor], *tensors: Tensor) -> Any:
        ctx.again, ctx.parameters = again, parameters
        ctx.versions = [parameter._version for parameter in parameters]
        ctx.save_for_backward(*tensors[: len(tensors) - len(parameters)])
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError("what is computed again has no second derivative; use create_graph without checkpoint")
        if ctx.versions != [parameter._version for parameter in ctx.parameters]:
            raise RuntimeError("a parameter changed between forward and backward; step the optimizer after backward")
        needed = ctx.needs_input_grad[3:]
        kept = zip(ctx.saved_tensors, needed, strict=False)  # parameters follow
        with torch.enable_grad():  # views of leaves: leaves themselves do not go with all hooks that modules may have
            inputs = [tensor.detach().requires_grad_(need).view_as(tensor) for tensor, need in kept]
        pairs = zip(_tensors(ctx.again(inputs)), gradients, strict=True)
        reached = [(y, gradient) for y, gradient in pairs if gradient is not None and y.requires_grad]
        wanted = [x for x, need in zip([*inputs, *ctx.parameters], needed, strict=True) if need]
        outputs, gradients = zip(*reached, strict=True) if reached else ((), ())
        found = iter(torch.autograd.grad(outputs, wanted, gradients, allow_unused=True))
        return (None, None, None, *[next(found) if need else None for need in needed])


class _Slot:
    """The place of a tensor among inputs."""


class _Parameters(TorchFunctionMode):
    """Notes every tensor that needs a gradient when an operation uses it; in a no_grad block those are parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(True for _ in _shallow(result)):  # to ask for a shape is no use
            self.note(*args, *(kwargs or {}).values())
        return result

    def note(self, *values: Any) -> None:
        for tensor in _shallow(*values):
            if not tensor.requires_grad or any(tensor is each for each in self.used):
                continue
            if not tensor.is_leaf:
                shape = tuple(tensor.shape)
                raise ValueError(f"the function uses a tensor {shape} from outside; pass it as one of the inputs")
            self.used.append(tensor)


class _Conditions:
    """What a result depends on beside the inputs: the random numbers to come, and autocast."""

    def __init__(self) -> None:
        self.devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        kinds = ["cpu", *["cuda" for _ in self.devices]]
        self.casts = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]
        self.random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]

    def restore(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Call the function, with gradients, as if now were then; random numbers go on from where they are now."""
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.random[0])
            for device, state in zip(self.devices, self.random[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            with ExitStack() as stack:
                stack.enter_context(torch.enable_grad())
                for kind, dtype, enabled in self.casts:
                    stack.enter_context(torch.autocast(kind, dtype, enabled))
                return function(*inputs)


def wrap(modules: Iterable[nn.Module]) -> None:
    """From now on each of these modules is computed again in backward; `del module.forward` undoes it."""
    for module in modules:
        setattr(module, "forward", functools.partial(checkpoint, module.forward))  # noqa: B010


def wrap_attention(modules: Iterable[nn.Module]) -> None:
    """From now on the attention inside these modules is computed again in backward, and nothing else of them."""
    for module in modules:
        setattr(module, "forward", functools.partial(_recompute_attention, module.forward))  # noqa: B010


def _recompute_attention(forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    with _AttentionCore():
        return forward(*inputs, **options)


class _AttentionCore(TorchFunctionMode):
    """Checkpoints every call of torch's attention: scores, softmax, dropout, weighted sum of the values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        return checkpoint(func, *args, **options) if func is F.scaled_dot_product_attention else func(*args, **options)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _shallow(*values: Any) -> Iterator[Tensor]:
    """The tensors among values and in their lists: operations take no deeper ones, and there are many operations."""
    for value in values:
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, Tensor):
                yield each
