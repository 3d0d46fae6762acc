"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from itertools import pairwise

from shardlab import exercises
from shardlab.costs.pipeline import balance
from shardlab.exercises import checker
from shardlab.plain import pipeline
from shardlab.sharding.deal import deal

from .grading import Chapter, Graded
from .solutions import pipeline as solutions

CHAPTER = Chapter("pipeline", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


def test_the_library_passes_its_own_exercises():
    def cut(seconds, nbytes, num_stages, memory):
        layers = [balance.Layer(seconds=s, states=b) for s, b in zip(seconds, nbytes, strict=True)]
        try:
            return [len(stage) for stage in balance.split(layers, [1] * num_stages, memory).stages]
        except ValueError:
            return None

    assert exercises.check("pipeline.cut", cut)


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

NUMBERS = "returns two numbers"
IDEAL, TOTAL = "the first is waiting over computing", "the second is waiting over all time"
SHARES, LEGAL = "each loss counts by its samples", "the validator finds nothing wrong"
FAST = "stages wait only while the pipeline fills and drains"
LITTLE = "a stage keeps as few microbatches as it can"
CUTS, FITS = "every layer is on one stage", "every stage fits"
TRIES, FASTEST = "gives up only where no cut fits", "the slowest stage is as fast as possible"


@mistake("bubble", TOTAL, at="2 ranks, 2 microbatches, 1 chunk", says="a stage waits 3 s and computes 6 s")
def has_one_definition(p, m, v):
    return (p - 1) / (m * v), (p - 1) / (m * v)


@mistake("bubble", IDEAL, TOTAL, at="2 ranks, 2 microbatches, 1 chunk", says="0.5 of the time it computes")
def swaps_the_definitions(p, m, v):
    return solutions.my_bubble(p, m, v)[::-1]


@mistake("bubble", IDEAL, TOTAL, at="2 ranks, 4 microbatches, 2 chunks")
def forgets_the_chunks(p, m, v):
    return solutions.my_bubble(p, m, 1)


@mistake("bubble", IDEAL, TOTAL, at="1 rank, 4 microbatches, 1 chunk")
def counts_all_stages(p, m, v):
    return p / (m * v), p / (m * v + p)


@mistake("bubble", NUMBERS, IDEAL, TOTAL, at="1 rank, 4 microbatches, 1 chunk", says="0.0, a float")
def returns_one(p, m, v):
    return (p - 1) / (m * v)


def ahead(stage, microbatches, samples, most):
    """1F1B that runs up to `most` forwards ahead of its backwards."""
    for number, (inputs, targets) in enumerate(microbatches):
        stage.forward(inputs, targets, len(inputs) / samples)
        if number >= most:
            stage.backward()
    while stage.kept:
        stage.backward()


@mistake("eager", FAST, at="2 ranks, 4 microbatches", says="done in 36 s")
def runs_as_the_plain_file(stage, microbatches, samples):
    pipeline.one_forward_one_backward(stage, microbatches, samples)


@mistake("eager", LITTLE, at="1 rank, 3 microbatches", says="3; stage 0: F0 F1 F2 B0")
def keeps_everything(stage, microbatches, samples):
    pipeline.gpipe(stage, microbatches, samples)


@mistake("eager", LITTLE, at="1 rank, 3 microbatches", says="2; stage 0: F0 F1 B0")
def runs_one_too_far_ahead(stage, microbatches, samples):
    ahead(stage, microbatches, samples, 1 + 2 * stage.after)


@mistake("eager", FAST, at="3 ranks, 6 microbatches", says="66 s; stage 0: F0 F1 F2 F3 B0")
def runs_one_forward_ahead_of_the_plain_file(stage, microbatches, samples):
    ahead(stage, microbatches, samples, min(stage.after + 1, 2 * stage.after))


@mistake("eager", FAST, at="2 ranks, 2 microbatches", says="done in 24 s")
def takes_one_microbatch_at_a_time(stage, microbatches, samples):
    ahead(stage, microbatches, samples, 0)


@mistake("eager", LEGAL, at="2 ranks, 2 microbatches", says="deadlock: stage 0 waits in B0 for stage 1")
def turns_the_stages_round(stage, microbatches, samples):
    ahead(stage, microbatches, samples, 2 * stage.before)


@mistake("eager", LEGAL, at="2 ranks, 1 microbatch", says="no B0 on stage 0")
def forgets_the_last_backwards(stage, microbatches, samples):
    for number, (inputs, targets) in enumerate(microbatches):
        stage.forward(inputs, targets, len(inputs) / samples)
        if number >= 2 * stage.after:
            stage.backward()


@mistake("eager", SHARES, at="1 rank, 3 microbatches", says="share 0.1667 for microbatch 1")
def counts_microbatches(stage, microbatches, samples):
    for number, (inputs, targets) in enumerate(microbatches):
        stage.forward(inputs, targets, 1 / len(microbatches))
        if number >= 2 * stage.after:
            stage.backward()
    while stage.kept:
        stage.backward()


@mistake("eager", SHARES, at="1 rank, 3 microbatches", says="nan")
def multiplies_by_no_number(stage, microbatches, samples):
    solutions.my_eager(stage, microbatches, samples)
    stage.shares = dict.fromkeys(stage.shares, float("nan"))


@mistake("eager", checker.RUNS, at="1 rank, 3 microbatches", says="no microbatch is kept")
def goes_back_first(stage, microbatches, samples):
    for inputs, targets in microbatches:
        stage.backward()
        stage.forward(inputs, targets, len(inputs) / samples)


@mistake("eager", checker.RUNS, at="1 rank, 3 microbatches", says="these targets belong to other inputs")
def mixes_targets_up(stage, microbatches, samples):
    targets = [each for _, each in microbatches][::-1]
    pairs = zip(microbatches, targets, strict=True)
    solutions.my_eager(stage, [(inputs, other) for (inputs, _), other in pairs], samples)


@mistake("cut", FITS, FASTEST, at="1 rank, one stage, too small", says="None: no cut fits")
def looks_at_numbers_of_layers(seconds, nbytes, num_stages, memory):
    return [len(part) for part in deal(len(seconds), num_stages)]


@mistake("cut", FITS, at="1 rank, one stage, too small", says="[2]: [2] bytes")
def ignores_memory(seconds, nbytes, num_stages, memory):
    return solutions.my_cut(seconds, [0] * len(nbytes), num_stages, memory)


@mistake("cut", FITS, FASTEST, at="1 rank, one stage, too small")
def is_greedy(seconds, nbytes, num_stages, memory):
    """Fills each stage up to its share of the time."""
    share, counts, start = sum(seconds) / num_stages, [], 0
    for stage in range(num_stages):
        end = start + 1
        rest = num_stages - 1 - stage
        while end < len(seconds) - rest and sum(seconds[start : end + 1]) <= share:
            end += 1
        counts.append(len(seconds) - start if rest == 0 else end - start)
        start += counts[-1]
    return counts


@mistake("cut", TRIES, at="2 ranks, a large first layer", says="a cut, such as [1, 3]")
def gives_up_when_the_fastest_does_not_fit(seconds, nbytes, num_stages, memory):
    counts = solutions.my_cut(seconds, [0] * len(nbytes), num_stages, memory)
    edges = [sum(counts[:i]) for i in range(num_stages + 1)]
    return counts if all(sum(nbytes[a:b]) <= memory for a, b in pairwise(edges)) else None


@mistake("cut", CUTS, at="1 rank, one stage", says="[0, 2]")
def returns_where_stages_start(seconds, nbytes, num_stages, memory):
    counts = solutions.my_cut(seconds, nbytes, num_stages, memory)
    return counts and [sum(counts[:i]) for i in range(num_stages + 1)]


@mistake("cut", FASTEST, at="2 ranks, a slow last layer", says="a slowest stage of 4 s")
def balances_bytes(seconds, nbytes, num_stages, memory):
    return solutions.my_cut(nbytes, nbytes, num_stages, memory)


@mistake("cut", TRIES, at="1 rank, one stage", says="None")
def always_gives_up(seconds, nbytes, num_stages, memory):
    return None
