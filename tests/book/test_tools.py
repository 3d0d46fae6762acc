"""The site as one zip file and as one PDF, tried on a site of three small pages."""

from __future__ import annotations

import importlib.util
import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader

from .conftest import ROOT

TOC = {"root": "book/index", "parts": [{"caption": "Limits", "chapters": [{"file": "book/b"}, {"file": "book/a"}]}]}
SETTINGS = {"title": "Many Sheets", "author": "Somebody"}
LONG = 3  # sheets of page b


def tool(name: str) -> Any:
    description = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(description)
    description.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site whose second page, b, is longer than a sheet, and has lines that are folded on the screen."""
    site = tmp_path_factory.mktemp("site")
    (site / "book").mkdir()
    sheets = "<p style='break-after: page'>more of b</p>" * (LONG - 1)
    folded = "<div class='cell_output'><details><summary>s</summary>unfolded</details></div>"
    for name, body in {"index": "", "b": sheets + folded, "a": ""}.items():
        page = f"<!doctype html><h1>Page {name}<a class='headerlink'>#</a></h1><p>words of {name}</p>{body}"
        (site / "book" / f"{name}.html").write_text(page)
    return site


def test_the_same_site_is_the_same_archive(small: Path, tmp_path: Path) -> None:
    pack = tool("archive").pack
    first = pack(small, tmp_path / "x.zip").read_bytes()
    os.utime(small / "book" / "a.html", (0, 0))
    assert pack(small, tmp_path / "x.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert archive.namelist() == ["x/book/a.html", "x/book/b.html", "x/book/index.html"]
        assert archive.read("x/book/a.html") == (small / "book" / "a.html").read_bytes()


def test_the_pdf_has_a_title_contents_and_all_pages_in_order(small: Path, tmp_path: Path, browser: Any) -> None:
    book = PdfReader(tool("pdf").make(browser, small, tmp_path / "x.pdf", TOC, SETTINGS))
    title, contents, *rest = [" ".join(page.extract_text().split()) for page in book.pages]
    assert title == "Many Sheets Somebody"
    assert contents == "Contents Page index 3 Limits Page b 4 Page a 7 2"  # its own number comes last
    assert [sheet.split()[-1] for sheet in rest] == ["3", "4", "5", "6", "7"]
    assert ["words of index" in rest[0], "words of b" in rest[1], "words of a" in rest[-1]] == [True] * 3
    assert "unfolded" in rest[LONG]
    assert [entry.title for entry in book.outline] == ["Contents", "Page index", "Page b", "Page a"]
    assert [book.get_destination_page_number(entry) for entry in book.outline] == [0, 2, 3, 6]
