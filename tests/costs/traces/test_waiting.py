"""Waiting against arithmetic by hand, and its conservation: what is parted adds up to what was recorded."""

import pytest

from shardlab.costs.traces import waiting
from shardlab.trace import Event

ALL, PAIR = (0, 1, 2), (0, 2)


def call(rank, start, end, group=ALL, op="all_reduce", **more):
    return Event(rank, "communicate", op, group, 8, start, end, **more)


# Twice all three meet; rank 1 is last at 4.0, then rank 0 at 10.0. In between 0 and 2 meet, rank 2 being last.
EVENTS = [
    Event(0, "compute", "backward", (0,), 0, 0.0, 1.0),
    call(0, 1.0, 5.0),
    call(1, 4.0, 5.0),
    call(2, 2.0, 5.0),
    call(2, 6.5, 7.0, PAIR),
    call(0, 6.0, 7.0, PAIR),
    call(2, 7.0, 11.0),
    call(1, 5.0, 11.0),
    call(0, 10.0, 11.0),
]
WAITED = {(0, 1): 3.0, (2, 1): 2.0, (0, 2): 0.5, (1, 0): 5.0, (2, 0): 3.0}


def test_all_wait_for_the_last_to_come():
    assert waiting.who_waits(EVENTS) == pytest.approx(WAITED)


def test_the_order_in_which_ranks_are_recorded_does_not_matter():
    by_rank = sorted(EVENTS, key=lambda event: -event.rank)
    assert waiting.who_waits(by_rank) == pytest.approx(WAITED)


def test_parts_add_up_to_what_was_recorded():
    parts = waiting.parted(EVENTS)
    idle = [part for part in parts if part.kind == "idle"]
    assert sum(part.seconds for part in parts) == pytest.approx(sum(event.seconds for event in EVENTS))
    assert sum(part.seconds for part in idle) == pytest.approx(sum(WAITED.values()))
    assert {part.op for part in idle} == {"waiting"}
    assert {(part.start, part.end) for part in parts if part.kind == "communicate"} == {(4, 5), (6.5, 7), (10, 11)}


def test_a_receiver_waits_for_its_sender_and_a_message_put_aside_for_nobody():
    ends = {"group": (0, 1)}
    events = [
        call(1, 0.0, 3.0, op="receive", peer=0, **ends),
        call(0, 2.0, 3.0, op="send", peer=1, **ends),
        call(0, 4.0, 4.5, op="send", peer=1, **ends),  # over before anybody receives
        call(1, 9.0, 9.5, op="receive", peer=0, **ends),
    ]
    assert waiting.who_waits(events) == pytest.approx({(1, 0): 2.0, (0, 1): 0.5})


def test_a_trace_in_which_somebody_is_missing_is_refused():
    with pytest.raises(ValueError, match="the last of rank 1"):
        waiting.who_waits([event for event in EVENTS if event is not EVENTS[7]])
