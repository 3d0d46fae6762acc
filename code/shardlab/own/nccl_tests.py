"""Read the tables that nccl-tests and rccl-tests print.

The ranks follow from the table itself: bus bandwidth divided by algorithm bandwidth is 2(n-1)/n for
an all-reduce and (n-1)/n for all-gather, reduce-scatter and all-to-all. A header may be that of
another run. https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from shardlab.costs.collectives.bandwidth import BUS_FACTORS
from shardlab.costs.collectives.library import NODE_OPERATIONS
from shardlab.files import given
from shardlab.files.arguments import checked

from .recording import MOST_NBYTES, MOST_RANKS, verb

MOST_CHARACTERS = 100 * given.MEGA
_TEST = re.compile(r"\b(\w{1,40})_perf\b")
_HOST = re.compile(r"#\s*Rank\s+(\d{1,7})\b.*\bon\s+(\S{1,255})\s+device\b")
_ROW = re.compile(r"\s*\d+\s+\d+(\s+\S+){5}")
_HEADER = "# size count"
_TWICE = 11  # columns of a row that has both: size, count, type, and twice four
_MOST = 1e15  # of a time or a rate
_ROUNDED = 0.5  # of the last digit that is printed


class MessageTime(NamedTuple):
    """One message size."""

    nbytes: int
    out_of_place: float  # s
    in_place: float | None  # s; None where the test did not measure it


@dataclass(frozen=True, kw_only=True)
class Table:
    """What one run of a test printed."""

    op: str
    ranks: int | None  # None where neither the table nor the list of devices tells
    listed_ranks: int | None  # of the list of devices above the table
    nodes: int | None  # different hosts of that list
    rows: tuple[MessageTime, ...]


@given.in_one_line()
@checked
def read(text: str) -> list[Table]:
    """Read all tables of a log. Errors: ValueError for a log without a row, and for bad numbers."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"a log of {len(text):,} characters; pass the output of one test")
    tables = []
    name: str | None = None
    devices: dict[str, str] = {}
    rows: list[list[str]] = []
    for line in [*text.splitlines(), _HEADER]:
        test, device, row = _TEST.search(line), _HOST.match(line.strip()), _ROW.match(line)
        if row:
            rows.append(line.split())
        elif rows and (test or line.split()[:3] == _HEADER.split()):
            tables.append(_table(name, devices, rows))
            devices, rows = {}, []
        if device:
            devices[device[1]] = device[2]
        name = test[1] if test else name
    if not tables:
        raise ValueError("no row of a table; pass what all_reduce_perf or another test printed")
    return tables


def _table(name: str | None, devices: dict[str, str], rows: list[list[str]]) -> Table:
    op = verb(name or "")
    if name is None or op is None:
        raise ValueError(
            f"the test {name!r} of a table is unknown; keep the line above it that names the "
            "program, such as all_reduce_perf"
        )
    listed = len(devices) or None
    return Table(
        op=op,
        ranks=_ranks(op, rows, listed),
        listed_ranks=listed,
        nodes=len(set(devices.values())) or None,
        rows=tuple(map(_row, rows)),
    )


def _row(words: list[str]) -> MessageTime:
    """Read the columns from the right: time, algbw, busbw and errors, once or twice."""
    nbytes = int(words[0][:20])
    if nbytes > MOST_NBYTES:
        raise ValueError(f"a size of {words[0]} bytes is more than {MOST_NBYTES:,}")
    times = [_positive(words[-8]), _positive(words[-4])] if len(words) >= _TWICE else []
    first, second = times or (_positive(words[-4]), None)
    return MessageTime(nbytes, first / 1e6, second / 1e6 if second is not None else None)


def _positive(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 < value < _MOST:
        raise ValueError(f"a time of {word} us must be a finite number above 0")
    return value


def _ranks(op: str, rows: list[list[str]], listed: int | None) -> int | None:
    """Return the ranks that all rows allow, given how bandwidths are rounded."""
    if op not in NODE_OPERATIONS:
        return listed
    passes = 2 * BUS_FACTORS[op](2)  # (n-1)/n times this is the ratio
    least, most = 1.0, math.inf
    for words in rows:
        at = -8 if len(words) >= _TWICE else -4
        algorithm, bus = words[at + 1], words[at + 2]
        try:
            low, high = (
                _bound(bus, -1) / _bound(algorithm, 1),
                _bound(bus, 1) / _bound(algorithm, -1),
            )
        except (ValueError, ZeroDivisionError):
            continue  # a rate that is printed as 0, or as no number
        least = max(least, _of_ratio(low / passes))
        most = min(most, _of_ratio(high / passes))
    fitting = range(math.ceil(least - 1e-9), math.floor(min(most, MOST_RANKS) + 1e-9) + 1)
    if len(fitting) == 1:
        return fitting[0]
    return listed if listed in fitting else None


def _bound(word: str, sign: int) -> float:
    """Return the largest or smallest number that is printed as `word`."""
    digits = len(word.partition(".")[2])
    value = float(word) + sign * _ROUNDED * 10.0**-digits
    if not 0 < value < _MOST:
        raise ValueError(f"{word} is no rate")
    return value


def _of_ratio(share: float) -> float:
    """Return n of (n-1)/n = share."""
    return 1 / (1 - share) if share < 1 else math.inf
