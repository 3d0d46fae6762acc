"""Match a trace: every send with its receive, every collective with that of its other ranks.

Between two ranks messages of one tag arrive in the order in which they were sent (MPI 4.1, section
3.5: they do not overtake); in a group, collectives match by their order alone. A trace that does
not match is refused with the two lines that disagree, numbered as in the file that `trace.save`
writes.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple, NoReturn

from shardlab.files.arguments import checked
from shardlab.trace import Event, line

# Collectives whose payloads must be equal on all ranks.
SAME_SIZE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}
Group = tuple[int, ...]  # its ranks
Channel = tuple[Group, int, int | None, int | None]  # group, tag, sender, receiver


class Meeting(NamedTuple):
    """Events that are one transfer: a send and its receive, or one collective on all its ranks."""

    op: str  # "message", or the verb of the collective
    # Positions in the trace: sender before receiver; else in order of the group.
    events: tuple[int, ...]
    nbytes: int  # the largest payload


@checked
def meetings(events: Sequence[Event]) -> list[Meeting]:
    """List all transfers of a trace. Errors: ValueError that names the two lines that disagree."""
    sends, receives, calls = _sorted(events)
    found = []
    for key in dict.fromkeys([*sends, *receives]):
        outgoing = sends.get(key, [])
        incoming = receives.get(key, [])
        for send, receive in zip(outgoing, incoming, strict=False):
            if events[send].nbytes != events[receive].nbytes:
                raise ValueError(f"{_said(events, send)}, but {_said(events, receive)}")
            found.append(Meeting("message", (send, receive), events[send].nbytes))
        if len(outgoing) != len(incoming):
            _refuse(events, outgoing, incoming)
    for group, by_rank in calls.items():
        for members in zip_longest(*(by_rank.get(rank, []) for rank in group)):
            found.append(_collective(events, group, members))
    return found


@checked
def waits(events: Sequence[Event]) -> dict[int, int]:
    """Map each waiting event to the communication it waits for, both by position.

    Errors: ValueError for an unknown communication.
    """
    issued: dict[tuple[int, int], int] = {}
    found = {}
    for index, event in enumerate(events):
        if event.number is None:
            continue
        key = event.rank, event.number
        if event.kind == "communicate":
            if key in issued:
                two = f"{_said(events, issued[key])}, and {_said(events, index)}"
                raise ValueError(f"{two}: both are number {event.number} of that rank")
            issued[key] = index
        elif key not in issued:
            raise ValueError(
                f"line {line(index)}: rank {event.rank} waits for its communication "
                f"{event.number}, not issued before"
            )
        else:
            found[index] = issued[key]
    return found


def _sorted(
    events: Sequence[Event],
) -> tuple[dict[Channel, list[int]], dict[Channel, list[int]], dict[Group, dict[int, list[int]]]]:
    """Sort the positions of communications into sends, receives, and calls of collectives."""
    sends: dict[Channel, list[int]] = {}
    receives: dict[Channel, list[int]] = {}
    calls: dict[Group, dict[int, list[int]]] = {}
    for index, event in enumerate(events):
        if event.kind != "communicate":
            continue
        if event.rank not in event.group:
            raise ValueError(
                f"{_said(events, index)} in group {list(event.group)}, to which it does not belong"
            )
        if event.op not in ("send", "receive"):
            calls.setdefault(event.group, {}).setdefault(event.rank, []).append(index)
        elif event.peer not in event.group:
            raise ValueError(
                f"{_said(events, index)}, which is not in its group {list(event.group)}"
            )
        else:
            ends = (event.rank, event.peer) if event.op == "send" else (event.peer, event.rank)
            found = sends if event.op == "send" else receives
            found.setdefault((event.group, event.tag, *ends), []).append(index)
    return sends, receives, calls


def _refuse(events: Sequence[Event], sends: list[int], receives: list[int]) -> NoReturn:
    """Raise a ValueError where one side has more messages than the other."""
    more, fewer = (sends, receives) if len(sends) > len(receives) else (receives, sends)
    alone = more[len(fewer)]
    last = f"rank {events[alone].peer} has nothing to match it"
    if fewer:
        last = _said(events, fewer[-1])
    count = len(fewer) + 1
    raise ValueError(
        f"{_said(events, alone)}, as message {count} between them, but the last there: {last}"
    )


def _collective(
    events: Sequence[Event], group: tuple[int, ...], members: tuple[int | None, ...]
) -> Meeting:
    present = [index for index in members if index is not None]
    first = events[present[0]]
    if len(present) < len(group):
        missing = group[members.index(None)]
        calls = [
            index
            for index, event in enumerate(events)
            if event.rank == missing and event.group == group
        ]
        last = _said(events, calls[-1]) if calls else f"rank {missing} calls nothing there"
        here = f"{_said(events, present[0])} in group {list(group)}"
        raise ValueError(f"{here}, but the last of rank {missing} is: {last}")
    for index in present[1:]:
        event = events[index]
        if event.op != first.op or (event.op in SAME_SIZE and event.nbytes != first.nbytes):
            first_call = _said(events, present[0])
            raise ValueError(f"{first_call}, but {_said(events, index)}, in group {list(group)}")
    largest = max(events[index].nbytes for index in present)
    return Meeting(first.op, tuple(present), largest)


def _said(events: Sequence[Event], index: int) -> str:
    """Describe one event: "line 3: rank 0 sends 800 bytes to rank 1"."""
    event = events[index]
    who = f"line {line(index)}: rank {event.rank}"
    size = f"{event.nbytes:,} bytes"
    if event.op == "send":
        return f"{who} sends {size} to rank {event.peer}"
    if event.op == "receive":
        return f"{who} receives {size} from rank {event.peer}"
    return f"{who} calls {event.op} with {size}"
