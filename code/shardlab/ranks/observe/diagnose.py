"""Find the rank that differs, and the first module that does: a few functions to copy into a run that goes wrong.

What should be equal on all ranks is compared by checksums, eight bytes a tensor; what differs between a run on many
ranks and the same on one is looked for module by module, in the order in which they compute.

    diagnose.differing(model.state_dict(), group)    # {"head.bias": [2]}: rank 2 has other bits than rank 0
    diagnose.nonfinite(gradients, group)             # {1: "up.weight"}: rank 1 has a NaN, before the all-reduce
    with diagnose.outputs(model) as seen:            # what every module put out, innermost first
        loss = model(x)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import comm

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # bytes -> whole numbers of as many
_STRIDE = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's constants, as torch's signed numbers
_MIXING = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def gathered(number: float, group: comm.Group) -> list[float]:
    """One number from every rank, in the order of ranks: of a step, a loss, a norm. Every rank calls it."""
    mine = torch.tensor([number], dtype=torch.float64, device=comm.device(group))
    return [float(each) for each in comm.all_gather(mine, group).tolist()]


# ---- what should be equal on all ranks -------------------------------------------------------------------------------


@torch.no_grad()
def checksum(x: Tensor) -> Tensor:
    """The bits of a tensor as one whole number: [...] -> [], int64. It needs some 24 bytes for each number meanwhile.

    Every number is mixed with its place (as SplitMix64 mixes, Steele et al. 2014, https://doi.org/10.1145/2660193.2660195)
    and added modulo 2^64: so the order of adding does not matter, and a NaN is a pattern of bits like any other.
    """
    flat = torch.view_as_real(x) if x.is_complex() else x
    words = flat.contiguous().view(-1).view(_WORDS[flat.element_size()]).to(torch.int64)
    mixed = words + torch.arange(1, words.numel() + 1, device=words.device) * _STRIDE
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed ^ (mixed >> 31)).sum()


def differing(tensors: Mapping[str, Tensor], group: comm.Group) -> dict[str, list[int]]:
    """Which tensors are not bit by bit those of rank 0, and on which ranks; the same answer everywhere.

    Every rank passes the same names in the same order. One message, eight bytes for each tensor.
    """
    if not tensors:
        return {}
    first, *others = comm.all_gather(torch.stack([checksum(x) for x in tensors.values()])[None], group).tolist()
    apart = {
        name: [rank for rank, sums in enumerate(others, start=1) if sums[place] != first[place]]
        for place, name in enumerate(tensors)
    }
    return {name: ranks for name, ranks in apart.items() if ranks}


def nonfinite(tensors: Mapping[str, Tensor], group: comm.Group) -> dict[int, str]:
    """Which ranks have a NaN or an infinity, and in which tensor first; the same answer everywhere.

    Call it before the all-reduce, after which all ranks have it. One message of eight bytes from every rank.
    """
    names = list(tensors)
    mine = first_nonfinite(tensors)
    place = torch.tensor([-1 if mine is None else names.index(mine)], device=comm.device(group))
    found = enumerate(comm.all_gather(place, group).tolist())
    return {rank: names[place] for rank, place in found if place >= 0}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """The gradients that are there, by the name of their parameter."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


# ---- where it begins -------------------------------------------------------------------------------------------------


@contextmanager
def outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Copies of what the modules inside put out, by name, in the order in which they finish: children first.

    A module that runs again gets a number: "norm", "norm (2)". Outputs that are no tensor are left out.
    """
    seen: dict[str, Tensor] = {}

    def note(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                times = sum(each == name or each.startswith(f"{name} (") for each in seen)
                seen[f"{name} ({times + 1})" if times else name] = output.detach().clone()

        return hook

    handles = [module.register_forward_hook(note(name)) for name, module in model.named_modules() if name]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor with a NaN or an infinity; None: all are finite."""
    return next((name for name, x in tensors.items() if not bool(torch.isfinite(x).all())), None)


def first_apart(right: Mapping[str, Tensor], got: Mapping[str, Tensor], tolerance: float = 1e-9) -> str | None:
    """The first tensor of `right` that `got` does not have to within `tolerance`, relative to its largest number.

    None: there is none. Errors: ValueError where the names have nothing in common.
    """
    if right and not set(right) & set(got):
        raise ValueError(f"none of {', '.join(list(right)[:3])}, ... is in the other run; compare the same modules")
    return next((name for name, x in right.items() if name in got and apart(x, got[name]) > tolerance), None)


def apart(right: Tensor, got: Tensor) -> float:
    """The largest difference of two tensors, as a share of the largest number in `right`; another shape is infinite."""
    if right.shape != got.shape:
        return float("inf")
    if not right.numel():
        return 0.0
    size = float(right.abs().max())
    difference = float((right - got).abs().max())
    if difference != difference:  # a NaN
        return float("inf")
    return difference / size if size else difference
