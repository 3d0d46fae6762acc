"""The recorded step waits for rank 7, which is not slow: the numbers of the failure lab, case 5."""

import pytest

from shardlab.costs.published import recorded_step
from shardlab.costs.traces import waiting
from shardlab.trace import communication


def test_the_step_is_mostly_waiting_for_rank_7():
    events = recorded_step.events()
    waited = waiting.who_waits(events)
    inside = sum(event.seconds for event in communication(events))
    total, for_7 = sum(waited.values()), sum(each for (_, last), each in waited.items() if last == 7)
    assert [inside, total, for_7] == pytest.approx([48.5e-3, 46.8e-3, 35.6e-3], abs=5e-5)
    assert inside - total == pytest.approx(1.7e-3, abs=5e-5)


def test_the_last_ranks_and_what_the_page_says_of_the_first_call():
    calls = recorded_step.DLRM
    assert [max(range(8), key=call.starts.__getitem__) for call in calls] == [7, 7, 7, 7, 7, 5, 5, 4]
    first = calls[0]
    assert sum(max(first.starts) - start for start in first.starts) == pytest.approx(26e-3, abs=5e-4)
    assert [first.computing[7], min(first.computing), max(first.computing)] == pytest.approx([112e-6, 110e-6, 330e-6])
