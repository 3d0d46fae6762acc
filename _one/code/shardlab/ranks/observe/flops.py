"""Count the FLOPs of the operations that torch runs, to compare with `costs.compute.flops`.

The formulas are those of torch.utils.flop_counter: matrix products, convolutions and attention
count, other operations, which are limited by memory, do not. A causal mask saves nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry

_ATEN = torch.ops.aten
_FLASH = "_scaled_dot_product_flash_attention"
_LIKE = {  # attention on the CPU has no formula of its own in torch
    getattr(_ATEN, f"{_FLASH}_for_cpu"): getattr(_ATEN, _FLASH),
    getattr(_ATEN, f"{_FLASH}_for_cpu_backward"): getattr(_ATEN, f"{_FLASH}_backward"),
}


def counted(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Count the FLOPs of one operation, with the arguments that a TorchDispatchMode gets."""
    formula = _formula(func)
    if formula is None:
        return 0
    shapes = {name: _shape(value) for name, value in kwargs.items()}
    return int(formula(*map(_shape, args), **shapes, out_shape=_shape(result)))


@cache
def _formula(func: Any) -> Callable[..., int] | None:
    """Return torch's formula, from shapes to FLOPs, without its slow wrapper that takes tensors."""
    packet = getattr(func, "overloadpacket", None)
    formula = flop_registry.get(_LIKE.get(packet, packet))
    return getattr(formula, "__wrapped__", None)


def _shape(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_shape, value))
    return value.shape if isinstance(value, Tensor) else value
