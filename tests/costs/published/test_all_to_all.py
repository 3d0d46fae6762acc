"""What DeepEP prints for dispatch and combine is what wires carry, and our constants come near it."""

from statistics import fmean

import pytest

from shardlab.costs.published import all_to_all

ROWS = all_to_all.PUBLISHED
ACROSS = [row for row in ROWS if row.ep > 8]


def test_no_wire_carries_more_than_its_rate_although_the_table_says_so():
    """90 GB/s are printed for cards of 50; half of the tokens stay in their node."""
    assert max(row.dispatch for row in ACROSS) == 90e9
    assert all(row.wire < 50e9 for row in ACROSS)
    assert all(row.wire > 0.85 * 50e9 for row in ACROSS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_predictions_are_within_a_sixth(row):
    assert row.predicted == pytest.approx((row.dispatch + row.combine) / 2, rel=1 / 6)


def test_the_mean_error_is_a_ninth():
    errors = [abs(2 * row.predicted / (row.dispatch + row.combine) - 1) for row in ROWS]
    assert fmean(errors) == pytest.approx(1 / 9, abs=0.01)
