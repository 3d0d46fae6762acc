"""Recomputation, or activation checkpointing: drop activations, and recompute them in backward.

Chen et al. 2016 (https://arxiv.org/abs/1604.06174). Only the input of a block is kept; the price is
a second forward pass. Selective recomputation (Korthikanti et al. 2022,
https://arxiv.org/abs/2205.05198) drops only what is inside attention, which grows with the square
of the sequence and costs little to recompute.

    recompute.wrap(model.blocks)             # every block; model.blocks[::2] for every second one
    recompute.wrap_attention(model.blocks)   # only scores, softmax and dropout of attention
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
    """Call function(*inputs, **options), keep only the inputs, and recompute the rest in backward.

    Inputs and results may be nested, and need not be tensors. Parameters that the function uses get
    their gradients. The function must compute the same twice: torch's random numbers and autocast
    are restored, but whatever it changes, such as the running means of batch normalization, it
    changes twice.

    Errors: ValueError if it uses a tensor that has a history and is not among its inputs;
    RuntimeError if it leaves a parameter on another device than it used it on, and in backward if a
    parameter has changed since forward.
    """
    if not torch.is_grad_enabled():
        return function(*inputs, **options)
    tensors = _tensors((inputs, options))
    # the inputs without their tensors, which only autograd may keep
    slots = tree_map_only(Tensor, lambda _: _Slot(), (inputs, options))

    def run(tensors: Sequence[Tensor]) -> Any:
        remaining = iter(tensors)
        positional, named = tree_map_only(_Slot, lambda _: next(remaining), slots)
        return function(*positional, **named)

    conditions = _Conditions()
    parameters = _Parameters()
    detached = [tensor.detach() for tensor in tensors]  # outside the mode, which would note them
    with torch.no_grad(), parameters:
        results, form = tree_flatten(run(detached))
    parameters.note(*results)  # also a parameter that the function returns as it is
    parameters.check_devices()
    again = functools.partial(conditions.restore, run)
    used = parameters.used
    outputs = iter(_Recompute.apply(again, _tensors(results), used, *tensors, *used))
    connected = [next(outputs) if isinstance(each, Tensor) else each for each in results]
    return tree_unflatten(connected, form)


class _Recompute(torch.autograd.Function):
    """A function as a single node of the graph."""

    @staticmethod
    def forward(
        ctx: Any,
        again: Any,
        outputs: list[Tensor],
        parameters: list[Tensor],
        *tensors: Tensor,
    ) -> Any:
        ctx.again = again
        ctx.parameters = parameters
        ctx.versions = [parameter._version for parameter in parameters]
        ctx.save_for_backward(*tensors[: len(tensors) - len(parameters)])
        ctx.set_materialize_grads(False)
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "what is recomputed has no second derivative; "
                "use create_graph without checkpoint"
            )
        if ctx.versions != [parameter._version for parameter in ctx.parameters]:
            raise RuntimeError(
                "a parameter changed between forward and backward; "
                "step the optimizer after backward"
            )
        needed = ctx.needs_input_grad[3:]  # of the inputs, and then of the parameters
        inputs = []
        with torch.enable_grad():
            for tensor, need in zip(ctx.saved_tensors, needed, strict=False):
                leaf = tensor.detach().requires_grad_(need)
                inputs.append(leaf.view_as(leaf))  # some hooks do not accept a leaf
        outputs, incoming = [], []
        for y, gradient in zip(_tensors(ctx.again(inputs)), gradients, strict=True):
            if gradient is not None and y.requires_grad:
                outputs.append(y)
                incoming.append(gradient)
        pairs = zip([*inputs, *ctx.parameters], needed, strict=True)
        wanted = [x for x, need in pairs if need]
        found = iter(torch.autograd.grad(outputs, wanted, incoming, allow_unused=True))
        return (None, None, None, *[next(found) if need else None for need in needed])


class _Slot:
    """The place of a tensor among the inputs."""


class _Parameters(TorchFunctionMode):
    """A record of the parameters in use: in a no_grad block, all tensors that need a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.used: list[Tensor] = []
        self.devices: list[torch.device] = []  # where they were used

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(True for _ in _shallow(result)):  # reading a shape is no use of a tensor
            self.note(*args, *(kwargs or {}).values())
        return result

    def note(self, *values: Any) -> None:
        """Record the parameters among `values`. Errors: ValueError for a tensor with a history."""
        for tensor in _shallow(*values):
            if not tensor.requires_grad or any(tensor is each for each in self.used):
                continue
            if not tensor.is_leaf:
                shape = tuple(tensor.shape)
                raise ValueError(
                    f"the function uses a tensor {shape} from outside; pass it as one of the inputs"
                )
            self.used.append(tensor)
            self.devices.append(tensor.device)

    def check_devices(self) -> None:
        """Raise RuntimeError if one has left: autograd takes gradients from its device alone."""
        for parameter, device in zip(self.used, self.devices, strict=True):
            if parameter.device != device:
                raise RuntimeError(
                    f"a parameter was used on {device} and is on {parameter.device} now; "
                    "if Offload moves it, call recompute.wrap(modules) before Offload(modules)"
                )


class _Conditions:
    """The random states and autocast options with which a function runs."""

    def __init__(self) -> None:
        self.devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        kinds = ["cpu", *["cuda" for _ in self.devices]]
        self.casts = [_autocast(kind) for kind in kinds]
        self.random = [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self.devices)]

    def restore(self, function: Callable[..., Any], *inputs: Any) -> Any:
        """Run `function` with gradients under the saved state; then restore the present state."""
        with torch.random.fork_rng(self.devices):
            torch.set_rng_state(self.random[0])
            for device, state in zip(self.devices, self.random[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            with ExitStack() as stack:
                stack.enter_context(torch.enable_grad())
                for kind, dtype, enabled in self.casts:
                    stack.enter_context(torch.autocast(kind, dtype, enabled))
                return function(*inputs)


def _autocast(kind: str) -> tuple[str, torch.dtype, bool]:
    """Return the arguments of torch.autocast that keep it as it is."""
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)


def wrap(modules: Iterable[nn.Module]) -> None:
    """Let backward recompute each of these modules; `del module.forward` undoes it."""
    for module in modules:
        setattr(module, "forward", functools.partial(checkpoint, module.forward))  # noqa: B010


def wrap_attention(modules: Iterable[nn.Module]) -> None:
    """Let backward recompute the attention inside these modules, and nothing else."""
    for module in modules:
        forward = functools.partial(_recompute_attention, module.forward)
        setattr(module, "forward", forward)  # noqa: B010


def _recompute_attention(forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    with _AttentionCore():
        return forward(*inputs, **options)


class _AttentionCore(TorchFunctionMode):
    """A mode that checkpoints torch's attention: scores, softmax, dropout, sum of values."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return checkpoint(func, *args, **options)
        return func(*args, **options)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _shallow(*values: Any) -> Iterator[Tensor]:
    """List the tensors among values and in their lists; operations take no deeper ones.

    This runs for every operation, and torch's trees would be slow.
    """
    for value in values:
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, Tensor):
                yield each
