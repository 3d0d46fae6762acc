"""The one reader of tables: a CSV file holds facts or published numbers, a row a line.

The first line names the columns, which are fields of a data class. "busbw [GB/s]" is the field
`busbw` in bytes/s, "spec.num_layers" a field of the data in `spec`, "peaks.bf16" an entry of the
mapping `peaks`. A cell of a field with several values separates them with blanks, and each value of
a mapping has its name: "head_dim=128 sliding_window=4096". A number may be a fraction: 2048/130.
An empty cell is the field's default, or None where the field may be that.

Every row names its `source`; a `note` says what is particular to it, or what the source does not
say. Lines that begin with # say what the columns mean.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from ..units import GB, TFLOP, Gbit, GiB, us

Row = TypeVar("Row")
FOLDER = Path(__file__).parent
SOURCE, NOTE = "source", "note"  # columns of any table, kept where the data class has the field
UNITS: dict[str, Callable[[float], float]] = {
    "": lambda value: value,
    "s": lambda value: value,
    "W": lambda value: value,
    "ms": lambda value: value / 1000,
    "us": lambda value: value * us,
    "GB": lambda value: value * GB,
    "GB/s": lambda value: value * GB,
    "Gb/s": lambda value: value * Gbit,
    "GiB": lambda value: value * GiB,
    "TFLOP/s": lambda value: value * TFLOP,
}
WORDS = {"yes": True, "no": False}


class _Column(NamedTuple):
    header: str
    path: Sequence[str]  # of the field: "spec.num_layers" is a field of a field
    kind: Any  # of a cell: a type, or a union of types
    read: Callable[[str], Any]
    kept: bool  # a field of the data class; else it is for whoever reads the table

    def value(self, cell: str) -> Any:
        try:
            return self.read(cell)
        except (ValueError, KeyError, ZeroDivisionError):
            kinds = (getattr(each, "__name__", str(each)) for each in _kinds(self.kind))
            raise ValueError(f"{self.header}={cell!r} is no {' or '.join(kinds)}") from None


def rows(name: str, kind: type[Row], folder: Path = FOLDER) -> tuple[Row, ...]:
    """Read the rows of table `name`.csv as data of `kind`, in base units.

    Errors: ValueError in one line that names the file, the line and the column.
    """
    path = folder / f"{name}.csv"
    found: list[Row] = []
    columns: list[_Column] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        cells = next(csv.reader([line]))
        try:
            if columns:
                found.append(_made(kind, _values(columns, cells)))
            else:
                columns = _columns(cells, kind)
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
    return tuple(found)


# ---- the first line ------------------------------------------------------------------------------


def _columns(headers: Sequence[str], kind: type) -> list[_Column]:
    """Find the field of each column."""
    columns = []
    for header in headers:
        name, _, unit = header.rstrip("]").partition(" [")
        if unit not in UNITS:
            raise ValueError(f"unit {unit!r} is unknown; known: {', '.join(UNITS)}")
        kept = name in _hints(kind) or name not in (SOURCE, NOTE)
        path, hint = name.split("."), kind if kept else str
        for part in path if kept else ():
            hint = _inside(hint, part)
        columns.append(_Column(header, path, hint, _reader(hint, unit), kept))
    named = {column.path[0] for column in columns}
    needed = {SOURCE, *(each.name for each in fields(kind) if each.default is MISSING)}
    if missing := sorted(needed - named):
        raise ValueError(f"without a column {', '.join(missing)}")
    return columns


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the hints of the fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def _kinds(hint: Any) -> tuple[Any, ...]:
    """Return the types that a hint allows beside None."""
    union = get_origin(hint) in (Union, UnionType)
    return tuple(each for each in get_args(hint) if each is not NoneType) if union else (hint,)


def _inside(hint: Any, name: str) -> Any:
    """Return the hint of a field, or of a value of a mapping."""
    kind = _kinds(hint)[0]
    if get_origin(kind) is Mapping:
        return get_args(kind)[1]
    known = _hints(kind) if isinstance(kind, type) and is_dataclass(kind) else {}
    if name not in known:
        raise ValueError(f"{kind.__name__} has no column {name!r}; it has {', '.join(known)}")
    return known[name]


# ---- a cell --------------------------------------------------------------------------------------


def _reader(hint: Any, unit: str) -> Callable[[str], Any]:
    """Return what turns a cell into a value."""
    kind, *others = _kinds(hint)
    inner = [_reader(each, unit) for each in get_args(kind) if each is not ...]
    if others:
        return _first([_reader(each, unit) for each in (kind, *others)])
    if get_origin(kind) is tuple:
        return lambda cell: tuple(map(inner[0], cell.split()))
    if get_origin(kind) is Mapping:
        return lambda cell: {
            name: inner[1](value) for name, value in (each.split("=") for each in cell.split())
        }
    if kind is float:
        return lambda cell: UNITS[unit](_number(cell))
    return WORDS.__getitem__ if kind is bool else kind


def _first(readers: Sequence[Callable[[str], Any]]) -> Callable[[str], Any]:
    """Return what reads a cell as the first kind that it can be."""

    def read(cell: str) -> Any:
        for each in readers:
            with suppress(ValueError, KeyError):
                return each(cell)
        raise ValueError(cell)

    return read


def _number(cell: str) -> float:
    above, slash, below = cell.partition("/")
    return float(above) / float(below) if slash else float(above)


# ---- a row ---------------------------------------------------------------------------------------


def _values(columns: Sequence[_Column], cells: Sequence[str]) -> dict[str, Any]:
    """Read the cells of a row that are not empty; what stands in a field of a field is a dict."""
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} cells for {len(columns)} columns")
    given = [(column, cell) for column, cell in zip(columns, cells, strict=True) if cell.strip()]
    if SOURCE not in {column.header for column, _ in given}:
        raise ValueError("source is empty; name where the row's numbers are in print")
    values: dict[str, Any] = {}
    for column, cell in given:
        if column.kept:
            *outer, last = column.path
            place = values
            for name in outer:
                place = place.setdefault(name, {})
            place[last] = column.value(cell)
    return values


def _made(kind: Any, values: Mapping[str, Any]) -> Any:
    """Make data of its fields, and of theirs."""
    hints = _hints(kind)
    made = {}
    for each in fields(kind):
        hint = hints[each.name]
        inner = _kinds(hint)[0]
        if each.name in values:
            value = values[each.name]
            made[each.name] = _made(inner, value) if is_dataclass(inner) else value
        elif each.default is MISSING:
            if NoneType not in get_args(hint):
                raise ValueError(f"{each.name} is empty; every row needs it")
            made[each.name] = None
    return kind(**made)
