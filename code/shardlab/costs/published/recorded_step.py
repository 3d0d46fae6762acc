"""One published step of eight GPUs, as events: when each rank computed and communicated."""

from dataclasses import dataclass

from shardlab.files.arguments import checked
from shardlab.trace import Event

from .rows import rows


@dataclass(frozen=True, kw_only=True)
@checked
class RecordedCollective:
    """One collective of all ranks; each field in seconds has a number for each rank."""

    op: str
    starts: tuple[float, ...]  # of the kernel, on one clock
    lasts: tuple[float, ...]  # from the kernel's start to its end
    computing: tuple[float, ...]  # other work of the GPU since the collective before
    source: str


DLRM = rows("recorded_step", RecordedCollective)


@checked
def events() -> list[Event]:
    """Return the step's events, in seconds from its first.

    A rank's other work is put right before the collective that follows it: the table has how long
    it took, and not when. No size is known, and the events have 0 bytes.
    """
    group = tuple(range(len(DLRM[0].starts)))
    found = []
    for call in DLRM:
        each = zip(group, call.starts, call.lasts, call.computing, strict=True)
        for rank, start, lasts, busy in each:
            found.append(Event(rank, "compute", "computing", (rank,), 0, start - busy, start))
            found.append(Event(rank, "communicate", call.op, group, 0, start, start + lasts))
    return found
