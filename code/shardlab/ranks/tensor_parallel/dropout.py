"""Dropout whose pattern belongs to the whole tensor, so that it is right however the tensor is cut.

Ranks that hold the same numbers must drop the same ones, or they no longer agree; ranks that hold
different numbers must drop independently. Here a number's fate follows from its place in the whole
tensor and from a key, which gives both. Every tp repeats the run of one process, and no pattern or
random state has to be kept for backward or for recomputation.

The random bits are those of SplitMix64 (Steele, Lea and Flood 2014, doi:10.1145/2660193.2660195).
Megatron-LM has two random states instead, one alike on all ranks and one for tensors that are cut,
so that another tp gives another run:
https://github.com/NVIDIA/Megatron-LM/blob/cf547dea839f709ec2f147da0679d663da3c20da/megatron/core/tensor_parallel/random.py
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from shardlab import comm

# the constants of SplitMix64
GAMMA = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
BITS = 53  # how many bits of a random number are compared with the probability


def dropout(
    x: Tensor,
    probability: float,
    key: int,
    group: comm.Group | None = None,
    dim: int | None = None,
) -> Tensor:
    """Zero each number with this probability, scale up the others: [...] -> [...].

    What is kept is divided by 1 - probability, so that the mean stays.

    key         any integer; a different one for every layer, step and microbatch
    group, dim  for a tensor that is cut evenly along `dim` over the ranks of `group`; None: x is
                whole
    """
    if not 0 <= probability < 1:
        raise ValueError(
            f"probability={probability} leaves nothing to scale up; use at least 0 and less than 1"
        )
    if (group is None) != (dim is None):
        raise ValueError(
            f"group={group} and dim={dim}: pass both for a tensor that is cut, "
            f"neither for a whole one"
        )
    pattern = Pattern(
        probability=probability,
        key=key,
        dim=None if dim is None else dim % x.ndim,
        rank=0 if group is None else group.rank(),
        num_ranks=1 if group is None else group.size(),
    )
    y: Tensor = Dropout.apply(x, pattern)
    return y


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """Which numbers of a tensor are dropped; the tensor is one rank's piece of a whole."""

    probability: float
    key: int
    dim: int | None  # the dim along which the whole is cut
    rank: int
    num_ranks: int

    def factors(self, x: Tensor) -> Tensor:
        """Return what x is multiplied by, zeros and 1 / (1 - probability): [...] -> [...]."""
        bits = random_bits(self.places(x), self.key) >> (64 - BITS) & (1 << BITS) - 1
        kept = bits >= int(self.probability * 2**BITS)
        return kept.to(x.dtype) / (1 - self.probability)

    def places(self, x: Tensor) -> Tensor:
        """Number the elements of x as in the flattened whole tensor: [...] -> [...]."""
        places = torch.zeros((), dtype=torch.int64, device=x.device)
        for dim, length in enumerate(x.shape):
            start = self.rank * length if dim == self.dim else 0
            whole_length = self.num_ranks * length if dim == self.dim else length
            along = torch.arange(start, start + length, device=x.device)
            places = places[..., None] * whole_length + along
        return places


class Dropout(Function):
    """Drops by a pattern, which backward draws again instead of keeping it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pattern: Pattern) -> Tensor:
        ctx.pattern = pattern
        return x * pattern.factors(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad * ctx.pattern.factors(grad), None


def random_bits(places: Tensor, key: int) -> Tensor:
    """Draw 64 random bits for every place: [...] -> [...]. Multiplication wraps around."""
    start = _mix(torch.tensor(_signed(key * GAMMA), device=places.device))
    return _mix(start + (places + 1) * _signed(GAMMA))


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shifted(z, 30)) * _signed(FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(SECOND)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, by: int) -> Tensor:
    """Shift to the right and fill with zeros, where torch's >> repeats the sign."""
    return z >> by & (1 << 64 - by) - 1


def _signed(bits: int) -> int:
    """Return the int64 number that has the last 64 of these bits."""
    bits &= (1 << 64) - 1
    return bits - (1 << 64) if bits >> 63 else bits
