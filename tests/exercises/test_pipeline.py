"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from itertools import pairwise

from shardlab import exercises, schedules
from shardlab.costs.pipeline import balance
from shardlab.exercises import checker
from shardlab.schedules import Action, parse

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
            return [len(stage) for stage in balance.cut(layers, [1] * num_stages, memory).stages]
        except ValueError:
            return None

    assert exercises.check("pipeline.one_f_one_b", schedules.one_f_one_b)
    assert exercises.check("pipeline.cut", cut)


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

NUMBERS = "returns two numbers"
IDEAL, TOTAL = "the first is waiting over computing", "the second is waiting over all time"
ACTIONS, LEGAL = "returns actions", "the validator finds nothing wrong"
FAST, LITTLE = "the batch takes no longer than with GPipe", "a stage holds as few microbatches as it can"
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


@mistake("one_f_one_b", LITTLE, at="1 rank, 3 microbatches", says="2: stage 0: F0 F1 B0")
def runs_too_far_ahead(stage, num_stages, num_microbatches):
    return solutions.my_one_f_one_b(stage, num_stages + 1, num_microbatches)


@mistake("one_f_one_b", FAST, at="2 ranks, 2 microbatches", says="done in 9 s")
def takes_one_microbatch_at_a_time(stage, num_stages, num_microbatches):
    return schedules.naive(stage, num_stages, num_microbatches)


@mistake("one_f_one_b", LEGAL, at="2 ranks, 2 microbatches", says="deadlock: stage 0 waits in B0 for stage 1")
def turns_the_stages_round(stage, num_stages, num_microbatches):
    return solutions.my_one_f_one_b(num_stages - 1 - stage, num_stages, num_microbatches)


@mistake("one_f_one_b", LEGAL, at="2 ranks, 1 microbatch", says="no B0 on stage 0")
def forgets_the_last_backwards(stage, num_stages, num_microbatches):
    order = solutions.my_one_f_one_b(stage, num_stages, num_microbatches)
    return order[: len(order) - (num_stages - 1 - stage)]


@mistake("one_f_one_b", LEGAL, at="1 rank, 3 microbatches", says="B0 before F0 on stage 0")
def goes_backward_first(stage, num_stages, num_microbatches):
    order = solutions.my_one_f_one_b(stage, num_stages, num_microbatches)
    return [Action("B" if kind == "F" else "F", m) for kind, m, *_ in order]


@mistake("one_f_one_b", LEGAL, at="2 ranks, 1 microbatch", says="F1 on stage 0: the microbatches are 0 to 0")
def warms_up_with_what_is_not_there(stage, num_stages, num_microbatches):
    ahead = num_stages - 1 - stage
    order = [Action("F", m) for m in range(max(ahead, num_microbatches))]
    for m in range(num_microbatches):
        order.insert(min(2 * m + ahead + 1, len(order)), Action("B", m))
    return order + [Action("F", num_microbatches)] * (ahead > 0)


@mistake("one_f_one_b", ACTIONS, LEGAL, at="1 rank, 3 microbatches", says="a list of Action")
def returns_text(stage, num_stages, num_microbatches):
    return " ".join(map(str, solutions.my_one_f_one_b(stage, num_stages, num_microbatches)))


@mistake("one_f_one_b", checker.RUNS, at="1 rank, 3 microbatches", says="is not an action")
def cannot_spell(stage, num_stages, num_microbatches):
    return parse("f0 b0")


@mistake("cut", FITS, FASTEST, at="1 rank, one stage, too small", says="None: no cut fits")
def looks_at_numbers_of_layers(seconds, nbytes, num_stages, memory):
    share, more = divmod(len(seconds), num_stages)
    return [share + (stage < more) for stage in range(num_stages)]


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
