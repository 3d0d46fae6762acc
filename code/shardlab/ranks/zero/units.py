"""Which parameters travel together: those of one layer, and of one kind."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

Members = dict[str, nn.Parameter]
LISTS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)


def listed(module: nn.Module) -> list[nn.Module]:
    """The members of a module's outermost lists: the layers of most models."""
    if isinstance(module, LISTS):
        return list(module.children())
    return [layer for child in module.children() for layer in listed(child)]


def cut(module: nn.Module, layers: Sequence[nn.Module]) -> list[tuple[nn.Module, Members]]:
    """The layers with their parameters, and last the module with the rest: what is in no layer, or in several.

    A parameter has the first of its names in the module. Layers without parameters of their own are left out.
    Errors: ValueError for a layer that is the module itself, not in it, or inside another.
    """
    _check(module, layers)
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    inside = [_ids(layer) for layer in layers]
    users = Counter(each for ids in inside for each in ids)
    outside = _used_outside(module, layers)
    own = [{each for each in ids if users[each] == 1 and each not in outside} for ids in inside]
    named = dict(module.named_parameters())
    parts = [
        (layer, {names[each]: named[names[each]] for each in names if each in mine})
        for layer, mine in zip(layers, own, strict=True)
    ]
    rest = {name: p for name, p in named.items() if not any(id(p) in mine for mine in own)}
    return [*((layer, members) for layer, members in parts if members), (module, rest)]


def sort(members: Members) -> list[Members]:
    """By kind, as flat buffers take them: dtype, device, and whether they are trained."""
    kinds: dict[Any, Members] = {}
    for name, parameter in members.items():
        kinds.setdefault((parameter.dtype, parameter.device, parameter.requires_grad), {})[name] = parameter
    return list(kinds.values())


def _ids(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


def _used_outside(module: nn.Module, layers: Sequence[nn.Module]) -> set[int]:
    """Parameters that the module uses outside of its layers, too: a tied head does."""
    inside = {id(each) for layer in layers for each in layer.modules()}
    outer = (each for each in module.modules() if id(each) not in inside)
    return {id(parameter) for each in outer for parameter in each.parameters(recurse=False)}


def _check(module: nn.Module, layers: Sequence[nn.Module]) -> None:
    within = Counter(id(each) for layer in layers for each in set(layer.modules()))
    known = {id(each) for each in module.modules()} - {id(module)}
    for index, layer in enumerate(layers):
        if id(layer) not in known:
            raise ValueError(f"layer {index} is not inside the module; pass modules that it contains")
        if within[id(layer)] > 1:
            raise ValueError(f"layer {index} is inside another, or stands there twice; pass either of them")
