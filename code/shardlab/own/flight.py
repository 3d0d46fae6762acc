"""Read the dumps of torch's flight recorder, one file a rank: JSON, or a pickle of plain data.

The fields: https://docs.pytorch.org/tutorials/unstable/flight_recorder_tutorial.html
"""

import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from shardlab.files import given
from shardlab.files.arguments import checked
from shardlab.trace import Event

from . import recording
from .recording import Recording

MOST_ENTRIES = 1_000_000
_WANTED = "pass dumps of the flight recorder, such as nccl_trace_rank_0"


class _PlainData(pickle.Unpickler):
    """Unpickles containers, texts and numbers, and refuses every class and function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise ValueError(f"it holds {given.line(f'{module}.{name}')}, and not plain data only")


@given.in_one_line()
@checked
def read(paths: Sequence[str | Path]) -> Recording:
    """Read the dumps of one run, each rank's file with its rank as the last number of its name.

    A collective begins when it was issued; one without an end gets its start as its end, and is
    counted in `missing`. Errors: ValueError for another file, and for two files of one rank.
    """
    if not paths:
        raise ValueError(f"no files; {_WANTED}")
    ranks: list[int] = []
    events: list[Event] = []
    missing: list[str] = []
    world = 0
    for path in paths:
        dump = _load(path)
        digits = re.findall(r"\d{1,7}", Path(path).name)
        if not digits and len(paths) > 1:
            raise ValueError(f"{given.line(str(path))} has no rank in its name; {_WANTED}")
        rank = int(digits[-1]) if digits else 0
        ranks.append(rank)
        groups = _groups(dump.get("pg_config"))
        world = max(world, rank + 1, *(member + 1 for each in groups.values() for member in each))
        found = [_event(entry, rank, groups) for entry in dump["entries"]]
        known = [event for event in found if event]
        if unknown := len(found) - len(known):
            missing.append(f"rank {rank}: {unknown} collectives whose kind or group is not told")
        if unended := sum(event.end == event.start for event in known):
            missing.append(f"rank {rank}: {unended} collectives that did not end, or are not timed")
        events += known
    return recording.assembled(
        ranks, events, world_size=world, unit=1e-9, dialect="flight recorder", missing=missing
    )


def _load(path: str | Path) -> dict[str, Any]:
    content = given.read_bytes(path)
    try:
        load = json.load if content[:1] in b"{[" else lambda file: _PlainData(file).load()
        dump = load(io.BytesIO(content))
        entries = dump.get("entries") if isinstance(dump, dict) else None
        if not isinstance(entries, list) or len(entries) > MOST_ENTRIES:
            raise ValueError(f"it has no list of at most {MOST_ENTRIES:,} entries")
        if not all(isinstance(entry, dict) for entry in entries):
            raise ValueError("an entry is no object")
        return {**dump}
    except Exception as error:  # a hostile pickle fails in a dozen ways
        raise ValueError(f"{given.line(str(path))} cannot be read ({error}); {_WANTED}") from None


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    groups = config if isinstance(config, dict) else {}
    return {
        str(name): recording.listed_ranks(group.get("ranks"))
        for name, group in groups.items()
        if isinstance(group, dict)
    }


def _event(
    entry: Mapping[str, Any], rank: int, groups: Mapping[str, tuple[int, ...]]
) -> Event | None:
    """Return an entry's event, with times in nanoseconds."""
    op = recording.verb(str(entry.get("profiling_name", "")).partition(" ")[0])
    named = entry.get("process_group")
    group = groups.get(str(named[0]) if isinstance(named, list | tuple) and named else "", ())
    if op is None or op in recording.MESSAGES or rank not in group:
        return None
    start = recording.whole(entry.get("time_created_ns"), "time_created_ns", 1 << 63)
    completed = entry.get("time_discovered_completed_ns") or 0
    end = max(start, recording.whole(completed, "time_discovered_completed_ns", 1 << 63))
    if (duration := entry.get("duration_ms")) is not None:
        end = start + max(0, round(recording.finite(duration, "duration_ms") * 1e6))
    nbytes = 0
    for side in ("input", "output"):
        dtypes = entry.get(f"{side}_dtypes")
        dtype = dtypes[0] if isinstance(dtypes, list | tuple) and dtypes else None
        count = recording.elements(entry.get(f"{side}_sizes"))
        nbytes = max(nbytes, recording.message_bytes(op, count, dtype))
    told = entry.get("collective_seq_id")
    number = told if type(told) is int else None
    return Event(rank, "communicate", op, group, nbytes, start, end, number=number)
