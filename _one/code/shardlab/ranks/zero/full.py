"""From pieces to whole states and back, by parameter names: what any number of ranks can load.

Shapes: [piece] is a rank's piece of a flat buffer, see `flat`; whole tensors have parameters'
shapes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .flat import Flat

States = dict[str, dict[str, Any]]
COUNT = "step"  # torch's optimizers count steps here; it has the shape of a scalar parameter


def parameters(module: nn.Module, flats: Sequence[Flat]) -> dict[str, Tensor]:
    """Return the state dict of the module on one process, with masters for parameters.

    Buffers are this rank's; ignored parameters are left out. All ranks must call it.
    """
    whole: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    for flat in flats:
        whole |= flat.join(flat.master)
        names |= {id(p): name for name, p in zip(flat.names, flat.parameters, strict=True)}
    state = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        first_name = names.get(id(tensor))  # a tied parameter has several names
        if first_name is not None:
            state[name] = whole[first_name]
        elif not isinstance(tensor, nn.Parameter):
            state[name] = tensor.detach().clone()
    return state


def load_parameters(
    module: nn.Module, flats: Sequence[Flat], state: Mapping[str, Tensor]
) -> None:
    """Take this rank's pieces, and all buffers, from the state dict of a whole module.

    Errors: ValueError for a missing name, or a tensor of another shape.
    """
    for flat in flats:
        for name, shape in zip(flat.names, flat.shapes, strict=True):
            if name not in state or state[name].shape != shape:
                found = f"shape {tuple(state[name].shape)}" if name in state else "nothing"
                raise ValueError(
                    f"expected {name} of shape {tuple(shape)}, got {found}; "
                    f"pass the state dict of the same whole module"
                )
        tensors = [state[name].to(flat.master) for name in flat.names]
        flat.master.copy_(flat.piece_of(tensors))
    for name, buffer in module.named_buffers():
        if name in state:
            buffer.copy_(state[name])


def optimizer_state(optimizer: Optimizer, flats: Sequence[Flat]) -> States:
    """Return what the optimizer keeps for each parameter, whole. All ranks must call it.

    A value that is one number for a buffer, as the count of steps, is the same for all its
    parameters.
    """
    found: States = {name: {} for flat in flats for name in flat.names}
    for flat in flats:
        for key, value in optimizer.state.get(flat.master, {}).items():
            whole = flat.join(value) if _is_piece(flat, key, value) else None
            for name in flat.names:
                found[name][key] = value if whole is None else whole[name]
    return found


def load_optimizer_state(
    optimizer: Optimizer, flats: Sequence[Flat], state: Mapping[str, Mapping[str, Any]]
) -> None:
    """Take this rank's pieces of whole optimizer states.

    Errors: ValueError where parameters that share a buffer have states with different keys.
    """
    for flat in flats:
        kept = [state[name] for name in flat.names]
        if any(set(each) != set(kept[0]) for each in kept):
            raise ValueError(
                f"{flat.names[0]} and other parameters of its buffer have states with different "
                f"keys; load states that one optimizer has saved"
            )
        optimizer.state[flat.master] = {
            key: _piece(flat, key, [each[key] for each in kept]) for key in kept[0]
        }


def _is_piece(flat: Flat, key: str, value: Any) -> bool:
    """Tell whether an optimizer's `value` has an element for each element of the piece."""
    is_tensor = isinstance(value, Tensor)
    return is_tensor and key != COUNT and value.shape == flat.master.shape


def _piece(flat: Flat, key: str, values: list[Any]) -> Any:
    """Return this rank's piece of whole `values`; of single numbers, the first."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if key != COUNT and [tensor.shape for tensor in tensors] == flat.shapes:
        return flat.piece_of([tensor.to(flat.master) for tensor in tensors])
    return values[0].clone() if tensors else values[0]
