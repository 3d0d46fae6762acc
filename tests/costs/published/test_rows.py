"""Published tables are read as they stand, and what is wrong in one is named with its file and line."""

import csv
import re
from dataclasses import dataclass

import pytest

from shardlab.costs.published import rows as reader
from shardlab.files import project
from shardlab.files.arguments import Count, checked


@dataclass(frozen=True, kw_only=True)
@checked
class Row:
    name: str
    gpus: Count = 8
    rate: float | None = None
    told: bool = True


def read(tmp_path, *lines):
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return reader.rows("table", Row, tmp_path)


def test_cells_become_fields_in_base_units(tmp_path):
    header = "name,gpus,rate [GB/s],told,source,note"
    found = read(tmp_path, "# told: by whom", header, "a,,1.5,no,X,", '"b, c",2,,,"Y, 2",z')
    assert found == (Row(name="a", rate=1.5e9, told=False), Row(name="b, c", gpus=2))


@pytest.mark.parametrize(("unit", "factor"), {"s": 1, "ms": 1e-3, "GiB": 2**30, "TFLOP/s": 1e12}.items())
def test_units_are_those_of_the_header(tmp_path, unit, factor):
    (row,) = read(tmp_path, f"name,rate [{unit}],source", "a,2.5,X")
    assert row.rate == pytest.approx(2.5 * factor)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["name,colour,source", "a,red,X"], "line 1: Row has no column 'colour'; it has name, gpus, rate, told"),
        (["name", "a"], "line 1: without a column source"),
        (["gpus,source", "2,X"], "line 1: without a column name"),
        (["name,rate [mph],source"], "line 1: unit 'mph' is unknown; known: "),
        (["name,source", "a,X", "b"], "line 3: 1 cells for 2 columns"),
        (["# a remark", "name,source", "a,"], "line 3: without a source"),
        (["name,gpus,source", "a,many,X"], "line 2: gpus='many' is no int"),
        (["name,told,source", "a,1,X"], "line 2: told='1' is no bool"),
        (["name,gpus,source", "a,0,X"], "line 2: gpus=0 must be a whole number of at least 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, lines, said):
    with pytest.raises(ValueError, match=f"^{re.escape(f'table.csv, {said}')}.*$"):
        read(tmp_path, *lines)


FOLDERS = {reader.FOLDER: 19, project.BENCH / "published": 6}
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
