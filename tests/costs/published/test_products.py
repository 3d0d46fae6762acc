"""Products of published shapes take what was timed, narrow ones among them; the constants follow from the H100's."""

from statistics import fmean

import pytest

from shardlab.costs.published.products import ON_A100, ON_H100, Product
from shardlab.costs.step import kernels


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
    assert len(ON_A100) == 60


def errors(products):
    return [each.error for each in products]


def test_products_that_were_kept_back_are_met():
    """Sixty of an A100: 2.8 % too slow on average, 5.5 % apart; narrow ones, where tp leaves 1,280 columns, 10 %."""
    found = errors(ON_A100)
    assert fmean(found) == pytest.approx(0.028, abs=0.001)
    assert fmean(map(abs, found)) == pytest.approx(0.055, abs=0.001)
    narrow = errors(each for each in ON_A100 if each.n < 2048)
    assert fmean(map(abs, narrow)) < 0.12


def test_one_tile_alone_is_too_slow_where_matrices_are_narrow(monkeypatch):
    narrow = [each for each in ON_A100 if each.n < 2048]
    before = fmean(map(abs, errors(narrow)))
    monkeypatch.setattr(kernels, "TILES", {(128, 256): 1.0})
    kernels.matmul_seconds.__wrapped__.cache_clear()
    alone = fmean(map(abs, errors(narrow)))
    kernels.matmul_seconds.__wrapped__.cache_clear()
    assert alone > 0.35
    assert alone > 3 * before


def test_a_product_without_seconds_is_refused():
    with pytest.raises(ValueError, match="seconds"):
        Product(chip=ON_A100[0].chip, m=1, k=1, n=1, seconds=0)
