"""Which rank waits for which, from a trace: a collective begins when the last rank has arrived.

The rank with the longest all-reduces is not the slow one: it arrived first. Tools for MPI attribute
waiting to its cause in this way (Böhme et al. 2016, https://doi.org/10.1145/2934661, who also
follow it along chains of messages).

Times are those of events: for operations that were issued early and waited for later they are an
upper bound on the waiting.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardlab.files.arguments import checked
from shardlab.trace import Event

from . import matching


@checked
def who_waits(events: Sequence[Event]) -> dict[tuple[int, int], float]:
    """Add up the waiting of the whole trace, as (waiting rank, rank it waits for) -> seconds.

    Pairs that never wait are left out.
    """
    waited: dict[tuple[int, int], float] = {}
    for index, last in _last_to_come(events).items():
        seconds = begin(events[index], events[last]) - events[index].start
        if seconds > 0:
            pair = events[index].rank, events[last].rank
            waited[pair] = waited.get(pair, 0.0) + seconds
    return waited


@checked
def parted(events: Sequence[Event]) -> list[Event]:
    """Split off every rank's waiting for the last one as an event: "idle", "waiting"."""
    parts = []
    last = _last_to_come(events)
    for index, event in enumerate(events):
        until = begin(event, events[last.get(index, index)])
        if until > event.start:
            parts.append(replace(event, kind="idle", op="waiting", nbytes=0, end=until))
        parts.append(replace(event, start=until))
    return parts


def _last_to_come(events: Sequence[Event]) -> dict[int, int]:
    """Map each communication to its transfer's last event to begin, both by position."""
    found: dict[int, int] = {}
    for meeting in matching.meetings(events):
        last = max(meeting.events, key=lambda index: events[index].start)
        found |= dict.fromkeys(meeting.events, last)
    return found


@checked
def begin(event: Event, last: Event) -> float:
    """Return when waiting ends: a buffered message may end before its receiver arrives."""
    return max(event.start, min(last.start, event.end))
