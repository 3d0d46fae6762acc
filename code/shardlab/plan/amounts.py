"""Amounts as people write them: 4M tokens of a batch, 15T tokens of a training."""

import re

from shardlab.costs.facts import limits

WRITTEN = re.compile(r"(\d+(?:\.\d+)?)([KMBT]?)", re.IGNORECASE)
BATCH = {"": 1, "K": 2**10, "M": 2**20}
TRAINING = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def batch(text: str) -> int:
    """Read the tokens of a batch or a sequence: 8K is 8192 and 4M is 4,194,304, powers of 1024."""
    return _read(text, BATCH, limits.BATCH)


def training(text: str) -> int:
    """Read the tokens of a training: 15T is 15 * 10^12."""
    return _read(text, TRAINING, limits.TRAINING)


def _read(text: str, units: dict[str, int], most: int) -> int:
    found = WRITTEN.fullmatch(text.strip())
    if not found or found[2].upper() not in units:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(
            f"{text!r} is not an amount; write a number such as 4M, with one of {known}"
        )
    number, unit = found.groups()
    amount = float(number) * units[unit.upper()]
    if not 1 <= amount <= most:
        raise ValueError(f"{text!r} is not an amount; write a number from 1 to {most:,}")
    return round(amount)
