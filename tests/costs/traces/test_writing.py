"""A plan becomes the messages of its moves."""

import pytest

from shardlab import exchanges
from shardlab.costs.traces import matching, writing


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_plan_becomes_its_messages(n):
    """Ten elements over n pieces; two receives are posted ahead, and both ends wait for every message."""
    plan = exchanges.ring_all_reduce(n)
    events = writing.of_plan(plan, 40)
    meetings = matching.meetings(events)
    assert len(meetings) == sum(map(len, plan.steps))
    assert sum(meeting.nbytes for meeting in meetings) == 2 * (n - 1) * 40
    assert len(matching.waits(events)) == 2 * len(meetings)
    for rank in range(n):
        ops = [event.op for event in events if event.rank == rank]
        steps = len(plan.steps)
        between = ["receive", "send", "waiting"] * (steps - 2)
        every = ["receive", "receive", "send", "waiting", *between, "send", "waiting", *["waiting"] * steps]
        assert ops == every * (n > 1)



def test_pieces_of_nothing_do_not_travel():
    """Two elements in five pieces: two of five are there."""
    sizes = [meeting.nbytes for meeting in matching.meetings(writing.of_plan(exchanges.ring_all_gather(5), 8))]
    assert sizes == [4] * 2 * 4


def test_a_buffer_of_broken_elements_is_refused():
    with pytest.raises(ValueError, match="10 bytes are not a whole number of elements of 4"):
        writing.of_plan(exchanges.ring_all_reduce(2), 10)
