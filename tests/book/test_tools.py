"""The site as one zip file and as one PDF, tried on a site of three small pages."""

from __future__ import annotations

import base64
import os
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import archive
import drawings
import pdf
import picture
import pytest
from pypdf import PdfReader

from shardlab.explorers import title

TOC = {"root": "book/index", "parts": [{"caption": "Limits", "chapters": [{"file": "book/b"}, {"file": "book/a"}]}]}
SETTINGS = {"title": "Many Sheets", "author": "Somebody"}
LONG = 3  # sheets of page b


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
    first = archive.pack(small, tmp_path / "x.zip").read_bytes()
    os.utime(small / "book" / "a.html", (0, 0))
    assert archive.pack(small, tmp_path / "x.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "x.zip") as packed:
        assert packed.namelist() == ["x/book/a.html", "x/book/b.html", "x/book/index.html"]
        assert packed.read("x/book/a.html") == (small / "book" / "a.html").read_bytes()


def test_the_pdf_has_a_title_contents_and_all_pages_in_order(small: Path, tmp_path: Path, browser: Any) -> None:
    book = PdfReader(pdf.make(browser, small, tmp_path / "x.pdf", TOC, SETTINGS))
    title, contents, *rest = [" ".join(page.extract_text().split()) for page in book.pages]
    assert title == "Many Sheets Somebody"
    assert book.xref_objStm, "lists and dictionaries lie in compressed streams"
    assert contents == "Contents Page index 3 Limits Page b 4 Page a 7 2"  # its own number comes last
    assert [sheet.split()[-1] for sheet in rest] == ["3", "4", "5", "6", "7"]
    assert ["words of index" in rest[0], "words of b" in rest[1], "words of a" in rest[-1]] == [True] * 3
    assert "unfolded" in rest[LONG]
    chapters = [entry for entry in book.outline if not isinstance(entry, list)]  # a list: the headings of a chapter
    assert [entry.title for entry in chapters] == ["Contents", "Page index", "Page b", "Page a"]
    assert [book.get_destination_page_number(entry) for entry in chapters] == [0, 2, 3, 6]


def test_the_pdf_keeps_the_tags_of_every_page(small: Path, tmp_path: Path, browser: Any) -> None:
    book = PdfReader(pdf.make(browser, small, tmp_path / "x.pdf", TOC, SETTINGS))
    root = book.root_object["/StructTreeRoot"]
    known = dict(pdf.numbered(root["/ParentTree"]))
    for page in book.pages[2:]:  # the title and the contents have no tags
        tags = [tag.get_object() for tag in known[page["/StructParents"]]]
        assert {tag["/Pg"].indirect_reference for tag in tags} == {page.indirect_reference}
    assert book.root_object["/MarkInfo"]["/Marked"]
    firsts = [next(kids(tag, "/H1")) for tag in kids(root, "/Document")]
    assert len(firsts) == len(list(pdf.contents(TOC)))


def kids(tag: Any, kind: str) -> Iterator[Any]:
    """The tags of a kind right below a tag."""
    found = [kid.get_object() for kid in tag["/K"]]
    return (kid for kid in found if kid["/S"] == kind)


def test_the_pixels_of_a_drawing_are_those_of_its_svg(tmp_path: Path, browser: Any) -> None:
    drawing = tmp_path / "half.svg"
    half = '<rect width="10" height="10"/>'
    drawing.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 20 10">{half}</svg>')
    png = drawings.pixels(browser, drawing)
    assert struct.unpack(">II", png[16:24]) == (1400, 700)
    assert drawings.source(drawing) in png
    tab = browser.new_page()
    tab.set_content(f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}">')
    alphas = tab.locator("img").evaluate("""async (image) => {
        await image.decode();
        const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
        canvas.canvas.width = image.naturalWidth;
        canvas.drawImage(image, 0, 0);
        return [100, 1300].map((x) => canvas.getImageData(x, 50, 1, 1).data[3]);
    }""")
    assert alphas == [255, 0]  # the black half, and the ground


def test_every_drawing_has_its_pixels() -> None:
    """python tools/drawings.py makes them anew after a change."""
    for drawing in drawings.IMAGES.glob("*.svg"):
        assert drawings.source(drawing) in drawing.with_suffix(".png").read_bytes(), drawing.name


def test_the_picture_of_the_readme_says_what_the_title_page_says() -> None:
    """python tools/picture.py makes it anew after a change."""
    assert picture.says(title.Cuts()) in picture.TARGET.read_bytes()


def test_the_picture_of_a_step_is_drawn_and_says_what_it_shows(browser: Any) -> None:
    png = picture.pixels(browser, title.Cuts())
    width, height = struct.unpack(">II", png[16:24])
    assert width == picture.WIDTH * picture.SCALE < 2.1 * height
    assert picture.says(title.Cuts()) in png
