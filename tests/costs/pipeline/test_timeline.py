"""Schedules on a clock, by hand, against a slow simulation, and with messages that take time."""

import random
import re
from fractions import Fraction

import pytest

from shardlab import schedules
from shardlab.costs.pipeline import timeline
from shardlab.schedules import Action, make
from shardlab.trace import Event


def slow(schedule, takes, latency=0, overlap=True):
    """Tick by tick in whole numbers, from the rules alone: who can start at this tick does. No joined pairs."""
    p, now = schedule.num_stages, 0
    at, busy, spans = [0] * p, [0] * p, [[] for _ in range(p)]
    done = {}  # (forward, part, microbatch) -> when its result is there, for the stage that needs it
    while any(at[s] < len(schedule.orders[s]) for s in range(p)):
        for s in range(p):
            if at[s] == len(schedule.orders[s]) or busy[s] > now:
                continue
            action = schedule.orders[s][at[s]]
            source, forward = schedule.source(s, action), action.kind == "F"
            if source is not None and done.get((forward, source, action.microbatch), now + 1) > now:
                continue
            part = schedule.parts[s][action.chunk]
            end = now + takes[part][action.kind]
            spans[s].append((now, end))
            at[s] += 1
            busy[s] = end
            target = schedule.target(s, action)
            if target is None:
                continue
            peer = schedule.homes[target][0]
            if peer != s:
                end += latency
                if not overlap:
                    busy[s] = end
            done[forward, part, action.microbatch] = end
        now += 1
    return spans


@pytest.mark.parametrize("name", [name for name in schedules.SCHEDULES if name != "DualPipe-V"])
@pytest.mark.parametrize("overlap", [True, False])
def test_any_durations_and_messages_against_a_slow_simulation(name, overlap):
    draw = random.Random(0)
    for p, m in [(1, 2), (2, 3), (3, 5), (4, 4)]:
        schedule = make(name, p, m)
        takes = [{kind: draw.randint(1, 5) for kind in "FBIW"} for _ in range(schedule.num_parts)]
        latency = draw.randint(0, 9)
        run = timeline.play(schedule, takes, latency=latency, overlap=overlap)
        assert run.spans == slow(schedule, takes, latency, overlap)


def test_two_stages_by_hand():
    """F takes 1 s, B 2 s, and a message arrives after 3 s."""
    schedule = make("1F1B", 2, 2)  # F0 F1 B0 B1 and F0 B0 F1 B1
    run = timeline.play(schedule, {"F": 1, "B": 2}, latency=3)
    assert run.spans == [[(0, 1), (1, 2), (10, 12), (13, 15)], [(4, 5), (5, 7), (7, 8), (8, 10)]]
    assert (run.makespan, run.busy, run.waiting, run.waiting_inside) == (15, [6, 6], [9, 9], [9, 0])
    assert (run.bubble_of_ideal, run.bubble_of_total) == (18 / 12, 18 / 30)
    late = timeline.play(schedule, {"F": 1, "B": 2}, latency=3, overlap=False)
    assert late.spans == [[(0, 1), (4, 5), (10, 12), (16, 18)], [(4, 5), (5, 7), (10, 11), (11, 13)]]


def test_messages_are_in_flight_together():
    fast = timeline.play(make("GPipe", 2, 3), {"F": 1, "B": 1}, latency=3)
    assert [start for start, _ in fast.spans[1][:3]] == [4, 5, 6]


def test_a_message_inside_a_stage_is_free():
    """The last stage of a V hands chunk 0's output to its own chunk 1."""
    run = timeline.play(make("ZB-V", 2, 1), {"F": 1, "I": 1, "W": 1}, latency=10)
    starts = {str(a): span[0] for a, span in zip(run.schedule.orders[1], run.spans[1], strict=True)}
    assert starts["F0.1"] == starts["F0"] + 1 == 12


def test_an_even_cut_is_best_and_the_slowest_stage_decides():
    """m microbatches keep the slowest stage busy; the others wait for it."""
    slow_stage = [{"F": 1, "B": 2}, {"F": 2, "B": 4}, {"F": 1, "B": 2}]
    for name in ("GPipe", "1F1B"):
        run = timeline.play(make(name, 3, 50), slow_stage)
        assert 50 * 6 < run.makespan <= 50 * 6 + (1 + 2) + (1 + 2)
        assert timeline.play(make(name, 3, 50), {"F": Fraction(4, 3), "B": Fraction(8, 3)}).makespan < run.makespan


def test_what_a_stage_holds_by_hand():
    run = timeline.play(make("ZB-H1", 2, 2), {"F": 1, "I": 1, "W": 1})  # F0 F1 I0 W0 I1 W1 and F0 I0 F1 I1 W0 W1
    assert run.held(0) == [(0, 1), (1, 2), (5, 1), (7, 0)]
    half = Fraction(1, 2)
    assert run.held(0, kept=half) == [(0, 1), (1, 2), (4, 3 * half), (5, 1), (6, half), (7, 0)]
    assert run.peaks() == [2, 2]
    assert run.peaks(kept=half) == [2, 3 * half]
    assert run.peaks(activation=[10, 3]) == [20, 6]


@pytest.mark.parametrize("name", schedules.SCHEDULES)
def test_every_stage_ends_with_nothing(name):
    run = timeline.play(make(name, 3, 5))
    for stage in range(3):
        held = run.held(stage, kept=0.25)
        assert held[-1][1] == 0
        assert all(amount >= 0 for _, amount in held)
        assert [time for time, _ in held] == sorted(time for time, _ in held)


def test_1f1b_holds_p_minus_s_microbatches_and_gpipe_all():
    assert timeline.play(make("1F1B", 4, 8)).peaks() == [4, 3, 2, 1]
    assert timeline.play(make("1F1B", 4, 2)).peaks() == [2, 2, 2, 1]
    assert timeline.play(make("GPipe", 4, 8)).peaks() == [8, 8, 8, 8]
    assert timeline.play(make("ZB-H1", 4, 8)).peaks() == [4, 4, 4, 4]


def test_the_events_are_those_of_a_trace():
    run = timeline.play(make("1F1B", 2, 1), {"F": 1, "B": 2})
    assert run.events() == [
        Event(0, "compute", "F0", (0,), 0, 0.0, 1.0),
        Event(0, "compute", "B0", (0,), 0, 4.0, 6.0),
        Event(1, "compute", "F0", (1,), 0, 1.0, 2.0),
        Event(1, "compute", "B0", (1,), 0, 2.0, 4.0),
    ]


def test_what_stages_send():
    """Forward and backward over every border between stages: in a loop of v chunks v times as often, less one."""
    assert timeline.sent_bytes(make("1F1B", 3, 4), 10) == [40, 80, 40]
    assert timeline.sent_bytes(make("1F1B", 3, 2), [10, 1]) == [11, 22, 11]
    assert timeline.sent_bytes(make("GPipe", 1, 4), 10) == [0]
    for name, crossings in [("interleaved", 5), ("ZB-V", 4), ("ZB-H2", 2)]:
        schedule = make(name, 3, 4)
        assert sum(timeline.sent_bytes(schedule, 10)) == 2 * 4 * 10 * crossings == 80 * schedule.num_crossings


def test_durations_that_are_missing_are_asked_for():
    with pytest.raises(ValueError, match=re.escape("has I, W, but the durations {'F': 1, 'B': 2} do not")):
        timeline.play(make("ZB-H1", 2, 2), {"F": 1, "B": 2})
    with pytest.raises(ValueError, match="durations for 2 parts, but the model is cut into 4; give one for each part"):
        timeline.play(make("interleaved", 2, 2), [{"F": 1, "B": 2}] * 2)
    assert timeline.play(make("1F1B", 2, 2), {"F": 1, "I": 1, "W": 2}).makespan == 3 * 4


def test_thousands_of_microbatches_are_no_trouble():
    """The number of looks at an action does not grow with the pipeline: none is looked at more than three times."""
    looks = 0

    class Counting(tuple):
        def __getitem__(self, index):
            nonlocal looks
            looks += 1
            return super().__getitem__(index)

    for p, m in [(4, 50), (32, 200)]:
        schedule, looks = make("1F1B", p, m), 0
        object.__setattr__(schedule, "orders", tuple(Counting(order) for order in schedule.orders))
        timeline.play(schedule)
        assert looks <= 3 * 2 * m * p


def test_a_big_pipeline():
    """64 stages, 512 microbatches, 4 chunks: 262,144 actions; the formula says when they end."""
    run = timeline.play(make("interleaved", 64, 512, 4), {"F": 1, "B": 2})
    assert run.makespan == 3 * (4 * 512 + 63)
    assert Action("F", 511, 3) in run.schedule.orders[63]
