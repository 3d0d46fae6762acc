"""The tables of published numbers, `name`.csv beside this file, as `facts.tables` reads them."""

from pathlib import Path
from typing import TypeVar

from ..facts import tables

Row = TypeVar("Row")
FOLDER = Path(__file__).parent


def rows(name: str, kind: type[Row], folder: Path = FOLDER) -> tuple[Row, ...]:
    """Read the rows of table `name` as data of `kind`. Errors: ValueError, as of `tables.rows`."""
    return tables.rows(name, kind, folder)
