"""Gather parameters when they are needed and forget them after, from outside any module (ZeRO-3).

    forward    | gather 1 | 1 computes | 2 computes | 3 computes |
                          | gather 2   | gather 3   |            |
    backward                           | 3 computes | 2 computes | 1 computes |
                              gather 3 | gather 2   | gather 1   |

While a unit computes, the next one is gathered, so two units are whole at a time. Parameters that
are in no unit are whole from the beginning of forward to the end of backward. Source:
Zhao et al. 2023, "PyTorch FSDP", sections 3.3 and 4 (https://arxiv.org/abs/2304.11277).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .. import backward
from .flat import Flat

Call = Callable[[], None]


class Unit:
    """A module whose parameters are gathered together."""

    def __init__(self, module: nn.Module, flats: Sequence[Flat]):
        self.module = module
        self.flats = flats

    def gather(self) -> None:
        """Begin to gather the parameters; return at once."""
        for flat in self.flats:
            flat.gather()

    def ready(self) -> None:
        """Return when the module can compute."""
        for flat in self.flats:
            flat.ready()

    def forget(self) -> None:
        """Free all but this rank's pieces."""
        for flat in self.flats:
            flat.forget()


class Gathering:
    """Hooks on modules that gather their parameters before they compute, and forget them after.

    root   the whole module, with the parameters that are in no unit
    units  its layers, in the order in which they compute; a unit that computes in another order is
           gathered when it is needed, and not ahead of time
    """

    def __init__(self, root: Unit, units: Sequence[Unit]):
        self.root = root
        self.units = units
        self._backwards = backward.Once()
        root.module.register_forward_pre_hook(unless_meta(self._begin_forward))
        root.module.register_forward_hook(unless_meta(self._end_forward))
        for index, unit in enumerate(units):
            before, after = self._before(index), self._after(index)
            unit.module.register_forward_pre_hook(unless_meta(before), with_kwargs=True)
            unit.module.register_forward_hook(unless_meta(after))

    def forget(self) -> None:
        """Free all but this rank's pieces, of all units and of the root."""
        for unit in (self.root, *self.units):
            unit.forget()

    def _prefetch(self, index: int) -> None:
        """Begin to gather unit `index`, if there is one."""
        if 0 <= index < len(self.units):
            self.units[index].gather()

    def _begin_forward(self, module: nn.Module, inputs: Any) -> None:
        """Make the root whole, and begin to gather the first unit."""
        self.root.gather()
        self._prefetch(0)
        self.root.ready()

    def _before(self, index: int) -> Callable[..., Any]:
        """Make the hook that runs before the forward of unit `index`."""

        def hook(module: nn.Module, inputs: Any, options: Any) -> Any:
            self.units[index].ready()
            if not backward.is_running():
                self._prefetch(index + 1)
            return after_backward(self.units[index].forget, inputs, options)

        return hook

    def _after(self, index: int) -> Callable[..., None]:
        """Make the hook that runs after the forward of unit `index`."""

        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not backward.is_running():  # a recomputed unit is still needed
                self.units[index].forget()
            before_backward(lambda: self._back(index), output)

        return hook

    def _back(self, index: int) -> None:
        """Make unit `index` whole when backward reaches it."""
        self.units[index].ready()
        self._prefetch(index - 1)

    def _end_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        """Wait for backward, or free the root if there will be none."""
        if not before_backward(self._begin_backward, output):
            self.root.forget()

    def _begin_backward(self) -> None:
        """Make the root whole, begin to gather the last unit, and forget all at the end."""
        if not self._backwards.begins(self.forget):  # another output of the same backward
            return
        self.root.gather()
        self._prefetch(len(self.units) - 1)
        self.root.ready()


def unless_meta(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Skip `hook` when a forward runs on torch's meta device.

    Such a forward asks for shapes only, and other ranks may not take part in it.
    """

    def called(module: nn.Module, inputs: Any, *others: Any) -> Any:
        is_dry_run = any(isinstance(x, Tensor) and x.is_meta for x in tree_leaves(inputs))
        return None if is_dry_run else hook(module, inputs, *others)

    return called


def before_backward(call: Call, output: Any) -> bool:
    """Run `call` when backward reaches a module's `output`; return False if it never can."""
    tensors = [x for x in tree_leaves(output) if _needs_gradient(x)]
    for tensor in tensors:
        tensor.register_hook(lambda _: call())
    return bool(tensors)


def after_backward(call: Call, inputs: Any, options: Any) -> Any:
    """Wrap a module's `inputs` and keyword `options` so that `call` runs after its backward.

    If none of them needs a gradient, `call` never runs.
    """
    leaves, form = tree_flatten((inputs, options))
    tensors = [x for x in leaves if _needs_gradient(x)]
    if not tensors or not torch.is_grad_enabled():
        return inputs, options
    wrapped = iter(CallInBackward.apply(call, *tensors))
    leaves = [next(wrapped) if _needs_gradient(x) else x for x in leaves]
    return tree_unflatten(leaves, form)


class CallInBackward(Function):
    """The identity on tensors; its backward makes a call when their gradients are there."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        ctx.call()
        return None, *grads


def _needs_gradient(x: Any) -> bool:
    return isinstance(x, Tensor) and x.requires_grad
