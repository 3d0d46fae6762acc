"""Every published table is read, and every row says where its numbers are in print."""

import csv

import pytest

from shardlab.costs.published import rows as reader


def test_every_table_is_read_by_a_module():
    code = "".join(path.read_text() for path in reader.FOLDER.glob("*.py"))
    tables = sorted(path.stem for path in reader.FOLDER.glob("*.csv"))
    assert len(tables) == 25
    assert not [name for name in tables if f'rows("{name}", ' not in code]


@pytest.mark.parametrize("path", sorted(reader.FOLDER.glob("*.csv")), ids=lambda path: path.stem)
def test_every_source_says_where(path):
    """An address, or the paper's table as the bibliography of the book has it."""
    lines = (line for line in path.read_text().splitlines() if not line.startswith("#"))
    for row in csv.DictReader(lines):
        assert "https://" in row["source"] or row["source"].startswith("Radford et al. 2019"), row
