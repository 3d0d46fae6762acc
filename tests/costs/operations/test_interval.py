"""The best interval is Daly's, its losses add up, and neither lag nor restart moves it."""

import math

import pytest

from shardlab.costs.operations import Reliability, between_failures, write_rate
from shardlab.costs.published.interruptions import RUNS

MINUTE, HOUR = 60.0, 3600.0


@pytest.mark.parametrize(("hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_the_best_interval_is_that_of_daly(hours, minutes):
    """Figures 3 to 5 of Daly 2006: a save of five minutes, a restart of ten."""
    run = Reliability(between=hours * HOUR, save=5 * MINUTE, restart=10 * MINUTE)
    assert run.best_interval() / MINUTE == pytest.approx(minutes, rel=0.011)


@pytest.mark.parametrize(("lag", "restart"), [(0.0, 0.0), (0.0, 900.0), (100.0, 0.0), (100.0, 900.0)])
@pytest.mark.parametrize("save", [0.5, 20.0, 400.0])
def test_no_other_interval_loses_less(save, lag, restart):
    run = Reliability(between=5000.0, save=save, lag=lag, restart=restart)
    best = run.best_interval()
    assert best == max(Reliability(between=5000.0, save=save).best_interval(), lag)
    for factor in (1.01, 1.5, 4):
        assert run.goodput(best) > run.goodput(best * factor)
        if best > lag * factor:
            assert run.goodput(best) > run.goodput(best / factor)


def test_the_losses_add_up_and_the_textbook_formula_is_their_first_term():
    run = Reliability(between=1e6, save=1.0)
    interval = run.young()
    losses = run.losses(interval)
    assert math.fsum(losses) == pytest.approx(1, abs=1e-12)
    assert losses.saving == pytest.approx(1 / interval, rel=3e-3)
    assert losses.repeating == pytest.approx(interval / 2 / 1e6, rel=3e-3)
    assert run.best_interval() == pytest.approx(interval, rel=1e-3)
    assert losses.restarting == 0


def test_a_lag_is_lost_once_for_each_failure():
    still, behind = (Reliability(between=10_000.0, save=2.0, lag=lag) for lag in (0.0, 100.0))
    ratio = behind.goodput(500.0) / still.goodput(500.0)
    assert ratio == pytest.approx(math.exp(-100 / 10_000), rel=1e-12)


def test_a_save_must_be_safe_before_the_next_begins():
    with pytest.raises(ValueError, match=r"50 s after a save the next one begins.*after 60 s"):
        Reliability(between=1e4, save=1.0, lag=60.0).losses(50.0)
    with pytest.raises(ValueError, match="save after every step"):
        Reliability(between=1e4, save=0.0).best_interval()


def test_a_machine_of_more_gpus_fails_more_often():
    llama, first, _ = RUNS
    assert between_failures(16_384, llama.gpu_hours) / HOUR == pytest.approx(3.09, abs=0.01)
    projected = {16_384: 1.80, 131_072: 0.23}  # hours, Kokolis et al. 2025, section III
    for gpus, hours in projected.items():
        assert between_failures(gpus, first.gpu_hours) / HOUR == pytest.approx(hours, abs=0.01)


def test_a_file_system_takes_twelve_bytes_of_each_parameter():
    assert write_rate(405_000_000_000, 60.0) == 81e9
