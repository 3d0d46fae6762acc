"""Records in a learner's own folder: lines of JSON, in one file for each kind of record.

They lie in the folder that SHARDLAB_FOLDER names, or else in `.shardlab` of the project. That is
the nearest folder, from the current one upwards, that holds one of `MARKS`, or else the current
folder. Where SHARDLAB_FOLDER is empty, and while pages are built (SHARDLAB_STATIC=1), nothing is
kept. A record is a convenience: losing one never stops anything.
"""

import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from . import given

FOLDER = ".shardlab"
MARKS = FOLDER, ".git", "pyproject.toml"  # of the folder that is a project
_printed: set[str] = set()  # the warnings that this process has printed


def append(kind: str, record: Mapping[str, Any]) -> None:
    """Add `record`, with the local time as its `date`, to <kind>.jsonl.

    Where that fails, a line on standard output says so, once.
    """
    file = _file(kind)
    if file is None:
        return
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    line = json.dumps({"date": now, **record})
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as lines:
            lines.seek(max(lines.tell() - 1, 0))
            cut_off = lines.read() not in (b"", b"\n")  # a full disk ended the last line early
            lines.write(b"\n" * cut_off + line.encode() + b"\n")
    except OSError as error:
        _print_once(f"(Not recorded in {file}: {error.strerror}.)")


def read(kind: str) -> list[dict[str, Any]]:
    """Return the records of `kind`, oldest first.

    Lines that cannot be read are left out, and a line on standard output says so, once.
    """
    file = _file(kind)
    try:
        whole = b"" if file is None or not file.exists() else given.read_bytes(file)
    except (OSError, ValueError) as error:
        _print_once(f"({error}.)")
        return []
    records, bad = parse(whole)
    if bad:
        lines = "1 line" if bad == 1 else f"{bad} lines"
        _print_once(
            f"({lines} of {file} cannot be read and {'is' if bad == 1 else 'are'} left out.)"
        )
    return records


def parse(whole: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the records in `whole`, the bytes of a file, and the number of other lines.

    Any bytes are allowed: nothing in them raises an error.
    """
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
    folder = os.environ.get("SHARDLAB_FOLDER")
    if folder == "" or os.environ.get("SHARDLAB_STATIC") == "1":
        return None
    return Path(folder or _project() / FOLDER, f"{kind}.jsonl")


def _project() -> Path:
    """Return the path from the current folder to the project."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it has been deleted
        return Path()
    for folder in (here, *here.parents):
        if any(os.path.lexists(folder / mark) for mark in MARKS):
            return Path(os.path.relpath(folder))
    return Path()


def _print_once(text: str) -> None:
    if text not in _printed:
        _printed.add(text)
        print(given.line(text))
