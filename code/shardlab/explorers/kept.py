"""Keep the guesses of a live notebook in the learner's folder; nothing leaves the machine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from typing import Any, NamedTuple

from shardlab.files import learner

KIND = "guesses"


class KeptGuess(NamedTuple):
    """A guess as it was typed, and the day on which it was made."""

    given: str
    day: date


def keep(name: str, given: str) -> None:
    """Record the guess `given` at the question `name`."""
    learner.append(KIND, {"name": name, "given": given})


def kept(name: str) -> KeptGuess | None:
    """Return the latest guess at the question `name`, or None; skip records without a guess."""
    guesses = (
        _parsed(record) for record in reversed(learner.read(KIND)) if record.get("name") == name
    )
    return next(filter(None, guesses), None)


def _parsed(record: Mapping[str, Any]) -> KeptGuess | None:
    try:
        return KeptGuess(str(record["given"]), datetime.fromisoformat(record["date"]).date())
    except (KeyError, TypeError, ValueError):
        return None
