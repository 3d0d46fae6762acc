"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import shutil

import numpy as np
import pytest
import torch

from shardlab import comm, exercises
from shardlab.exercises import checker
from shardlab.exercises.failures import straggler
from shardlab.ranks.observe import diagnose

from .grading import Chapter, Graded, Mistake
from .solutions import failures as solutions

CHAPTER = Chapter("failures", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


def test_the_straggler_of_every_case_by_hand():
    """For whom the others waited: rank -> s."""
    expected = {
        "one collective": {1: 2.0},
        "two collectives": {1: 0.5, 0: 2.0},
        "always late": {2: 3.0 + 5.0 + 4.0},
        "often a little, once a lot": {1: 1.5 + 1.5, 0: 15.0},
        "two groups": {1: 1.5, 2: 2.0, 3: 0.5},
        "three wait, then one": {0: 6.0, 1: 3.0},
    }
    for case in exercises.find("failures.straggler").cases:
        seconds = expected[case.title]
        assert straggler.straggler(straggler.trace_of(case.given)) == max(seconds, key=seconds.get)


@pytest.mark.parametrize("kind", [np.int64, np.float32, torch.tensor])
def test_a_rank_may_be_a_number_of_any_type(kind):
    assert exercises.check("failures.straggler", lambda events: kind(solutions.my_straggler(events)))


def test_the_library_passes_its_own_exercise():
    def by_all_gather(model, group):
        return min(diagnose.nonfinite(diagnose.gradients(model), group), default=None)

    report = exercises.check("failures.first_nan_rank", by_all_gather)
    failed = [name for name, mark in report.marks.items() if mark == checker.FAILED]
    assert failed == [SMALL], "it says more than was asked for: another verb, eight bytes from every rank"


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------

NAMES, FIRST = "names the rank for which the others wait longest", "all ranks name the first rank that is ill"
SAME, SMALL = "the gradients stay what they were", "one all-reduce of at most 16 bytes"
NEW, KILL, AGAIN = (
    "without a kill the new file is there",
    "a kill leaves the old file or the new one",
    "after a kill the next save works",
)


def calls(events):
    return [event for event in events if event.kind == "communicate"]


@mistake("straggler", NAMES, at="2 ranks, one collective", says="rank 1")
def blames_the_longest_all_reduce(events):
    return max(calls(events), key=lambda event: event.end - event.start).rank


@mistake("straggler", NAMES, at="2 ranks, two collectives", says="rank 0")
def counts_how_often_a_rank_is_last(events):
    times = {}
    for end in {event.end for event in calls(events)}:
        last = max((event for event in calls(events) if event.end == end), key=lambda event: event.start)
        times[last.rank] = times.get(last.rank, 0) + 1
    return max(sorted(times, reverse=True), key=times.get)


@mistake("straggler", NAMES, at="4 ranks, two groups", says="rank 2")
def thinks_of_one_group_only(events):
    group = min(event.group for event in calls(events))
    return solutions.my_straggler([event for event in calls(events) if event.group == group])


@mistake("straggler", NAMES, at="4 ranks, three wait, then one", says="rank 0")
def counts_one_wait_for_each_collective(events):
    waited = {}
    for end in {event.end for event in calls(events)}:
        met = sorted((event for event in calls(events) if event.end == end), key=lambda event: event.start)
        waited[met[-1].rank] = waited.get(met[-1].rank, 0.0) + met[-1].start - met[0].start
    return max(waited, key=waited.get)


@mistake("straggler", NAMES, at="4 ranks, three wait, then one", says="rank 0")
def blames_the_rank_that_waits_least(events):
    inside = {}
    for event in calls(events):
        inside[event.rank] = inside.get(event.rank, 0.0) + event.end - event.start
    return min(inside, key=inside.get)


@mistake("straggler", checker.RUNS, at="4 ranks, two groups", says="zip()")
def forgets_that_there_are_groups(events):
    by_rank = {}
    for event in sorted(calls(events), key=lambda event: event.start):
        by_rank.setdefault(event.rank, []).append(event)
    waited = dict.fromkeys(by_rank, 0.0)
    for met in zip(*by_rank.values(), strict=True):
        last = max(met, key=lambda event: event.start)
        waited[last.rank] += sum(last.start - event.start for event in met)
    return max(waited, key=waited.get)


@mistake("first_nan_rank", FIRST, SMALL, at="1 rank, all finite", says="all_reduce of 8 bytes, all_reduce")
def looks_for_nan_alone_and_one_gradient_at_a_time(model, group):
    first = group.size()
    for parameter in model.parameters():
        if parameter.grad is not None:
            mine = group.rank() if parameter.grad.isnan().any() else group.size()
            first = min(first, int(comm.all_reduce(torch.tensor([mine]), group, "min")))
    return first if first < group.size() else None


@mistake("first_nan_rank", FIRST, SMALL, at="2 ranks, all finite", says="nothing sent on rank 0")
def keeps_it_to_itself(model, group):
    return group.rank() if diagnose.first_nonfinite(diagnose.gradients(model)) else None


@mistake("first_nan_rank", FIRST, at="4 ranks, NaNs on two ranks", says="3 on rank 0")
def names_the_last(model, group):
    ill = diagnose.first_nonfinite(diagnose.gradients(model)) is not None
    last = int(comm.all_reduce(torch.tensor([group.rank() if ill else -1]), group, "max"))
    return last if last >= 0 else None


CHAPTER.changes({
    "takes calls in the order of the list": Mistake("straggler", {NAMES}, at="4 ranks, two groups", says="rank 2",
        old="sorted(events, key=lambda event: event.start)", new="events"),
    "forgets that all may be healthy": Mistake("first_nan_rank", {FIRST}, at="1 rank, all finite", says="1 on rank 0",
        old="return first if first < group.size() else None", new="return first"),
    "adds up large numbers": Mistake("first_nan_rank", {FIRST}, at="1 rank, all finite", says="0 on rank 0",
        old="torch.isfinite(gradient).all()", new="gradient.pow(2).sum().isfinite()"),
    "adds up all numbers": Mistake("first_nan_rank", {FIRST}, at="1 rank, all finite", says="0 on rank 0",
        old="torch.isfinite(gradient).all()", new="gradient.sum().isfinite()"),
    "repairs what it finds": Mistake("first_nan_rank", {SAME},
        at="1 rank, a NaN", says="gradient 2 has changed on rank 0",
        old="return first", new="for gradient in gradients:\n        gradient.nan_to_num_()\n    return first"),
    "makes room first": Mistake("save", {KILL}, at="1 rank, a longer file before", says="no file",
        old="os.replace(part, path)",
        new="if os.path.exists(path):\n        os.remove(path)\n    os.rename(part, path)"),
    "renames before it closes": Mistake("save", {KILL}, at="1 rank, no file before", says="a file of 0 bytes",
        old="file.flush()\n        os.fsync(file.fileno())\n    os", new="os"),
    "trips over what is left": Mistake("save", {AGAIN}, at="1 rank, no file before", says="then saved again",
        old='"wb"', new='"xb"'),
    "adds to what is left": Mistake("save", {AGAIN},
        at="1 rank, no file before", says="neither the old one nor the new one",
        old='"wb"', new='"ab"'),
    "never gives the name": Mistake("save", {NEW, AGAIN}, at="1 rank, no file before", says="no file",
        old="\n    os.replace(part, path)", new=""),
})


@mistake("save", KILL, at="1 rank, no file before", says="a file of 0 bytes")
def writes_beside_and_copies(data, path):
    with open(path + ".part", "wb") as file:
        file.write(data)
    shutil.copyfile(path + ".part", path)


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("straggler")
def in_an_array_of_one_number(events):
    return np.array([solutions.my_straggler(events)])
