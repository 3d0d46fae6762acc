"""From pieces to whole states and back, by the names of parameters: what any number of ranks can go on from."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .flat import Flat

States = dict[str, dict[str, Any]]
COUNT = "step"  # what torch's optimizers call their count of steps; it has the shape of a scalar parameter


def parameters(module: nn.Module, flats: Sequence[Flat]) -> dict[str, Tensor]:
    """The state dict that the module would have on one process: masters, and its buffers as they are here."""
    whole = {name: tensor for flat in flats for name, tensor in flat.join(flat.master).items()}
    names = {id(p): name for flat in flats for name, p in zip(flat.names, flat.parameters, strict=True)}
    state = module.state_dict(keep_vars=True)
    return {name: whole[names[id(x)]] if id(x) in names else x.detach().clone() for name, x in state.items()}


def load_parameters(module: nn.Module, flats: Sequence[Flat], state: Mapping[str, Tensor]) -> None:
    """Errors: ValueError for a name that is missing, or a tensor of another shape."""
    for flat in flats:
        for name, shape in zip(flat.names, flat.shapes, strict=True):
            if name not in state or state[name].shape != shape:
                there = tuple(state[name].shape) if name in state else "missing"
                raise ValueError(f"{name} is {there}, and the module has {tuple(shape)}; pass the state of its like")
        flat.master.copy_(flat.mine([state[name].to(flat.master) for name in flat.names]))
    for name, buffer in module.named_buffers():
        if name in state:
            buffer.copy_(state[name])


def optimizer_state(optimizer: Optimizer, flats: Sequence[Flat]) -> States:
    """What the optimizer keeps of each parameter; one number for a buffer (its count of steps) for all of it."""
    found: States = {name: {} for flat in flats for name in flat.names}
    for flat in flats:
        for key, value in optimizer.state.get(flat.master, {}).items():
            cut = key != COUNT and isinstance(value, Tensor) and value.shape == flat.master.shape
            whole = flat.join(value) if cut else dict.fromkeys(flat.names, value)
            for name in flat.names:
                found[name][key] = whole[name]
    return found


def load_optimizer_state(optimizer: Optimizer, flats: Sequence[Flat], state: Mapping[str, Mapping[str, Any]]) -> None:
    """Errors: ValueError where parameters of one buffer have unlike states."""
    for flat in flats:
        kept = [state[name] for name in flat.names]
        if any(set(each) != set(kept[0]) for each in kept):
            raise ValueError(f"{flat.names[0]} and others of its unit have unlike states; load those of one optimizer")
        optimizer.state[flat.master] = {
            key: _piece(flat, key, [each[key] for each in kept]) for key in kept[0]
        }


def _piece(flat: Flat, key: str, values: list[Any]) -> Any:
    """This rank's piece of what has the shapes of the parameters; what is one number, as it is."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if key != COUNT and [tensor.shape for tensor in tensors] == flat.shapes:
        return flat.mine([tensor.to(flat.master) for tensor in tensors])
    return values[0].clone() if tensors else values[0]

