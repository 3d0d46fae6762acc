"""Products of published shapes take what was timed, narrow ones among them; the constants follow from the H100's."""

from statistics import fmean

import pytest
from published.products import KEPT_ON_A100, KEPT_ON_H100, ON_H100, Product, spread

from shardlab.costs.compute import kernels


def seconds(m, n, k):
    """Look a published time up."""
    (found,) = [each.seconds for each in ON_H100 if (each.m, each.n, each.k) == (m, n, k)]
    return found


def test_the_rates_of_tiles_are_those_of_products_of_one_wave():
    """128 tiles each, on 132 multiprocessors: what 2,048 more inputs add."""
    waves = {(128, 256): (2048, 2048), (128, 128): (1024, 2048), (64, 128): (1024, 1024), (64, 64): (512, 1024)}
    rates = {}
    for (a, b), (m, n) in waves.items():
        assert m * n / (a * b) == 128
        rates[a, b] = m * n / (seconds(m, n, 4096) - seconds(m, n, 2048))
    for tile, rate in rates.items():
        assert rate / rates[128, 256] == pytest.approx(kernels.TILES[tile], abs=0.01)


def test_the_smallest_product_takes_little_but_its_start():
    shortest = seconds(256, 256, 256)
    assert shortest == min(each.seconds for each in ON_H100)
    assert shortest == pytest.approx(kernels.START, abs=0.7e-6)


def test_the_tables_are_whole():
    assert len(ON_H100) == 125
    assert len(KEPT_ON_A100) == 60
    assert len(KEPT_ON_H100) == 36


def errors(products):
    return [each.error for each in products]


def test_products_that_were_kept_back_are_met():
    """By themselves they are faster than within a step. Beside that one factor, shapes are met to 5 and 6 %."""
    assert fmean(errors(KEPT_ON_A100)) == pytest.approx(0.075, abs=0.001)
    assert spread(KEPT_ON_A100) == pytest.approx(0.050, abs=0.001)
    assert fmean(errors(KEPT_ON_H100)) == pytest.approx(0.236, abs=0.001)
    assert spread(KEPT_ON_H100) == pytest.approx(0.061, abs=0.001)


def test_an_h100_slows_down_where_products_are_long_and_an_a100_does_not():
    """A layer whole, and cut by eight: rates beside the fastest product, of all products that tp cuts alike."""
    ratios = {}
    for products in (KEPT_ON_A100, KEPT_ON_H100):
        chip = products[0].chip
        by_cut = {
            n: fmean(2 * p.m * p.k * p.n / p.seconds / kernels.best_flops(chip) for p in products if p.n == n)
            for n in (57_344, 7168)
        }
        ratios[chip.name] = by_cut[7168] / by_cut[57_344]
    assert ratios["A100 SXM 80 GB"] == pytest.approx(1.02, abs=0.01)
    assert ratios["H100 SXM 80 GB"] == pytest.approx(1.12, abs=0.01)


def without(monkeypatch, products, name, value):
    """The spread of products with a constant of the kernels that has another value."""
    with monkeypatch.context() as changed:
        changed.setattr(kernels, name, value)
        kernels.matmul_seconds.__wrapped__.cache_clear()
        found = spread(products)
    kernels.matmul_seconds.__wrapped__.cache_clear()
    return found


def test_one_tile_alone_is_too_slow_where_matrices_are_narrow(monkeypatch):
    narrow = [each for each in KEPT_ON_A100 if each.n < 2048]
    alone = without(monkeypatch, [*narrow, *KEPT_ON_A100], "TILES", {(128, 256): 1.0})
    assert alone > 1.5 * spread([*narrow, *KEPT_ON_A100])


def test_writing_that_no_wave_hides_is_too_slow_where_inputs_are_few(monkeypatch):
    few = [each for each in ON_H100 if each.k <= 1024]
    tilings = kernels._tilings

    def one_wave(*size):
        return [each._replace(waves=1) for each in tilings(*size)]

    for products in (few, KEPT_ON_H100):
        assert without(monkeypatch, products, "_tilings", one_wave) > 1.25 * spread(products)


def test_a_product_without_seconds_is_refused():
    with pytest.raises(ValueError, match="seconds"):
        Product(chip=KEPT_ON_A100[0].chip, m=1, k=1, n=1, seconds=0)
