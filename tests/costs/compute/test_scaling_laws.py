"""The scaling laws give the tables and exponents in print, and no other split of a budget is better."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs.compute import scaling_laws
from shardlab.costs.compute.scaling_laws import PF_DAY, Split

# Hoffmann et al. 2022, Table 3 (approach 1) and Table A3 (approaches 2 and 3): parameters -> (FLOPs, tokens).
TABLE_3 = {
    400e6: (1.92e19, 8.0e9), 1e9: (1.21e20, 20.2e9), 10e9: (1.23e22, 205.1e9), 67e9: (5.76e23, 1.5e12),
    175e9: (3.85e24, 3.7e12), 280e9: (9.90e24, 5.9e12), 520e9: (3.43e25, 11.0e12), 1e12: (1.27e26, 21.2e12),
    10e12: (1.30e28, 216.2e12),
}  # fmt: skip
TABLE_A3_2 = {
    400e6: (1.84e19, 7.7e9), 1e9: (1.20e20, 20.0e9), 10e9: (1.32e22, 219.5e9), 67e9: (6.88e23, 1.7e12),
    175e9: (4.54e24, 4.3e12), 280e9: (1.18e25, 7.1e12), 520e9: (4.19e25, 13.4e12), 1e12: (1.59e26, 26.5e12),
    10e12: (1.75e28, 292.0e12),
}  # fmt: skip
TABLE_A3_3 = {  # the paper prints 1.26e24 FLOPs for 175e9 parameters: 6 * 175e9 * 12.0e12 is ten times that
    400e6: (2.21e19, 9.2e9), 1e9: (1.62e20, 27.1e9), 10e9: (2.46e22, 410.1e9), 67e9: (1.71e24, 4.1e12),
    175e9: (1.26e25, 12.0e12), 280e9: (3.52e25, 20.1e12), 520e9: (1.36e26, 43.5e12), 1e12: (5.65e26, 94.1e12),
    10e12: (8.55e28, 1425.5e12),
}  # fmt: skip
LAWS = [scaling_laws.HOFFMANN, scaling_laws.HOFFMANN_UNROUNDED, scaling_laws.BESIROGLU]


@pytest.mark.parametrize("parameters", TABLE_3)
@pytest.mark.parametrize(
    ("law", "table", "within"),
    [
        (scaling_laws.TRAINING_CURVES, TABLE_3, 0.025),
        (scaling_laws.ISO_FLOP, TABLE_A3_2, 0.04),
        (scaling_laws.HOFFMANN_UNROUNDED, TABLE_A3_3, 0.08),
    ],
)
def test_the_tables_of_hoffmann(law, table, within, parameters):
    """The fitted loss has three or four digits in print, which budgets raised to 0.46 feel."""
    flops, tokens = table[parameters]
    best = law.best(flops)
    assert best.parameters == pytest.approx(parameters, rel=within)
    assert best.tokens == pytest.approx(tokens, rel=within + 0.05)
    assert best.flops == pytest.approx(flops)


def test_two_rounded_digits_move_the_best_model_by_a_quarter():
    """Hoffmann et al. 2022, Figure 4: 40e9 parameters for Gopher's budget. The printed exponents give 32e9."""
    assert scaling_laws.HOFFMANN_UNROUNDED.best(5.76e23).parameters == pytest.approx(40e9, rel=0.02)
    assert scaling_laws.HOFFMANN.best(5.76e23).parameters == pytest.approx(32e9, rel=0.02)


def test_the_exponents_that_are_printed():
    """Hoffmann et al. 2022, Table 2: 0.50, 0.49, 0.46; Besiroglu et al. 2024: 0.513, with beta / (alpha + beta)."""
    assert scaling_laws.TRAINING_CURVES.exponent == pytest.approx(0.50, abs=0.005)
    assert scaling_laws.ISO_FLOP.exponent == pytest.approx(0.49, abs=0.005)
    for law, exponent in zip(LAWS[1:], (0.46, 0.513), strict=True):
        ten_times = law.best(1e24).parameters / law.best(1e23).parameters
        assert math.log10(ten_times) == pytest.approx(exponent, abs=0.005)


def test_kaplan_against_hoffmann_at_one_budget():
    """Hoffmann et al. 2022, appendix D.4: at 1e21 FLOPs, 4.68e9 parameters against their 2.86e9."""
    assert scaling_laws.kaplan(1e21).parameters == pytest.approx(4.68e9, rel=0.001)
    assert scaling_laws.TRAINING_CURVES.best(1e21).parameters == pytest.approx(2.86e9, rel=0.002)


def test_kaplans_tokens():
    """Kaplan et al. 2020, Table 6: 2e10 tokens * (C_min / PF-day)^0.27."""
    for days in (1.0, 100.0, 1e4):
        best = scaling_laws.kaplan(2 * days * PF_DAY)
        assert best.tokens == pytest.approx(2e10 * days**0.27, rel=0.12)
        assert best.parameters == pytest.approx(1.3e9 * days**0.73)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.source)
@given(budget=st.floats(1e18, 1e27), step=st.floats(0.2, 5))
def test_no_other_split_of_the_budget_is_better(law, budget, step):
    best = law.best(budget)
    other = Split(parameters=best.parameters * step, tokens=best.tokens / step)
    assert other.flops == pytest.approx(best.flops) == pytest.approx(budget)
    assert law.at(other) >= law.at(best) * (1 - 1e-12)


def test_chinchilla_is_better_than_gopher_and_kaplan_worse_than_hoffmann():
    """By the refitted loss: 70e9 on 1.4e12 tokens against 280e9 on 300e9; and the two splits of GPT-3's budget."""
    loss = scaling_laws.BESIROGLU
    chinchilla, gopher = Split(parameters=70e9, tokens=1.4e12), Split(parameters=280e9, tokens=300e9)
    assert loss.at(chinchilla) < loss.at(gopher)
    assert loss.at(scaling_laws.TRAINING_CURVES.best(3.14e23)) < loss.at(scaling_laws.kaplan(3.14e23))
    assert chinchilla.tokens_per_parameter == 20


def test_the_loss_by_hand():
    split = Split(parameters=1e10, tokens=1e11)
    assert scaling_laws.HOFFMANN.at(split) == pytest.approx(1.69 + 406.4 / 10**3.4 + 410.7 / 10**3.08)


@pytest.mark.parametrize("budget", [0, -1.0, math.inf, math.nan])
def test_an_impossible_budget_is_refused(budget):
    for law in scaling_laws.LAWS.values():
        with pytest.raises(ValueError, match="must be a finite number above 0"):
            law(budget)
