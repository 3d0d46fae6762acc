"""Choose which parameters share a flat buffer: parameters of one layer, of one dtype and device."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

Members = dict[str, nn.Parameter]
LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def layers_in_lists(module: nn.Module) -> list[nn.Module]:
    """List the members of a module's outermost lists: the layers of most models."""
    if isinstance(module, LISTS):
        return list(module.children())
    return [layer for child in module.children() for layer in layers_in_lists(child)]


def split(
    module: nn.Module, layers: Sequence[nn.Module], ignored: Collection[nn.Parameter] = ()
) -> list[tuple[nn.Module, Members]]:
    """Assign every parameter of `module` but the `ignored` to a layer, or to the module itself.

    Returns the layers that have parameters of their own, and last the module with all parameters
    that are in no layer, or in several, or in a layer and outside of it. A parameter has the first
    of its names. Errors: ValueError for a layer that is the module itself, outside of it, or inside
    another.
    """
    _check(module, layers)
    parts: list[tuple[nn.Module, Members]] = []
    outside = _used_outside(module, layers)
    inside = [_ids(layer) for layer in layers]
    users = Counter(each for ids in inside for each in ids)
    without = {id(parameter) for parameter in ignored}
    named = {name: p for name, p in module.named_parameters() if id(p) not in without}
    rest = dict(named)
    for layer, ids in zip(layers, inside, strict=True):
        own = {each for each in ids - outside if users[each] == 1}
        members = {name: parameter for name, parameter in named.items() if id(parameter) in own}
        if members:
            parts.append((layer, members))
        for name in members:
            del rest[name]
    return [*parts, (module, rest)]


def by_kind(members: Members) -> list[Members]:
    """Group parameters that can share a buffer: by dtype, device, and whether they are trained."""
    kinds: dict[Any, Members] = {}
    for name, parameter in members.items():
        kind = (parameter.dtype, parameter.device, parameter.requires_grad)
        kinds.setdefault(kind, {})[name] = parameter
    return list(kinds.values())


def _ids(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


def _used_outside(module: nn.Module, layers: Sequence[nn.Module]) -> set[int]:
    """Find parameters that the module uses outside of its layers, as a tied head does."""
    inside = {id(each) for layer in layers for each in layer.modules()}
    found = set()
    for each in module.modules():
        if id(each) not in inside:
            found |= {id(parameter) for parameter in each.parameters(recurse=False)}
    return found


def _check(module: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Refuse layers that are not inside the module, or inside each other."""
    uses = Counter(id(each) for layer in layers for each in set(layer.modules()))
    known = {id(each) for each in module.modules()} - {id(module)}
    for index, layer in enumerate(layers):
        if id(layer) not in known:
            raise ValueError(
                f"layer {index} is not inside the module; pass modules that it contains"
            )
        if uses[id(layer)] > 1:
            raise ValueError(
                f"layer {index} is inside another layer, or listed twice; pass one of the two"
            )
