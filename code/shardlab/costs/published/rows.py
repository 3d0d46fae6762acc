"""The one reader of published numbers: `name`.csv beside this file holds a table, a row a line.

The first line names the columns, which are fields of a data class; a column "busbw [GB/s]" gives
the field `busbw` in bytes/s. An empty cell is the field's default. Every row names its `source`; a
`note` says what is particular to it. Lines that begin with # say what the columns mean.
"""

import csv
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from ..units import GB, TFLOP, GiB

Row = TypeVar("Row")
FOLDER = Path(__file__).parent
SOURCE, NOTE = "source", "note"  # columns of any table, kept where the data class has the field
UNITS: dict[str, Callable[[float], float]] = {
    "": lambda value: value,
    "s": lambda value: value,
    "ms": lambda value: value / 1000,
    "GB/s": lambda value: value * GB,
    "GiB": lambda value: value * GiB,
    "TFLOP/s": lambda value: value * TFLOP,
}
WORDS = {"yes": True, "no": False}
READ: dict[type, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: WORDS.__getitem__,
}


class _Column(NamedTuple):
    name: str
    kind: type  # of a cell
    unit: str
    kept: bool  # a field of the data class; else it is for whoever reads the table

    def value(self, cell: str) -> Any:
        try:
            value = READ[self.kind](cell)
        except (ValueError, KeyError):
            raise ValueError(f"{self.name}={cell!r} is no {self.kind.__name__}") from None
        return UNITS[self.unit](value) if self.kind is float else value


def rows(name: str, kind: type[Row], folder: Path = FOLDER) -> tuple[Row, ...]:
    """Read the rows of table `name` as data of `kind`, in base units.

    Errors: ValueError in one line that names the file and the line.
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
                found.append(kind(**_values(columns, cells)))
            else:
                columns = _columns(cells, kind)
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
    return tuple(found)


def _columns(cells: Sequence[str], kind: type) -> list[_Column]:
    """Find the field of each column."""
    hints = get_type_hints(kind)
    known: dict[str, Field[Any]] = {each.name: each for each in fields(kind)}
    columns = []
    for cell in cells:
        name, _, unit = cell.rstrip("]").partition(" [")
        if name not in (*known, SOURCE, NOTE):
            raise ValueError(f"{kind.__name__} has no column {name!r}; it has {', '.join(known)}")
        if unit not in UNITS:
            raise ValueError(f"unit {unit!r} is unknown; known: {', '.join(UNITS)}")
        hint = hints.get(name, str)
        base = next(iter(get_args(hint)), hint)  # of `int | None` it is int
        columns.append(_Column(name, base, unit, name in known))
    names = {column.name for column in columns}
    needed = {SOURCE, *(name for name, each in known.items() if each.default is MISSING)}
    if missing := sorted(needed - names):
        raise ValueError(f"without a column {', '.join(missing)}")
    return columns


def _values(columns: Sequence[_Column], cells: Sequence[str]) -> dict[str, Any]:
    """Read the cells of a row that are not empty."""
    if len(cells) != len(columns):
        raise ValueError(f"{len(cells)} cells for {len(columns)} columns")
    given = [(column, cell) for column, cell in zip(columns, cells, strict=True) if cell]
    if SOURCE not in {column.name for column, _ in given}:
        raise ValueError("without a source")
    return {column.name: column.value(cell) for column, cell in given if column.kept}
