"""The files that a reader gives: a model's config.json, a cluster's TOML."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_json(path: str) -> dict[str, Any]:
    """Read a config.json, or the one in a folder. Errors: ValueError with the way out."""
    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    return _table(file, json.loads, "JSON", "give the config.json of a model")


def read_toml(path: str) -> dict[str, Any]:
    """Read the description of a cluster. Errors: ValueError with the way out."""
    way_out = "`python -m shardlab.plan --help` shows one"
    return _table(Path(path), tomllib.loads, "TOML", way_out)


def _table(file: Path, parse: Callable[[str], Any], form: str, way_out: str) -> dict[str, Any]:
    try:
        found = parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror}; {way_out}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not valid {form}: {error}; {way_out}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds no object with names and values; {way_out}")
    return found
