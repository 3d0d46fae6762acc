"""Tables are read as they stand, and what is wrong in one is named with its file, line and column."""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from shardlab.costs.facts import hardware, mixtures, models, nodes, recipes, tables
from shardlab.costs.facts.hugging_face.defaults import Defaults
from shardlab.files.arguments import Count, Positive, checked

FILES = sorted(tables.FOLDER.rglob("*.csv"))


@dataclass(frozen=True, kw_only=True)
@checked
class Part:
    width: Count
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
@checked
class Row:
    name: str
    gpus: Count = 8
    rate: float | None = None
    told: bool = True
    watts: Positive | None
    peaks: Mapping[str, Positive] | None = None
    more: Mapping[str, bool | int | float] | None = None
    part: Part | None = None


def read(tmp_path, *lines):
    (tmp_path / "table.csv").write_text("\n".join(lines))
    return tables.rows("table", Row, tmp_path)


def test_cells_become_fields_in_base_units(tmp_path):
    header = "name,gpus,rate [GB/s],told,watts,source,note"
    found = read(tmp_path, "# told: by whom", header, "a,,1.5,no,,X,", '"b, c",2,,,5/2,"Y, 2",z')
    assert found == (Row(name="a", rate=1.5e9, told=False, watts=None), Row(name="b, c", gpus=2, watts=2.5))


def test_a_column_may_lie_inside_a_field_and_a_cell_may_hold_several_values(tmp_path):
    header = "name,watts,peaks.bf16 [TFLOP/s],peaks.fp8 [TFLOP/s],part.width,part.names,more,source"
    full, empty = read(tmp_path, header, "a,,2,,3,q k,n=4 on=yes share=0.5,X", "b,,,,,,,X")
    assert full.peaks == {"bf16": 2e12}
    assert full.part == Part(width=3, names=("q", "k"))
    assert [*map(repr, full.more.values())] == ["4", "True", "0.5"]
    assert empty == Row(name="b", watts=None)


UNITS = {"s": 1, "ms": 1e-3, "us": 1e-6, "GiB": 2**30, "GB": 1e9, "Gb/s": 1e9 / 8, "TFLOP/s": 1e12, "W": 1}


@pytest.mark.parametrize(("unit", "factor"), UNITS.items())
def test_units_are_those_of_the_header(tmp_path, unit, factor):
    (row,) = read(tmp_path, f"name,rate [{unit}],watts,source", "a,2.5,,X")
    assert row.rate == pytest.approx(2.5 * factor)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["name,colour,source"], "line 1: Row has no column 'colour'; it has name, gpus, rate, told, watts"),
        (["name,part.height,source"], "line 1: Part has no column 'height'; it has width, names"),
        (["name.first,source"], "line 1: str has no column 'first'"),
        (["name,watts", "a,1"], "line 1: without a column source"),
        (["gpus,watts,source", "2,1,X"], "line 1: without a column name"),
        (["name,rate [mph],source"], "line 1: unit 'mph' is unknown; known: "),
        (["name,watts,source", "a,1,X", "b"], "line 3: 1 cells for 3 columns"),
        (["# a remark", "name,watts,source", "a,1,"], "line 3: source is empty; name where"),
        (["name,watts,source", "a,1, "], "line 2: source is empty; name where"),
        (["name,watts,source", ",1,X"], "line 2: name is empty; every row needs it"),
        (["name,part.names,watts,source", "a,q k,1,X"], "line 2: width is empty; every row needs it"),
        (["name,gpus,watts,source", "a,many,1,X"], "line 2: gpus='many' is no int"),
        (["name,rate [GB/s],watts,source", "a,1/0,1,X"], "line 2: rate [GB/s]='1/0' is no float"),
        (["name,told,watts,source", "a,1,1,X"], "line 2: told='1' is no bool"),
        (["name,more,watts,source", "a,n=x,1,X"], "line 2: more='n=x' is no Mapping"),
        (["name,gpus,watts,source", "a,0,1,X"], "line 2: gpus=0 must be a whole number of at least 1"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_column(tmp_path, lines, said):
    with pytest.raises(ValueError, match=f"^{re.escape(f'table.csv, {said}')}.*$"):
        read(tmp_path, *lines)


# Table -> the data of a row.
FACTS = {
    "chips": hardware.Chip,
    "links": hardware.Link,
    "clouds": nodes.Instance,
    "models": models.Published,
    "mixtures": mixtures.PublishedMixture,
    "recipes": recipes.Recipe,
    "hugging_face/defaults": Defaults,
}


@pytest.mark.parametrize(("table", "kind"), FACTS.items())
def test_a_fact_is_one_row_and_needs_its_source(tmp_path, table, kind):
    """A copy of the last row under another name is one more fact; without its source it is refused."""
    text = (tables.FOLDER / f"{table}.csv").read_text()
    *_, last = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))

    (tmp_path / table).parent.mkdir(exist_ok=True)

    def read_with(**changes):
        with (tmp_path / f"{table}.csv").open("w") as file:
            file.write(text)
            csv.DictWriter(file, last).writerow(last | changes)
        return tables.rows(table, kind, tmp_path)

    *others, new = read_with(name="one more")
    assert (new.name, len(others)) == ("one more", len(tables.rows(table, kind)))
    line = len(text.splitlines()) + 1
    with pytest.raises(ValueError, match=rf"^{table.split('/')[-1]}\.csv, line {line}: source is empty"):
        read_with(name="one more", source="")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"board": "DGX Z"}, "board='DGX Z' must be one of DGX-1V, DGX A100, DGX H100"),
        ({"chip": "Z100"}, "no facts about the chip 'Z100'"),
        ({"network": "string"}, "no facts about the link 'string'"),
    ],
)
def test_an_instance_has_known_parts(changes, said):
    known = {"name": "ours", "board": "DGX H100", "chip": "H100 SXM 80 GB", "network": "400 GbE", "cards": 4}
    assert nodes.Instance(**known, source="https://example.org").node.network_bandwidth == 4 * 50e9
    with pytest.raises(ValueError, match=re.escape(said)):
        nodes.Instance(**known | changes, source="https://example.org")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_row_has_a_name_of_its_own_and_says_where_it_is_in_print(path):
    rows = [*csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#"))]
    assert len({row["name"] for row in rows}) == len(rows)
    assert all("https://" in row["source"] for row in rows)
