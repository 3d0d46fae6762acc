"""Numbers of eight bits and fewer, plainly: grids, and the scales that numbers share.

    grid    its largest number
    E4M3    448
    E5M2    57,344
    E2M1    6

    format        grid    numbers that share a scale    bits per number
    per tensor    E4M3    all: in fp32                  8
    DeepSeek-V3   E4M3    128, or 128 x 128: in fp32    8.25, or 8
    MXFP8         E4M3    32: a power of two            8.25
    NVFP4         E2M1    16, or 16 x 16: in E4M3       4.5, or 4.03

E4M3 has 4 bits of exponent, 3 of mantissa and a sign; E2M1 has only 0, 0.5, 1, 1.5, 2, 3, 4, 6.
Micikevicius et al. 2022, https://arxiv.org/abs/2209.05433; DeepSeek-AI 2024, section 3.3,
https://arxiv.org/abs/2412.19437; OCP MX v1.0, and Rouhani et al. 2023,
https://arxiv.org/abs/2310.10537; NVIDIA 2025, https://arxiv.org/abs/2509.25149.

    x = nvfp4(x, rounding=stochastic)     # [rows, columns]: numbers of NVFP4, in the type of x

Numbers share scales along columns; rows and columns are multiples of a block's.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Grid(NamedTuple):
    """The numbers of a format, without their scale."""

    mantissa: int                                  # its bits
    low: int                                       # exponent of the smallest number with all bits
    high: int                                      # exponent of the largest number
    largest: float


E4M3 = Grid(mantissa=3, low=-6, high=8, largest=448)
E5M2 = Grid(mantissa=2, low=-14, high=15, largest=57344)
E2M1 = Grid(mantissa=1, low=0, high=2, largest=6)
Rounding = Callable[[Tensor, Grid], Tensor]


# ---- to a grid: shapes stay; beyond the largest number everything becomes the largest ----


def exponent_of(x: Tensor) -> Tensor:
    """Find the exponent of the power of two at or below each magnitude."""
    return torch.frexp(x).exponent - 1


def in_steps(x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Find the distance between the numbers of a grid around each x, and x counted in it."""
    x = x.clamp(-grid.largest, grid.largest)
    exponent = exponent_of(x)
    exponent = exponent.clamp(min=grid.low)        # below it all steps are alike
    exponent = exponent - grid.mantissa
    one = torch.ones_like(x)
    step = torch.ldexp(one, exponent)
    return step, x / step


def nearest(x: Tensor, grid: Grid) -> Tensor:
    """Round to the nearest number of a grid, or from the middle between two to the even one."""
    step, count = in_steps(x, grid)
    return step * torch.round(count)


def stochastic(x: Tensor, grid: Grid) -> Tensor:
    """Round up or down by chance, to the nearer more often: x is the mean of all draws."""
    step, count = in_steps(x, grid)
    below = torch.floor(count)
    chance = count - below                         # 0 to 1: of the number above
    up = torch.rand_like(x) < chance
    return step * (below + up)


# ---- with scales: [rows, columns] -> [rows, columns] ----


def largest(x: Tensor, rows: int, columns: int) -> Tensor:
    """Find the largest magnitude in the block around each number: [rows, columns]."""
    blocks: Tensor = x.abs()
    blocks = blocks.unflatten(1, (-1, columns))
    blocks = blocks.unflatten(0, (-1, rows))       # blocks are dims 1 and 3
    found = blocks.amax((1, 3), keepdim=True)
    found = found.expand_as(blocks)
    return found.reshape(x.shape)


def scaled(x: Tensor, scale: Tensor, grid: Grid, rounding: Rounding) -> Tensor:
    """Round x / scale to a grid, and multiply it by the scale; a scale of 0 leaves 0."""
    safe = torch.where(scale > 0, scale, 1)
    x = x / safe
    return scale * rounding(x, grid)


def per_tensor(x: Tensor, grid: Grid = E4M3, rounding: Rounding = nearest) -> Tensor:
    """Share one fp32 scale: the largest number becomes the largest of the grid."""
    most = x.abs().max()
    scale = most / grid.largest
    return scaled(x, scale, grid, rounding)


def deepseek(x: Tensor, rows: int = 1) -> Tensor:
    """Share an fp32 scale among 1 x 128 numbers, or with rows=128 among 128 x 128 weights."""
    scale = largest(x, rows, 128) / E4M3.largest
    return scaled(x, scale, E4M3, nearest)


def mx(x: Tensor, grid: Grid = E4M3) -> Tensor:
    """Share a power of two among 32 numbers, by the rule of OCP MX v1.0, which may cut some."""
    most = largest(x, 1, 32)
    exponent = exponent_of(most) - grid.high       # 1.9 * 2**8 is cut to 448
    return power_of_two(x, exponent, grid, nearest)


def mx_up(x: Tensor, rounding: Rounding = nearest) -> Tensor:
    """Share the next power of two, so that nothing is cut: https://arxiv.org/abs/2506.08027."""
    most = largest(x, 1, 32)
    scale = most / E4M3.largest
    exponent = exponent_of(scale)
    one = torch.ones_like(x)
    below = torch.ldexp(one, exponent)
    exponent = exponent + (below < scale)          # of the power of two at or above the scale
    return power_of_two(x, exponent, E4M3, rounding)


def power_of_two(x: Tensor, exponent: Tensor, grid: Grid, rounding: Rounding) -> Tensor:
    """Share a scale in E8M0: eight bits of exponent, nothing else."""
    exponent = exponent.clamp(-127, 127)
    one = torch.ones_like(x)
    scale = torch.ldexp(one, exponent)
    return scaled(x, scale, grid, rounding)


def nvfp4(x: Tensor, rows: int = 1, rounding: Rounding = nearest) -> Tensor:
    """Share an E4M3 scale among 16 numbers, or with rows=16 among 16 x 16 weights.

    These scales share one in fp32. A scale that was rounded down cuts its block's largest number.
    """
    scale = largest(x, rows, 16) / E2M1.largest
    scale = per_tensor(scale, E4M3)
    return scaled(x, scale, E2M1, rounding)
