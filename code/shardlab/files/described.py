"""The files that a reader gives: a model's config.json, a cluster's TOML."""

import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardlab.files import given

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MOST_BYTES = given.MEGA


def read_json(path: str) -> dict[str, Any]:
    """Read a config.json, or the one in a folder. Errors: ValueError with the way out."""
    file = Path(path)
    with contextlib.suppress(OSError):  # which reading names
        file = file / "config.json" if file.is_dir() else file
    return _table(file, json.loads, "JSON", "give the config.json of a model")


def read_toml(path: str) -> dict[str, Any]:
    """Read the description of a cluster. Errors: ValueError with the way out."""
    way_out = "`python -m shardlab.plan --help` shows one"
    return _table(Path(path), tomllib.loads, "TOML", way_out)


@given.in_one_line()
def _table(file: Path, parse: Callable[[str], Any], form: str, way_out: str) -> dict[str, Any]:
    try:
        text = given.read(file, MOST_BYTES)
    except ValueError as error:
        raise ValueError(f"{error}; {way_out}") from None
    try:
        found = parse(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid {form}: {error}; {way_out}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds no object with names and values; {way_out}")
    return found
