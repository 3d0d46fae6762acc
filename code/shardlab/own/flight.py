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
_WANTED = "pass a dump of the flight recorder, such as nccl_trace_rank_0"


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
        dump, name = _load(path), given.line(str(path))
        digits = re.findall(r"\d{1,7}", Path(path).name)
        if not digits and len(paths) > 1:
            raise ValueError(f"{name} has no rank in its name; call it nccl_trace_rank_0")
        rank = int(digits[-1]) if digits else 0
        ranks.append(rank)
        groups = _groups(dump.get("pg_config"))
        world = max(world, rank + 1, *(member + 1 for each in groups.values() for member in each))
        read = [_event(entry, rank, groups) for entry in _entries(dump, name)]
        known = [event for event in read if event]
        if unknown := len(read) - len(known):
            missing.append(f"rank {rank}: {unknown} collectives whose kind or group is not told")
        if unended := sum(event.end == event.start for event in known):
            missing.append(f"rank {rank}: {unended} collectives that did not end, or are not timed")
        events += known
    return recording.assembled(
        ranks, world, events, unit=1e-9, dialect="flight recorder", missing=missing
    )


def _load(path: str | Path) -> Mapping[str, Any]:
    name, content = given.line(str(path)), given.read_bytes(path)
    try:
        plain = (
            json.loads(content) if content[:1] in b"{[" else _PlainData(io.BytesIO(content)).load()
        )
    except Exception as error:  # a hostile pickle fails in a dozen ways
        raise ValueError(f"{name} cannot be read ({error}); {_WANTED}") from None
    if not isinstance(plain, dict) or not isinstance(plain.get("entries"), list):
        raise ValueError(f"{name} has no list of entries; {_WANTED}")
    return plain


def _entries(dump: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    entries: list[Any] = dump["entries"]
    if len(entries) > MOST_ENTRIES:
        raise ValueError(f"{name} has {len(entries):,} entries, more than {MOST_ENTRIES:,}")
    for place, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ValueError(f"{name}: entry {place} is no object; {_WANTED}")
    return entries


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    groups = config if isinstance(config, dict) else {}
    found = {
        str(name): recording.listed_ranks(group.get("ranks"))
        for name, group in groups.items()
        if isinstance(group, dict)
    }
    return {name: ranks for name, ranks in found.items() if ranks}


def _event(
    entry: Mapping[str, Any], rank: int, groups: Mapping[str, tuple[int, ...]]
) -> Event | None:
    """Return an entry's event, with times in nanoseconds."""
    op = recording.verb(str(entry.get("profiling_name", ""))[:80].partition(" ")[0])
    named = entry.get("process_group")
    group = groups.get(str(named[0]) if isinstance(named, list | tuple) and named else "", ())
    if op is None or op in recording.MESSAGES or rank not in group:
        return None
    start = recording.whole(entry.get("time_created_ns"), "time_created_ns", 1 << 63)
    completed = entry.get("time_discovered_completed_ns") or 0
    end = max(start, recording.whole(completed, "time_discovered_completed_ns", 1 << 63))
    if (duration := entry.get("duration_ms")) is not None:
        end = start + max(0, round(recording.finite(duration, "duration_ms") * 1e6))
    nbytes = max(_nbytes(entry, side) for side in ("input", "output"))
    number = entry.get("collective_seq_id")
    return recording.communication(rank, op, group, nbytes, start, end, number=number)


def _nbytes(entry: Mapping[str, Any], side: str) -> int:
    dtypes = entry.get(f"{side}_dtypes")
    first = dtypes[0] if isinstance(dtypes, list | tuple) and dtypes else None
    return recording.elements(entry.get(f"{side}_sizes")) * recording.element_bytes(first)
