"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from itertools import pairwise

import torch

from shardlab import exercises
from shardlab.costs.pipeline import balance
from shardlab.exercises import checker
from shardlab.plain import pipeline
from shardlab.sharding.deal import deal

from .grading import Chapter, Graded, Mistake
from .solutions import pipeline as solutions

CHAPTER = Chapter("pipeline", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


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


CHAPTER.changes({
    "has one definition": Mistake("bubble", {TOTAL},
        at="2 ranks, 2 microbatches, 1 chunk", says="a stage waits 3 s and computes 6 s",
        old="waiting / (waiting + computing)", new="waiting / computing"),
    "swaps the definitions": Mistake("bubble", {IDEAL, TOTAL},
        at="2 ranks, 2 microbatches, 1 chunk", says="0.5 of the time it computes",
        old="waiting / computing, waiting / (waiting + computing)",
        new="waiting / (waiting + computing), waiting / computing"),
    "forgets the chunks": Mistake("bubble", {IDEAL, TOTAL}, at="2 ranks, 4 microbatches, 2 chunks",
        old="num_microbatches * num_chunks\n", new="num_microbatches\n"),
    "counts all stages": Mistake("bubble", {IDEAL, TOTAL}, at="1 rank, 4 microbatches, 1 chunk",
        old="num_stages - 1,", new="num_stages,"),
    "returns one": Mistake("bubble", {NUMBERS, IDEAL, TOTAL}, at="1 rank, 4 microbatches, 1 chunk", says="0.0, a float",
        old=", waiting / (waiting + computing)", new=""),
})


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


CHAPTER.changes({
    "runs one too far ahead": Mistake("eager", {LITTLE}, at="1 rank, 3 microbatches", says="2; stage 0: F0 F1 B0",
        old="2 * stage.after", new="1 + 2 * stage.after"),
    "runs one forward ahead of the plain file": Mistake("eager", {FAST},
        at="3 ranks, 6 microbatches", says="66 s; stage 0: F0 F1 F2 F3 B0",
        old="2 * stage.after", new="min(stage.after + 1, 2 * stage.after)"),
    "takes one microbatch at a time": Mistake("eager", {FAST}, at="2 ranks, 2 microbatches", says="done in 24 s",
        old="2 * stage.after", new="0"),
    "turns the stages round": Mistake("eager", {LEGAL},
        at="2 ranks, 2 microbatches", says="deadlock: stage 0 waits in B0 for stage 1",
        old="2 * stage.after", new="2 * stage.before"),
    "forgets the last backwards": Mistake("eager", {LEGAL}, at="2 ranks, 1 microbatch", says="no B0 on stage 0",
        old="    while stage.kept:\n        stage.backward()\n", new=""),
    "counts microbatches": Mistake("eager", {SHARES}, at="1 rank, 3 microbatches", says="share 0.1667 for microbatch 1",
        old="len(inputs) / samples", new="1 / len(microbatches)"),
})


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


CHAPTER.changes({
    "ignores memory": Mistake("cut", {FITS}, at="1 rank, one stage, too small", says="[2]: [2] bytes",
        old=" and sum(nbytes[start:end]) <= memory", new=""),
    "leaves a stage empty": Mistake("cut", {CUTS}, at="3 ranks, one slow layer", says="3 numbers of at least 1",
        old="start < end and", new="start <= end and"),
    "makes stages even": Mistake("cut", {FASTEST}, at="3 ranks, fastest, but not the most even", says="stage of 5 s",
        old="max(slowest, sum(seconds[start:end]))", new="slowest + sum(seconds[start:end]) ** 2"),
    "returns where stages start": Mistake("cut", {CUTS}, at="1 rank, one stage", says="[0, 2]",
        old="[b - a for a, b in pairwise(best[n][1])]", new="best[n][1]"),
    "balances bytes": Mistake("cut", {FASTEST}, at="2 ranks, a slow last layer", says="a slowest stage of 4 s",
        old="sum(seconds[start:end])", new="sum(nbytes[start:end])"),
})


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


@mistake("cut", TRIES, at="1 rank, one stage", says="None")
def always_gives_up(seconds, nbytes, num_stages, memory):
    return None


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("bubble")
def in_an_fp32_tensor(*given):
    return torch.tensor(solutions.my_bubble(*given))
