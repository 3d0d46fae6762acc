"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import numpy as np
import pytest

from shardlab import exercises
from shardlab.costs.compute import flops, roofline
from shardlab.costs.facts import hardware, models
from shardlab.exercises import checker

from .grading import Chapter, Graded, Mistake
from .solutions import compute as solutions

CHAPTER = Chapter("compute", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


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

DAYS, SHARE = "one chip: forward and backward, in days", "several chips: the same work, shared"
AGAIN = "every forward twice: a third more"


CHAPTER.changes({
    "forgets backward": Mistake("days_to_train", {DAYS, SHARE, AGAIN}, at="1 rank, a day on one chip", says="0.3333",
        old="(8 if recomputes else 6)", new="2"),
    "says hours": Mistake("days_to_train", {DAYS, SHARE, AGAIN}, at="1 rank, a day on one chip", says="24",
        old="86_400", new="3_600"),
    "forgets recomputation": Mistake("days_to_train", {AGAIN}, at="1 rank, every layer twice", says="1.333",
        old="(8 if recomputes else 6)", new="6"),
    "computes backward twice too": Mistake("days_to_train", {AGAIN}, at="1 rank, every layer twice",
        old="(8 if", new="(12 if"),
    "does not share": Mistake("days_to_train", {SHARE, AGAIN}, at="1 rank, two chips",
        old="(num_chips * reached)", new="reached"),
})


THREE, PROJECTIONS, SCORES, FEED = "returns the FLOPs of three parts", "projections", "scores", "feed-forward block"


@mistake("layer_flops", PROJECTIONS, SCORES, FEED, at="1 rank, one token")
def counts_multiply_adds(*sizes):
    return {part: count / 2 for part, count in solutions.my_layer_flops(*sizes).items()}


CHAPTER.changes({
    "forgets the output projection": Mistake("layer_flops", {PROJECTIONS}, at="1 rank, one token",
        old="(2 * hidden + 2 * kv_hidden)", new="(hidden + 2 * kv_hidden)"),
    "gives every head its keys": Mistake("layer_flops", {PROJECTIONS}, at="1 rank, shared keys",
        old="2 * kv_hidden", new="2 * hidden"),
    "lets sequences meet": Mistake("layer_flops", {SCORES}, at="1 rank, two sequences", says="scores: 288",
        old="batch * sequence * sequence", new="tokens * tokens"),
    "forgets scores by values": Mistake("layer_flops", {SCORES}, at="1 rank, one token",
        old="2 * 2 * batch", new="2 * batch"),
    "takes four times for granted": Mistake("layer_flops", {FEED}, at="1 rank, a narrow feed-forward block",
        old="ffn * (3 if gated else 2)", new="(3 * ffn if gated else 2 * max(ffn, 2 * hidden))"),
    "forgets the gate": Mistake("layer_flops", {FEED}, at="1 rank, gated",
        old="(3 if gated else 2)", new="2"),
})


@mistake("layer_flops", THREE, PROJECTIONS, SCORES, FEED, at="1 rank, one token", says="272")
def returns_the_sum(*sizes):
    return sum(solutions.my_layer_flops(*sizes).values())


PEAK, MEMORY = "a large product reaches the peak, and no more", "a thin product reaches what memory delivers"


CHAPTER.changes({
    "exceeds the peak": Mistake("attainable", {PEAK}, at="1 rank, two matrices", says="expected  100",
        old="min(peak, flops / nbytes * bandwidth)", new="flops / nbytes * bandwidth"),
    "forgets the result": Mistake("attainable", {MEMORY}, at="1 rank, a product of numbers",
        old=" + m * n", new=""),
    "counts one flop a multiply add": Mistake("attainable", {MEMORY}, at="1 rank, a product of numbers",
        old="2 * m * k * n", new="m * k * n"),
    "knows 16 bits only": Mistake("attainable", {MEMORY}, at="1 rank, in fp32",
        old="element * (", new="2 * ("),
    "divides by nothing": Mistake("attainable", {checker.RUNS},
        at="1 rank, a product of numbers", says="ZeroDivisionError",
        old="flops / nbytes * bandwidth", new="bandwidth / (m - k)"),
})


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("days_to_train")
def in_fp32(num_parameters, tokens, num_chips, reached, recomputes):
    flops = np.float32(8 if recomputes else 6) * np.float32(num_parameters) * np.float32(tokens)
    return flops / np.float32(num_chips) / np.float32(reached) / np.float32(86_400)


@right("layer_flops")
def in_arrays_of_one_number(*given):
    return {name: np.array([flops]) for name, flops in solutions.my_layer_flops(*given).items()}
