"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import pytest

from shardlab import exercises
from shardlab.costs.compute import flops, roofline
from shardlab.costs.facts import hardware, models
from shardlab.exercises import checker

from .grading import Chapter, Graded
from .solutions import compute as solutions

CHAPTER = Chapter("compute", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


# ---- against what others print and count -----------------------------------------------------------------------------


def test_the_solution_gives_megatrons_days():
    """Narayanan et al. 2021, section 5.1: 34 days for GPT-3, 84 for a trillion parameters."""
    assert solutions.my_days_to_train(175e9, 300e9, 1024, 140e12, True) == pytest.approx(34, abs=0.5)
    assert solutions.my_days_to_train(1e12, 450e9, 3072, 163e12, True) == pytest.approx(84, abs=1)


@pytest.mark.parametrize("name", ["GPT-2 small", "Llama 3 8B"])
def test_the_solution_is_what_costs_predict(name):
    spec = models.published(name).spec
    ahead = flops.forward(spec, batch=2, sequence=512)
    mine = solutions.my_layer_flops(2, 512, spec.hidden_size, spec.kv_size, spec.ffn, spec.style == "llama")
    assert {part: spec.num_layers * count for part, count in mine.items()} == {part: ahead[part] for part in mine}


def test_the_library_passes_its_own_exercise():
    def attainable(m, k, n, peak, bandwidth, element):
        return roofline.roof([roofline.matmul(m, k, n, element=element).intensity], peak=peak, bandwidth=bandwidth)[0]

    assert exercises.check("compute.attainable", attainable)


def test_both_sides_of_the_ridge_are_asked_for():
    cases = exercises.find("compute.attainable").cases
    assert len({solutions.my_attainable(*case.given.values()) == case.given["peak"] for case in cases[-4:]}) == 2
    assert hardware.chip("H100 SXM 80 GB").peak_flops == cases[-1].given["peak"]


# ---- mistakes --------------------------------------------------------------------------------------------------------

DAYS, SHARE = "one chip: forward and backward, in days", "chips share the work"
AGAIN = "a second forward takes a third more"


@mistake("days_to_train", DAYS, SHARE, AGAIN, at="1 rank, a day on one chip", says="0.3333")
def forgets_backward(num_parameters, tokens, num_chips, reached, recomputes):
    return 2 * num_parameters * tokens / (num_chips * reached) / 86_400


@mistake("days_to_train", DAYS, SHARE, AGAIN, at="1 rank, a day on one chip", says="24")
def says_hours(num_parameters, tokens, num_chips, reached, recomputes):
    return 24 * solutions.my_days_to_train(num_parameters, tokens, num_chips, reached, recomputes)


@mistake("days_to_train", AGAIN, at="1 rank, every layer twice", says="1.333")
def forgets_recomputation(num_parameters, tokens, num_chips, reached, recomputes):
    return solutions.my_days_to_train(num_parameters, tokens, num_chips, reached, False)


@mistake("days_to_train", AGAIN, at="1 rank, every layer twice")
def computes_backward_twice_too(num_parameters, tokens, num_chips, reached, recomputes):
    return (1 + recomputes) * solutions.my_days_to_train(num_parameters, tokens, num_chips, reached, False)


@mistake("days_to_train", SHARE, AGAIN, at="1 rank, two chips")
def does_not_share(num_parameters, tokens, num_chips, reached, recomputes):
    return solutions.my_days_to_train(num_parameters, tokens, 1, reached, recomputes)


THREE, PROJECTIONS, SCORES, FEED = "returns the FLOPs of three parts", "projections", "scores", "feed-forward block"


def changed(batch, sequence, hidden, kv_hidden, ffn, gated, **parts):
    return {**solutions.my_layer_flops(batch, sequence, hidden, kv_hidden, ffn, gated), **parts}


@mistake("layer_flops", PROJECTIONS, SCORES, FEED, at="1 rank, one token")
def counts_multiply_adds(*sizes):
    return {part: count / 2 for part, count in solutions.my_layer_flops(*sizes).items()}


@mistake("layer_flops", PROJECTIONS, at="1 rank, one token")
def forgets_the_output_projection(batch, sequence, hidden, kv_hidden, ffn, gated):
    projections = 2 * batch * sequence * hidden * (hidden + 2 * kv_hidden)
    return changed(batch, sequence, hidden, kv_hidden, ffn, gated, projections=projections)


@mistake("layer_flops", PROJECTIONS, at="1 rank, shared keys")
def gives_every_head_its_keys(batch, sequence, hidden, kv_hidden, ffn, gated):
    return solutions.my_layer_flops(batch, sequence, hidden, hidden, ffn, gated)


@mistake("layer_flops", SCORES, at="1 rank, two sequences", says="scores: 288")
def lets_sequences_meet(batch, sequence, hidden, kv_hidden, ffn, gated):
    return changed(batch, sequence, hidden, kv_hidden, ffn, gated, scores=4 * (batch * sequence) ** 2 * hidden)


@mistake("layer_flops", SCORES, at="1 rank, one token")
def forgets_scores_by_values(batch, sequence, hidden, kv_hidden, ffn, gated):
    return changed(batch, sequence, hidden, kv_hidden, ffn, gated, scores=2 * batch * sequence**2 * hidden)


@mistake("layer_flops", FEED, at="1 rank, a narrow feed-forward block")
def takes_four_times_for_granted(batch, sequence, hidden, kv_hidden, ffn, gated):
    wrong = {} if gated else {"feed-forward": 4 * batch * sequence * hidden * max(ffn, 2 * hidden)}
    return changed(batch, sequence, hidden, kv_hidden, ffn, gated, **wrong)


@mistake("layer_flops", FEED, at="1 rank, gated")
def forgets_the_gate(batch, sequence, hidden, kv_hidden, ffn, gated):
    return solutions.my_layer_flops(batch, sequence, hidden, kv_hidden, ffn, False)


@mistake("layer_flops", THREE, PROJECTIONS, SCORES, FEED, at="1 rank, one token", says="272")
def returns_the_sum(*sizes):
    return sum(solutions.my_layer_flops(*sizes).values())


PEAK, MEMORY = "a large product reaches the peak, and no more", "a thin product reaches what memory delivers"


@mistake("attainable", PEAK, at="1 rank, two matrices", says="expected  100")
def exceeds_the_peak(m, k, n, peak, bandwidth, element):
    return solutions.my_attainable(m, k, n, float("inf"), bandwidth, element)


@mistake("attainable", MEMORY, at="1 rank, a product of numbers")
def forgets_the_result(m, k, n, peak, bandwidth, element):
    return min(peak, 2 * m * k * n / (element * (m * k + k * n)) * bandwidth)


@mistake("attainable", MEMORY, at="1 rank, a product of numbers")
def counts_one_flop_a_multiply_add(m, k, n, peak, bandwidth, element):
    return min(peak, solutions.my_attainable(m, k, n, float("inf"), bandwidth, element) / 2)


@mistake("attainable", MEMORY, at="1 rank, in fp32")
def knows_16_bits_only(m, k, n, peak, bandwidth, element):
    return solutions.my_attainable(m, k, n, peak, bandwidth, 2)


@mistake("attainable", checker.RUNS, at="1 rank, a product of numbers", says="ZeroDivisionError")
def divides_by_nothing(m, k, n, peak, bandwidth, element):
    return min(peak, bandwidth / (m - k))
