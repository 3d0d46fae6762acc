"""Find the rank that differs, and the first module that does; functions to copy into your own run.

What should be equal on all ranks is compared by checksums of eight bytes per tensor. A difference
between a run on many ranks and one on a single rank is searched module by module, in the order in
which they compute.

    diagnose.differing(model.state_dict(), group)    # {"head.bias": [2]}: rank 2 has other bits
    diagnose.nonfinite(gradients, group)             # {1: "up.weight"}: rank 1 has a NaN
    with diagnose.outputs(model) as recorded:        # the output of every module, innermost first
        loss = model(x)

Shapes: n = numbers of a tensor, N = ranks of the group.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by size in bytes
_STRIDE = 0x9E3779B97F4A7C15 - 2**64  # SplitMix64's constants, as signed integers
_MIXING = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64))


def gathered(number: float, group: comm.Group) -> list[float]:
    """Gather a number from every rank, such as a loss or a norm; every rank calls it.

    Returns the numbers in rank order, on every rank.
    """
    mine = torch.tensor([number], dtype=torch.float64, device=comm.device(group))  # [1]
    return [float(each) for each in comm.all_gather(mine, group).tolist()]         # N numbers


# ---- what should be equal on all ranks ---------------------------------------------------------


@torch.no_grad()
def checksum(x: Tensor) -> Tensor:
    """Hash the bits of a tensor: [...] -> [], int64. Uses about 24 bytes per number meanwhile.

    Every number is mixed with its place, and the results are added modulo 2^64: so the order of
    addition does not matter, and a NaN is a pattern of bits like any other. The mixing is that of
    SplitMix64 (Steele et al. 2014, https://doi.org/10.1145/2660193.2660195).
    """
    real = torch.view_as_real(x) if x.is_complex() else x
    flat = real.contiguous().view(-1)                                 # [n]
    words = flat.view(_INTEGERS[flat.element_size()]).to(torch.int64)  # [n], the bits of each
    places = torch.arange(1, words.numel() + 1, device=words.device)  # [n]
    mixed = words + places * _STRIDE
    for shift, factor in _MIXING:
        mixed = (mixed ^ (mixed >> shift)) * factor
    return (mixed ^ (mixed >> 31)).sum()


def differing(tensors: Mapping[str, Tensor], group: comm.Group) -> dict[str, list[int]]:
    """Find the ranks whose bits are not those of most ranks, by tensor: name -> ranks.

    Where no value has a majority, the lowest rank's counts among the commonest. Every rank passes
    the same names in the same order, and gets the same answer. Communicates 8 bytes per tensor.
    """
    if not tensors:
        return {}
    mine = torch.stack([checksum(x) for x in tensors.values()])       # [tensors]
    sums = comm.all_gather(mine.unsqueeze(0), group).tolist()         # [N, tensors]
    found: dict[str, list[int]] = {}
    for place, name in enumerate(tensors):
        column = [row[place] for row in sums]
        usual, _ = Counter(column).most_common(1)[0]
        ranks = [rank for rank, value in enumerate(column) if value != usual]
        if ranks:
            found[name] = ranks
    return found


def nonfinite(tensors: Mapping[str, Tensor], group: comm.Group) -> dict[int, str]:
    """Find the ranks that have a NaN or an infinity: rank -> the first such tensor.

    Call it before the all-reduce, which spreads a NaN to all ranks. Every rank gets the same
    answer. Communicates eight bytes per rank.
    """
    names = list(tensors)
    mine = first_nonfinite(tensors)
    place = -1 if mine is None else names.index(mine)
    places = comm.all_gather(torch.tensor([place], device=comm.device(group)), group)  # [N]
    return {rank: names[place] for rank, place in enumerate(places.tolist()) if place >= 0}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of a model, by parameter; missing ones are left out."""
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


# ---- where it begins ---------------------------------------------------------------------------


@contextmanager
def outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record copies of the outputs of all submodules, in the order in which these finish.

    Children finish before their parents. A module that runs again gets a number: "norm",
    "norm (2)". Outputs that are not tensors are left out.
    """
    recorded: dict[str, Tensor] = {}

    def record(name: str) -> Any:
        def hook(_module: nn.Module, _inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                runs = sum(each == name or each.startswith(f"{name} (") for each in recorded)
                key = f"{name} ({runs + 1})" if runs else name
                recorded[key] = output.detach().clone()

        return hook

    handles = []
    for name, module in model.named_modules():
        if name:
            handles.append(module.register_forward_hook(record(name)))
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def first_nonfinite(tensors: Mapping[str, Tensor]) -> str | None:
    """Return the name of the first tensor with a NaN or an infinity; None if all are finite."""
    for name, x in tensors.items():
        if not bool(torch.isfinite(x).all()):
            return name
    return None


def first_apart(
    right: Mapping[str, Tensor], got: Mapping[str, Tensor], tolerance: float = 1e-9
) -> str | None:
    """Return the name of the first tensor that is more than `tolerance` apart; None if none is.

    Names that only one of the two has are left out. Errors: ValueError if the two have no name in
    common.
    """
    if right and not set(right) & set(got):
        raise ValueError(
            f"none of {', '.join(list(right)[:3])}, ... is in the other run; "
            "compare the same modules"
        )
    for name, x in right.items():
        if name in got and apart(x, got[name]) > tolerance:
            return name
    return None


def apart(right: Tensor, got: Tensor) -> float:
    """Return the largest difference of two tensors, relative to the largest number in `right`.

    It is infinite for different shapes, and where `got` has a NaN.
    """
    if right.shape != got.shape:
        return float("inf")
    if not right.numel():
        return 0.0
    size = float(right.abs().max())
    difference = float((right - got).abs().max())
    if difference != difference:  # a NaN
        return float("inf")
    return difference / size if size else difference
