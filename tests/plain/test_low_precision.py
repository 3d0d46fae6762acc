"""The plain file of short numbers: torch's own eight-bit types, the definition of every scale, and exact chances."""

import itertools

import pytest
import torch

from shardlab.plain import low_precision
from shardlab.plain.low_precision import E2M1, E4M3, E5M2, deepseek, mx, mx_up, nearest, nvfp4, per_tensor, stochastic

TYPES = {E4M3: torch.float8_e4m3fn, E5M2: torch.float8_e5m2}
GRIDS = [E4M3, E5M2, E2M1]


def numbers(grid):
    """Every finite number of a grid, sorted, in float64."""
    if grid == E2M1:
        return torch.tensor([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    found = torch.arange(256, dtype=torch.uint8).view(TYPES[grid]).double()
    return found[found.isfinite()].unique()


def matrix(rows=128, columns=256, dtype=torch.float64):
    """Numbers of many sizes, with a column that is far larger, and a block of zeros."""
    torch.manual_seed(0)
    x = torch.randn(rows, columns, dtype=dtype) * torch.exp2(torch.randint(-12, 4, (rows, columns)))
    x[:, 5] *= 300
    x[:16, 32:64] = 0
    return x


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_numbers_of_a_grid_stay(grid):
    every = numbers(grid)
    assert every.max() == grid.largest
    for rounding in (nearest, stochastic):
        assert torch.equal(rounding(every, grid), every)
        assert torch.equal(rounding(every.float(), grid), every.float())


@pytest.mark.parametrize("grid", TYPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_a_cast_of_torch_and_what_is_beyond_becomes_the_largest(grid, dtype):
    every = numbers(grid)
    middles = (every[1:] + every[:-1]) / 2  # ties, below the smallest normal number, too
    random = torch.randn(10_000).double() * torch.exp2(torch.randint(-20, 17, (10_000,)))
    x = torch.cat([middles, random, torch.tensor([0.0, -1e-30, 1e30, -float("inf")])]).to(dtype)
    cast = x.to(TYPES[grid]).to(dtype)
    fits = cast.isfinite()
    assert torch.equal(nearest(x, grid)[fits], cast[fits])
    beyond = x.abs() > grid.largest  # torch makes 448, NaN or infinity of it, by its version and type
    assert beyond.any()
    assert torch.equal(nearest(x, grid)[beyond], x[beyond].sign() * grid.largest)


def test_a_tie_goes_to_the_even_number():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -2.5])
    assert nearest(ties, E2M1).tolist() == [0, 1, 1, 2, 2, 4, 4, -2]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_every_chance_is_exact(grid, monkeypatch):
    """Of the draws 0/64, 1/64, … 63/64 as many go up as the number lies 64ths above the number below."""
    for below, above in itertools.pairwise(numbers(grid)):
        x = torch.full((64,), (below + (above - below) * 23 / 64).item(), dtype=torch.float64)
        monkeypatch.setattr(torch, "rand_like", lambda x: torch.arange(64, dtype=x.dtype) / 64)
        drawn = stochastic(x, grid)
        assert set(drawn.tolist()) == {below.item(), above.item()}
        assert (drawn == above).sum() == 23
        assert drawn.mean() == x[0]


def blocks(x, rows, columns):
    for i, j in itertools.product(range(0, x.shape[0], rows), range(0, x.shape[1], columns)):
        yield x[i : i + rows, j : j + columns]


def power_of_two(largest, grid, up):
    """The exponent of a shared scale, searched for: OCP's rule, or the least that cuts nothing."""
    of_two = range(-127, 128)
    if up:
        return next(e for e in of_two if largest <= grid.largest * 2.0**e)
    fits = [e for e in of_two if 2.0**e <= largest]
    return max(fits[-1] - int(torch.tensor(float(grid.largest)).log2()), -127) if fits else -127


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_of_mx_each_32_numbers_share_the_power_of_two_of_the_specification(grid):
    x = matrix()
    for given, found in zip(blocks(x, 1, 32), blocks(mx(x, grid), 1, 32), strict=True):
        scale = 2.0 ** power_of_two(given.abs().max().item(), grid, up=False)
        assert torch.equal(found, scale * nearest(given / scale, grid))


def test_a_scale_that_is_rounded_up_cuts_nothing_and_the_one_of_the_specification_does():
    x = matrix()
    for given, found in zip(blocks(x, 1, 32), blocks(mx_up(x), 1, 32), strict=True):
        scale = 2.0 ** power_of_two(given.abs().max().item(), E4M3, up=True)
        assert torch.equal(found, scale * nearest(given / scale, E4M3))
    block = torch.full((1, 32), 500.0)
    assert mx(block).unique().item() == 448
    assert mx_up(block).unique().item() == 512
    tiny = torch.full((1, 32), 2.0**-120)  # 1 over its scale is beyond fp32
    assert torch.equal(mx_up(tiny), tiny)


@pytest.mark.parametrize(("rows", "columns"), [(1, 128), (128, 128)])
def test_of_deepseek_each_block_has_its_largest_number_exactly(rows, columns):
    x = matrix()
    for given, found in zip(blocks(x, rows, columns), blocks(deepseek(x, rows), rows, columns), strict=True):
        torch.testing.assert_close(found, per_tensor(given), rtol=0, atol=0)
        torch.testing.assert_close(found.abs().max(), given.abs().max())


@pytest.mark.parametrize("rows", [1, 16])
def test_of_nvfp4_the_scales_are_numbers_of_e4m3_times_one(rows):
    x = matrix()
    whole = x.abs().max() / (6 * 448)
    for given, found in zip(blocks(x, rows, 16), blocks(nvfp4(x, rows), rows, 16), strict=True):
        scale = whole * (given.abs().max() / 6 / whole).float().to(torch.float8_e4m3fn).double()
        expected = scale * nearest(given / scale, E2M1) if scale else torch.zeros_like(given)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_zeros_stay_zeros():
    for each in (per_tensor, deepseek, mx, mx_up, nvfp4):
        assert torch.equal(each(torch.zeros(1, 128)), torch.zeros(1, 128))


def test_one_large_number_costs_its_block_alone():
    """All others of the tensor lose their digits if they share its scale."""
    x = torch.ones(1, 256) * 1.25
    x[0, 0] = 1e6
    lost = [(each(x) != x)[0, 1:].sum().item() for each in (per_tensor, deepseek, mx_up)]
    assert lost == [255, 127, 31]


def both_lessons():
    test_a_tie_goes_to_the_even_number()
    test_numbers_of_a_grid_stay(E2M1)


@pytest.mark.parametrize("wrong", ["ties away from even", "no smallest number", "always up"])
def test_a_wrong_version_is_noticed(wrong, monkeypatch):
    patches = {
        "ties away from even": (torch, "round", lambda x: torch.floor(x + 0.5)),
        "no smallest number": (low_precision, "exponent_of", lambda x: torch.frexp(x).exponent + 2),
        "always up": (torch, "rand_like", lambda x: torch.full_like(x, -1)),
    }
    monkeypatch.setattr(*patches[wrong])
    with pytest.raises(AssertionError):
        both_lessons()
