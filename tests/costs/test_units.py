"""Quantities are written with three digits and the right prefix, and nonsense is refused."""

import pytest

from shardlab.costs import units


def test_gb_and_gib_are_not_the_same():
    assert units.GB == 10**9
    assert units.GiB == 2**30
    assert units.Gbit * 8 == units.GB


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0, "B", "0 B"),
        (12, "B", "12 B"),
        (1_234, "B", "1.23 kB"),
        (2.49e8, "B", "249 MB"),
        (999.9e6, "B", "1 GB"),
        (112e9, "B", "112 GB"),
        (989.4e12, "FLOP/s", "989 TFLOP/s"),
        (4e21, "FLOP", "4,000 EFLOP"),
        (2.3e-5, "s", "23 µs"),
        (0.0425, "s", "42.5 ms"),
        (120, "s", "120 s"),
        (1_410, "s", "1,410 s"),
        (5_000, "", "5 k"),
        (5e-10, "s", "0.5 ns"),
        (0.5, "B", "0.5 B"),
    ],
)
def test_quantities_are_written_with_three_digits(value, unit, expected):
    assert units.text(value, unit) == expected


@pytest.mark.parametrize(
    ("share", "expected"), [(0, "0 %"), (0.001, "under 1 %"), (0.01, "1 %"), (0.249, "25 %"), (1, "100 %")]
)
def test_shares_are_percent_and_little_is_not_nothing(share, expected):
    assert units.percent(share) == expected


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_what_is_no_quantity_is_refused(value):
    with pytest.raises(ValueError, match="at least 0"):
        units.text(value, "s")


@pytest.mark.parametrize("text", ["0 samples", "1 sample", "1 microbatch", "2 microbatches", "1,000 steps"])
def test_counts_are_english(text):
    number, noun = text.split()
    singular = {"microbatches": "microbatch"}.get(noun, noun.removesuffix("s"))
    assert units.counted(int(number.replace(",", "")), singular) == text
