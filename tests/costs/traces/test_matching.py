"""Messages and collectives of a trace meet in their order, and a trace that does not fit is refused."""

import re

import pytest

from shardlab.costs.traces import matching
from shardlab.trace import Event

PAIR = (0, 1)


def said(op, rank, nbytes, peer=None, group=PAIR, **more):
    return Event(rank, "communicate", op, group, nbytes, 0, 0, peer, **more)


def waits(rank, number):
    return Event(rank, "idle", "waiting", (rank,), 0, 0, 0, number=number)


def meet(*events):
    return [(each.op, each.events, each.nbytes) for each in matching.meetings(events)]


def test_messages_meet_in_the_order_in_which_they_were_sent():
    events = [said("send", 0, 8, 1), said("receive", 1, 8, 0), said("send", 0, 4, 1), said("receive", 1, 4, 0)]
    assert meet(*events) == [("message", (0, 1), 8), ("message", (2, 3), 4)]


def test_tags_and_groups_are_channels_of_their_own():
    events = [
        said("send", 0, 8, 1, tag=1), said("send", 0, 4, 1, tag=2), said("send", 0, 2, 1, group=(0, 1, 2)),
        said("receive", 1, 2, 0, group=(0, 1, 2)), said("receive", 1, 4, 0, tag=2), said("receive", 1, 8, 0, tag=1),
    ]  # fmt: skip
    assert meet(*events) == [("message", (0, 5), 8), ("message", (1, 4), 4), ("message", (2, 3), 2)]


def test_collectives_meet_by_their_order_in_the_group():
    events = [
        said("all_reduce", 0, 8), said("barrier", 0, 0), said("all_reduce", 1, 8), said("barrier", 1, 0),
        said("gather", 0, 8), said("gather", 1, 4),
    ]  # fmt: skip
    assert meet(*events) == [("all_reduce", (0, 2), 8), ("barrier", (1, 3), 0), ("gather", (4, 5), 8)]


REFUSED = {
    "another size": (
        [said("send", 0, 800, 1), said("receive", 1, 400, 0)],
        "line 2: rank 0 sends 800 bytes to rank 1, but line 3: rank 1 receives 400 bytes from rank 0",
    ),
    "one too many sent": (
        [said("send", 0, 8, 1), said("receive", 1, 8, 0), said("send", 0, 8, 1)],
        "line 4: rank 0 sends 8 bytes to rank 1, as message 2 between them, but the last there: line 3: rank 1 rec",
    ),
    "nothing sent": (
        [said("receive", 1, 8, 0)],
        "line 2: rank 1 receives 8 bytes from rank 0, as message 1 between them, but the last there: rank 0 has no",
    ),
    "another collective": (
        [said("all_reduce", 0, 8), said("all_gather", 1, 8)],
        "line 2: rank 0 calls all_reduce with 8 bytes, but line 3: rank 1 calls all_gather with 8 bytes, in group [0",
    ),
    "another length": (
        [said("all_reduce", 0, 8), said("all_reduce", 1, 12)],
        "line 2: rank 0 calls all_reduce with 8 bytes, but line 3: rank 1 calls all_reduce with 12 bytes",
    ),
    "a rank that stays away": (
        [said("barrier", 0, 0), said("barrier", 1, 0), said("barrier", 0, 0)],
        "line 4: rank 0 calls barrier with 0 bytes in group [0, 1], but the last of rank 1 is: line 3: rank 1 calls",
    ),
    "a stranger": (
        [said("send", 0, 8, 3)],
        "line 2: rank 0 sends 8 bytes to rank 3, which is not in its group [0, 1]",
    ),
    "a group of others": (
        [said("all_reduce", 2, 8)],
        "line 2: rank 2 calls all_reduce with 8 bytes in group [0, 1], to which it does not belong",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_trace_that_does_not_fit_together_is_refused_with_both_lines(case):
    events, message = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(message)):
        matching.meetings(events)


def test_waitings_name_what_they_wait_for():
    events = [said("send", 0, 8, 1, number=5), said("receive", 1, 8, 0, number=5), waits(1, 5), waits(0, 5)]
    assert matching.waits(events) == {2: 1, 3: 0}
    with pytest.raises(ValueError, match="line 2: rank 0 waits for its communication 5, not issued before"):
        matching.waits([waits(0, 5), *events])
    with pytest.raises(ValueError, match=r"line 2: rank 0 .*, and line 3: rank 0 .*: both are number 5"):
        matching.waits([events[0], events[0]])
