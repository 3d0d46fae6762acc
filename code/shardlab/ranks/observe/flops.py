"""FLOPs of the operations that torch runs, by torch's own formulas: the counted side of `costs.flops`.

Only matrix products, convolutions and attention have a formula; all else is limited by memory and counts nothing.
A causal mask saves nothing here, as in torch.utils.flop_counter, whose formulas these are.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

_ATEN = torch.ops.aten
_LIKE = {  # the processor's own attention has no formula of its own in torch
    _ATEN._scaled_dot_product_flash_attention_for_cpu: _ATEN._scaled_dot_product_flash_attention,
    _ATEN._scaled_dot_product_flash_attention_for_cpu_backward: _ATEN._scaled_dot_product_flash_attention_backward,
}


def counted(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """FLOPs of one call of an operation, as a TorchDispatchMode sees it."""
    formula = _formula(func)
    if formula is None:
        return 0
    shapes = {name: _shape(value) for name, value in kwargs.items()}
    return int(formula(*map(_shape, args), **shapes, out_shape=_shape(result)))


@cache
def _formula(func: Any) -> Callable[..., int] | None:
    """From shapes to FLOPs: torch's formula without the wrapper that looks for tensors in every corner."""
    packet = getattr(func, "overloadpacket", None)
    formula = flop_registry.get(_LIKE.get(packet, packet))  # type: ignore[arg-type]
    return getattr(formula, "__wrapped__", None)


def _shape(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_shape, value))
    return value.shape if isinstance(value, Tensor) else value
