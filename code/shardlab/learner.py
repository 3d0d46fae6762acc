"""What a learner's own folder remembers: lines of JSON, in one file for each kind of record.

They stand in `.shardlab` of the current folder, or in the folder that SHARDLAB_FOLDER names; where that is empty, and
while pages are built (SHARDLAB_STATIC=1), nothing is kept. A record is a convenience: losing it never stops anything.
"""

import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

FOLDER = ".shardlab"
_said: set[str] = set()  # what this process has told already


def append(kind: str, record: Mapping[str, Any]) -> None:
    """Add a record, with the local time as its `date`, to <kind>.jsonl; where that fails, say so once."""
    file = _file(kind)
    if file is None:
        return
    line = json.dumps({"date": datetime.now().astimezone().isoformat(timespec="seconds"), **record})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as lines:
            lines.seek(max(lines.tell() - 1, 0))
            cut_off = lines.read() not in (b"", b"\n")  # a full disk ended the last line early
            lines.write(b"\n" * cut_off + line.encode() + b"\n")
    except OSError as error:
        _say_once(f"(Not recorded in {file}: {error.strerror}.)")


def read(kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind, oldest first; lines that are none are left out, and that is said once."""
    file = _file(kind)
    try:
        whole = file.read_bytes() if file is not None else b""
    except FileNotFoundError:
        return []
    except OSError as error:
        _say_once(f"({file} cannot be read: {error.strerror}.)")
        return []
    records, bad = parse(whole)
    if bad:
        _say_once(f"({bad} line{'s' * (bad > 1)} of {file} cannot be read, and {'are' if bad > 1 else 'is'} left out.)")
    return records


def parse(whole: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the records in the bytes of a file, and the number of lines that are none. It trusts nothing."""
    records: list[dict[str, Any]] = []
    lines = [line for line in whole.split(b"\n") if line.strip()]
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            records.append(record)
    return records, len(lines) - len(records)


def _file(kind: str) -> Path | None:
    folder = os.environ.get("SHARDLAB_FOLDER", FOLDER)
    return Path(folder, f"{kind}.jsonl") if folder and os.environ.get("SHARDLAB_STATIC") != "1" else None


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        print(text)
