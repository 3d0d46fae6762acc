"""The papers' formulas against schedules that are played, exactly: the formulas know nothing of the orders."""

from fractions import Fraction
from itertools import product

import pytest

from shardlab import schedules
from shardlab.costs.pipeline import bubble, timeline
from shardlab.schedules import make

PIPELINES = [(1, 1), (1, 3), (2, 1), (2, 3), (2, 4), (3, 2), (3, 5), (3, 7), (4, 3), (4, 8), (4, 9), (6, 6), (6, 13)]
WHOLE = set(schedules.WHOLE)


INSIDE = {"ZB-H2", "ZB-V"}  # their formulas count waiting only between a stage's first and last action


def durations(numbers=(1, 2, 3, 5)):
    """All the combinations, in whole seconds, so that sums are exact."""
    return [dict(zip("FIW", each, strict=True)) for each in product(numbers, repeat=3)]


def pipelines(name, p, m):
    return [make(name, p, m, v) for v in ((1, 2, 3) if name in schedules.CHUNKED else (None,))]


def played(schedule, takes):
    """The timeline, and how long its stages wait, counted as the formula counts."""
    run = timeline.play(schedule, takes)
    return run, run.waiting_inside if schedule.name in INSIDE else run.waiting


@pytest.mark.parametrize("name", bubble.FORMULAS)
@pytest.mark.counted("pipeline", "the bubble of each schedule, played action by action")
def test_the_formula_is_the_played_bubble(name):
    checked = 0
    for (p, m), takes in product(PIPELINES, durations((1, 3) if name in WHOLE else (1, 2, 3))):
        if bubble.condition(name, p, m, takes):
            continue
        for schedule in pipelines(name, p, m):
            run, waits = played(schedule, takes)
            expected = bubble.waiting(name, p, m, takes)
            assert max(waits) == expected, (schedule.name, p, m, takes)
            if name not in INSIDE:  # then every stage waits equally long
                assert set(waits) == {expected}
                v = schedule.num_chunks
                assert run.bubble_of_ideal == pytest.approx(bubble.of_ideal(expected, m, v, takes), rel=1e-14)
                assert run.bubble_of_total == pytest.approx(bubble.of_total(expected, m, v, takes), rel=1e-14)
            checked += 1
    assert checked > 8


def test_a_pair_that_is_faster_than_its_halves():
    """DualPipe's F&B: the last stage, whose first pair is not one, waits a little less; no other does."""
    for p, m, less in product((2, 3, 4, 5), (10, 11), (0, 1, 2)):
        takes = {"F": 3, "I": 3, "W": 2, "F&B": 8 - less}
        run = timeline.play(make("DualPipe-V", p, m), takes)
        assert max(run.waiting) == bubble.waiting("DualPipe-V", p, m, takes) == (p - 1) * (8 - less + 5 - 3 * 2)


def activations(name, p, m, v):
    """The most chunks of microbatches that a stage holds, by the papers of FORMULAS and Korthikanti et al. 2022."""
    group = -(-m // max(1, m // p))  # microbatches that take turns on the chunks of an interleaved stage
    zero_bubble = {"ZB-H1": p, "ZB-H2": 2 * p - 1, "ZB-V": 2 * p, "DualPipe-V": 2 * p + 1}
    classic = {"naive": 1, "GPipe": m, "1F1B": p, "interleaved": 2 * (p - 1) + (v - 1) * group + 1}
    return min((classic | zero_bubble)[name], m * v)


@pytest.mark.parametrize("name", bubble.FORMULAS)
@pytest.mark.counted("pipeline", "the peak of activations of each schedule, counted on its actions")
def test_the_formula_is_the_counted_peak_of_activations(name):
    for p, m in PIPELINES:
        for schedule in pipelines(name, p, m):
            counted = max(timeline.play(schedule).peaks())
            assert counted == activations(name, p, m, schedule.num_chunks), (p, m, schedule.num_chunks)


@pytest.mark.parametrize("name", ["ZB-H1", "ZB-H2", "ZB-V", "DualPipe-V"])
def test_where_the_formula_says_that_it_does_not_hold_it_does_not(name):
    """Not in every single case, but somewhere for each of its conditions."""
    wrong = set()
    for (p, m), takes in product([(3, 2), (4, 8)], durations((1, 2))):
        why = bubble.condition(name, p, m, takes)
        if why:
            _, waits = played(make(name, p, m), takes)
            formula = bubble.waiting(name, p, 99, takes) if m < p and not bubble.condition(name, p, 99, takes) else None
            wrong |= {"microbatches" if m < p else "durations"} if formula != max(waits) else set()
    assert wrong == {"microbatches", "durations"}


# ---- the numbers that the papers print -------------------------------------------------------------------------------

EQUAL = {"F": Fraction(1), "I": Fraction(1), "W": Fraction(1)}


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 8), (8, 32), (5, 7)])
def test_gpipe_and_megatron_define_the_same_bubble_differently(p, m):
    run = timeline.play(make("GPipe", p, m), EQUAL)
    assert run.bubble_of_total == Fraction(p - 1, m + p - 1)  # Huang et al. 2019
    assert run.bubble_of_ideal == Fraction(p - 1, m)  # Narayanan et al. 2021
    for v in (2, 3, 4):
        if m >= p:
            run = timeline.play(make("interleaved", p, m, v), {k: t / v for k, t in EQUAL.items()})
            assert run.bubble_of_ideal == Fraction(p - 1, v * m)  # section 2.2.2


def test_korthikantis_memory_of_interleaving():
    """p (1 + (p - 1) / (p v)) microbatches of a stage, section 4.2.3 of https://arxiv.org/abs/2205.05198."""
    for p, v in product((2, 4, 8), (2, 3, 4)):
        counted = max(timeline.play(make("interleaved", p, 4 * p, v)).peaks(activation=Fraction(1, v)))
        assert counted == p * (1 + Fraction(p - 1, p * v))


def test_qis_table_2():
    """Bubble (p-1)(F+I+W), (p-1)(F+I-W), (p-1)(F+I-2W); activations p M_B, p M_B, (2p-1) M_B where M_W <= M_B."""
    p, m, f, i, w = 4, 12, 4, 5, 3
    takes = {"F": f, "I": i, "W": w}
    rows = {"1F1B": (f + i + w, p), "ZB-H1": (f + i - w, p), "ZB-H2": (f + i - 2 * w, 2 * p - 1)}
    for name, (each, activations) in rows.items():
        run, waits = played(make(name, p, m), takes)
        assert max(waits) == (p - 1) * each
        for kept in (Fraction(1, 3), 1):
            assert max(run.peaks(kept=kept)) == activations
    assert max(timeline.play(make("ZB-V", p, m), takes).peaks(activation=Fraction(1, 2))) == p  # section 6


@pytest.mark.parametrize(("name", "depth"), [("ZB-H1", 1), ("ZB-H2", 2)])
def test_qis_memory_of_every_stage(name, depth):
    """Section 2.3: (p - i + 1) M_B + (i - 1) M_W on device i, counted from 1; and 2p - 2i + 1 and 2i - 2 with ZB-H2."""
    p, m_w = 4, Fraction(2, 5)
    expected = [depth * (p - i) + 1 + depth * (i - 1) * m_w for i in range(1, p + 1)]
    assert timeline.play(make(name, p, 12), EQUAL).peaks(kept=m_w) == expected


def test_deepseeks_table():
    """PP = 2p stages of the model on p ranks: bubble (PP/2 - 1)(F&B + B - 3W), activations PP + 1."""
    p, m, f, i, w = 4, 10, 2, 2, 1
    run = timeline.play(make("DualPipe-V", p, m), {"F": f, "I": i, "W": w})
    pp, b = 2 * p, i + w
    assert max(run.waiting) == (pp / 2 - 1) * ((f + b) + b - 3 * w)
    assert max(run.peaks()) == pp + 1


def test_zero_bubble_is_zero_only_without_a_flush():
    for name in ("ZB-H2", "ZB-V"):
        run = timeline.play(make(name, 4, 12), EQUAL)
        assert run.waiting_inside == [0] * 4
        assert run.waiting == [3] * 4  # one forward for each later stage: they begin and end one after the other


def test_a_schedule_without_formula_is_refused():
    for function in (bubble.condition, bubble.waiting):
        with pytest.raises(ValueError, match="no formula for the schedule 'PipeDream'; known: naive, GPipe"):
            function("PipeDream", 2, 2, EQUAL)
    with pytest.raises(ValueError, match="the formula of ZB-H2 holds from 7 microbatches on, and there are 6; play"):
        bubble.waiting("ZB-H2", 4, 6, EQUAL)
    with pytest.raises(ValueError, match="the formula of ZB-V holds where F = I = W; play"):
        bubble.waiting("ZB-V", 4, 8, {"F": 1, "I": 2, "W": 1})


def test_every_schedule_has_a_formula_and_a_source():
    assert set(bubble.FORMULAS) == set(schedules.SCHEDULES)
    assert all("https://" in each.source for each in bubble.FORMULAS.values())
