"""Published steps on long sequences: their memory is predicted, their slow attention is not."""

from statistics import fmean

import pytest

from shardlab.costs.published import steps
from shardlab.costs.units import GiB

ROWS = steps.LONG_STEPS


def test_the_rows_are_those_of_the_table():
    assert [row.run.training.tokens_per_sequence for row in ROWS] == [32_768 * row.cp for row in ROWS]
    assert [row.nbytes / GiB for row in ROWS] == pytest.approx([83.9, 84.2, 84.0, 84.5])
    for row in ROWS:
        run = row.run
        assert run.training.layout.ranks == run.cluster.gpus == 8
        assert run.tokens / row.seconds / 8 == pytest.approx(row.tokens_per_second)


def test_twice_the_ranks_hold_twice_the_text_in_the_same_memory_as_measured():
    """Predictions lie 3 to 6 % below what was measured, for all lengths."""
    shares = [row.predicted.memory / row.nbytes for row in ROWS]
    assert fmean(shares) == pytest.approx(0.958, abs=0.005)
    assert max(shares) - min(shares) < 0.02


def test_steps_are_predicted_too_fast_and_context_parallelism_is_not_the_reason():
    """The book: 42 to 64 % too fast, also on one rank, where nothing is gathered; the gathering takes up to 2 %."""
    errors = [row.error for row in ROWS]
    assert errors == sorted(errors, reverse=True)
    assert -0.65 < min(errors) < max(errors) < -0.41
    shares = [row.predicted.parts["context parallel"] / row.predicted.seconds for row in ROWS]
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] < 0.02


def test_llama_3_with_cp_16_is_met_within_a_few_percent():
    """Its row with sequences of 131,072 tokens; keys and values of 16 ranks are gathered, and nothing hides that."""
    (row,) = (each for each in steps.of_table("Llama 3 405B") if each.run.training.layout.cp == 16)
    assert row.run.training.tokens_per_sequence == 131_072
    assert abs(row.error) < 0.04
    assert 0.05 < row.predicted.parts["context parallel"] / row.predicted.seconds < 0.07
