"""Gather parameters when they are needed and forget them after, from outside any module (ZeRO-3, alias FSDP).

    forward    | gather 1 | 1 computes | 2 computes | 3 computes |
                          | gather 2   | gather 3   |            |
    backward                           | 3 computes | 2 computes | 1 computes |
                              gather 3 | gather 2   | gather 1   |

While a unit computes, the next one is on its way: two are whole at a time, and what is in no unit, from the beginning
of forward to the end of backward. Zhao et al. 2023, sections 3.3 and 4 (https://arxiv.org/abs/2304.11277).
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from .. import backward
from .flat import Flat


class Unit:
    """A module whose parameters are gathered together."""

    def __init__(self, module: nn.Module, flats: Sequence[Flat]):
        self.module, self.flats = module, flats

    def gather(self) -> None:
        """Begin; returns at once."""
        for flat in self.flats:
            flat.gather()

    def ready(self) -> None:
        """The module can compute when this returns."""
        for flat in self.flats:
            flat.ready()

    def forget(self) -> None:
        for flat in self.flats:
            flat.forget()


class Gathering:
    """Hooks that gather and forget: units in the order in which they compute, and the rest, which belongs to `root`.

    A unit that computes in another order is gathered when it is needed, and nothing is gathered ahead of it.
    """

    def __init__(self, root: Unit, units: Sequence[Unit]):
        self.root, self.units = root, units
        self._turns = backward.Once()
        root.module.register_forward_pre_hook(unless_meta(self._begin))
        root.module.register_forward_hook(unless_meta(self._end))
        for index, unit in enumerate(units):
            unit.module.register_forward_pre_hook(unless_meta(self._before(index)), with_kwargs=True)
            unit.module.register_forward_hook(unless_meta(self._after(index)))

    def forget(self) -> None:
        """Nothing is whole any more."""
        for unit in (self.root, *self.units):
            unit.forget()

    # ---- forward -----------------------------------------------------------------------------------------------------

    def _begin(self, module: nn.Module, inputs: Any) -> None:
        self.root.gather()
        self._ahead(0)
        self.root.ready()

    def _before(self, index: int) -> Callable[..., Any]:
        def hook(module: nn.Module, inputs: Any, options: Any) -> Any:
            self.units[index].ready()
            if not backward.is_running():
                self._ahead(index + 1)
            return when_left(self.units[index].forget, inputs, options)

        return hook

    def _after(self, index: int) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if not backward.is_running():  # else it is computed again, and needed still
                self.units[index].forget()
            when_entered(lambda: self._back(index), output)

        return hook

    def _end(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if not when_entered(self._turn, output):
            self.root.forget()

    # ---- backward ----------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if not self._turns.begins(self.forget):  # another output of the same model
            return
        self.root.gather()
        self._ahead(len(self.units) - 1)
        self.root.ready()

    def _back(self, index: int) -> None:
        self.units[index].ready()
        self._ahead(index - 1)

    def _ahead(self, index: int) -> None:
        if 0 <= index < len(self.units):
            self.units[index].gather()


def unless_meta(hook: Callable[..., Any]) -> Callable[..., Any]:
    """The hook, but not of a forward on torch's meta device: that asks for shapes, and other ranks may not be there."""

    def called(module: nn.Module, inputs: Any, *rest: Any) -> Any:
        asks = any(isinstance(x, Tensor) and x.is_meta for x in tree_leaves(inputs))
        return None if asks else hook(module, inputs, *rest)

    return called


def when_entered(call: Callable[[], None], output: Any) -> bool:
    """Call when backward arrives at a module's output; whether it ever will."""
    tensors = [x for x in tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
    for tensor in tensors:
        tensor.register_hook(lambda _: call())
    return bool(tensors)


def when_left(call: Callable[[], None], inputs: Any, options: Any) -> Any:
    """Inputs for a module after whose backward it is to be called; where they need no gradient, nobody will call."""
    leaves, form = tree_flatten((inputs, options))
    tensors = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    if not tensors or not torch.is_grad_enabled():
        return inputs, options
    passed = iter(Leaving.apply(call, *tensors))
    leaves = [next(passed) if isinstance(x, Tensor) and x.requires_grad else x for x in leaves]
    return tree_unflatten(leaves, form)


class Leaving(Function):
    """Its inputs; in backward their gradients are there when the module behind has done its part."""

    @staticmethod
    def forward(ctx: Any, call: Callable[[], None], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        ctx.call()
        return None, *grads
