"""The reference of the package: it has every module, and chapters lead into it."""

from __future__ import annotations

import html
import pkgutil
import re
import sys
from pathlib import Path

import pytest
import yaml

import shardlab

from .conftest import ROOT

sys.path.insert(0, str(ROOT / "book" / "_ext"))
import shardlab_reference as reference

PAGES = sorted(path.stem for path in (ROOT / "book" / "reference").glob("*.md"))
MOST_BYTES = 1_000_000  # of a page, a tenth of that when compressed: nothing but text


@pytest.fixture(scope="module")
def built(site: Path) -> dict[str, str]:
    return {page: (site / "book" / "reference" / f"{page}.html").read_text() for page in PAGES}


def test_every_module_stands_on_one_page(built: dict[str, str]) -> None:
    names = [name for _, name, _ in pkgutil.walk_packages(shardlab.__path__, "shardlab.")]
    public = {name for name in names if not re.search(r"\._", name)}
    found = [name for text in built.values() for name in re.findall(r'id="module-([\w.]+)"', text)]
    assert len(found) == len(set(found))
    assert public == set(found)


def test_a_page_is_light(built: dict[str, str]) -> None:
    sizes = {page: len(text.encode()) for page, text in built.items()}
    assert not {page: size for page, size in sizes.items() if size > MOST_BYTES}


def test_signatures_and_fields_stand_as_in_the_source(built: dict[str, str]) -> None:
    words = html.unescape(re.sub(r"<[^>]+>", "", built["data"]))
    assert re.search(r"tokens\(batch: Count, sequence: Count\)\s*→ int", words)
    assert "dp: Count = 1  # data parallel: ranks that see different sequences" in words
    assert "Alias for field" not in "".join(built.values())


def test_code_in_a_chapter_leads_to_the_reference(site: Path) -> None:
    """What a package offers is found under the package's name, too; what several things are called leads nowhere."""
    chapter = (site / "book" / "zero.html").read_text()
    assert 'href="reference/ranks.html#shardlab.ranks.zero.sharding.shard"' in chapter  # `zero.shard`
    both = {"shardlab.ranks.memory.offload.run", "shardlab.costs.memory.offload.run"}
    ends = reference.called(frozenset(both))
    assert ends["offload.run"] == both
    assert ends["ranks.memory.offload.run"] == {"shardlab.ranks.memory.offload.run"}


def test_docstrings_are_plain_text() -> None:
    """Paragraphs flow, aligned lines stay, and nothing is read as markup."""
    lines = ["Send `x_` to *all*.", "", "Two lines", "of prose.", "", "a: [N], first", "b: [M], second"]
    reference.rewrite_docstring(None, "function", "name", None, None, lines)
    assert lines[:3] == [r"Send ``x_`` to \*all\*.", "", "Two lines of prose."]
    assert lines[3:] == ["", ".. code-block:: text", "", "   a: [N], first", "   b: [M], second", ""]


def test_the_page_on_citing_says_what_the_citation_file_says() -> None:
    cited, page = yaml.safe_load((ROOT / "CITATION.cff").read_text()), (ROOT / "book" / "cite.md").read_text()
    assert f"{{{cited['title']}}}" in page
    assert f"{{{{{cited['authors'][0]['name']}}}}}" in page
    assert f"Version {cited['version']}," in page
    assert f"{{{cited['date-released'].year}}}" in page
