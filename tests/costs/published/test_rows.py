"""Every published table is read, and every row says where its numbers are in print."""

import csv

import pytest

from shardlab.costs.published import rows as reader
from shardlab.files import project

FOLDERS = {reader.FOLDER: 27, project.BENCH / "published": 6}
TABLES = [path for folder in FOLDERS for path in sorted(folder.glob("*.csv"))]


@pytest.mark.parametrize(("folder", "count"), FOLDERS.items(), ids=["the package's", "the benches'"])
def test_every_table_is_read_by_a_module(folder, count):
    code = "".join(path.read_text() for path in folder.glob("*.py"))
    tables = sorted(path.stem for path in folder.glob("*.csv"))
    assert len(tables) == count
    assert not [name for name in tables if f'rows("{name}", ' not in code]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_source_says_where(path):
    """An address, or the paper's table as the bibliography of the book has it."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    for row in csv.DictReader(lines):
        assert "https://" in row["source"] or row["source"].startswith("Radford et al. 2019"), row
