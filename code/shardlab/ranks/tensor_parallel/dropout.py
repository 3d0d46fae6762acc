"""Dropout whose pattern belongs to the whole tensor, so that it is right however the tensor is cut.

Where all ranks hold the same numbers they must drop the same ones, or they no longer agree; where each holds other
numbers, to drop alike would couple what should be independent. Here the fate of a number follows from its place in the
whole tensor and from a key: both come by themselves, every tp gives the run of one process, and nothing need be kept
for backward or restored when activations are computed again.

The random bits are those of SplitMix64 (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195). Megatron-LM has two
random states instead, one alike on all ranks and one for what is cut, which another tp makes another run:
https://github.com/NVIDIA/Megatron-LM/blob/cf547dea839f709ec2f147da0679d663da3c20da/megatron/core/tensor_parallel/random.py
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .. import comm

GAMMA, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # SplitMix64's constants
BITS = 53  # of a random number that are compared with the probability


class Dropout(Function):
    """Zeros some numbers and scales the others up; draws the same pattern again in backward instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float, key: int, dim: int | None, cut: tuple[int, int]) -> Tensor:
        ctx.how = probability, key, dim, cut
        return x * pattern(x, *ctx.how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return grad * pattern(grad, *ctx.how), None, None, None, None


def dropout(
    x: Tensor, probability: float, key: int, group: comm.Group | None = None, dim: int | None = None
) -> Tensor:
    """Zero each number with this probability, divide the others by what is left of 1: [...] -> [...].

    key         any whole number; another one for every layer, step and microbatch
    group, dim  of a tensor that is cut evenly along `dim` over the ranks of `group`; without them x is the whole
    """
    if not 0 <= probability < 1:
        raise ValueError(f"probability={probability} leaves nothing to scale up; use at least 0 and less than 1")
    if (group is None) != (dim is None):
        raise ValueError(f"group={group} and dim={dim}: pass both for a tensor that is cut, neither for a whole one")
    cut = (0, 1) if group is None else (group.rank(), group.size())
    y: Tensor = Dropout.apply(x, probability, key, dim, cut)
    return y


def pattern(x: Tensor, probability: float, key: int, dim: int | None, cut: tuple[int, int]) -> Tensor:
    """What x is multiplied by: zeros, and 1 / (1 - probability)."""
    bits = random_bits(places(x, dim, *cut), key) >> (64 - BITS) & (1 << BITS) - 1
    return (bits >= int(probability * 2**BITS)).to(x.dtype) / (1 - probability)


def places(x: Tensor, dim: int | None, piece: int, pieces: int) -> Tensor:
    """Where the numbers of x stand in the whole tensor, counted from 0 as if that were flat."""
    index, dim = torch.zeros((), dtype=torch.int64, device=x.device), None if dim is None else dim % x.ndim
    for each, length in enumerate(x.shape):
        start = piece * length if each == dim else 0
        along = torch.arange(start, start + length, device=x.device)
        index = index[..., None] * (length * (pieces if each == dim else 1)) + along
    return index


def random_bits(index: Tensor, key: int) -> Tensor:
    """64 random bits for every place; multiplication wraps around."""
    start = _mix(torch.tensor(_signed(key * GAMMA), device=index.device))
    return _mix(start + (index + 1) * _signed(GAMMA))


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """To the right, with zeros coming in: torch's >> repeats the sign."""
    return z >> by & (1 << 64 - by) - 1


def _signed(bits: int) -> int:
    """The number that torch.int64 has for the last 64 of these bits."""
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >> 63 else bits
