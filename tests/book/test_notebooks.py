"""The book as notebooks: whole, without outputs, the same from build to build; and a learner's folder of them, in which
nothing is ever lost."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import nbformat
import pytest
import shardlab_notebooks as notebooks
from markdown_it import MarkdownIt
from shardlab_book import Labels
from shardlab_markdown import cited
from shardlab_source import Book, Place

from .conftest import ROOT

BOOK = Book(ROOT)
PAGES = {Path(page).name: page for page in BOOK.names}
MYST = re.compile(r"\{[\w:-]+\}`|^ *(```+|:::+)\{|^:::|^\(\S+\)=$|^ *:\w+: |\]\{\.", re.MULTILINE)
CODE = re.compile(r"^( *)(`{3,})[^`{]*\n.*?^\1\2$|(`+)[^`].*?\3", re.MULTILINE | re.DOTALL)
PLAIN = MarkdownIt("gfm-like", {"linkify": False})


@pytest.fixture(scope="module")
def made() -> dict[str, nbformat.NotebookNode]:
    """The notebook of every page, by the last part of its name."""
    return {stem: notebooks.notebook(BOOK, page) for stem, page in PAGES.items()}


def words(notebook: nbformat.NotebookNode) -> str:
    """The text of the notebook's paragraphs, without code."""
    return CODE.sub("", "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"))


def links(notebook: nbformat.NotebookNode) -> Iterator[str]:
    for cell in (cell for cell in notebook.cells if cell.cell_type == "markdown"):
        tokens = [each for token in PLAIN.parse(cell.source) for each in token.children or []]
        yield from (str(each.attrs["href"]) for each in tokens if each.type == "link_open")


@pytest.mark.parametrize("stem", PAGES)
def test_a_page_is_a_valid_notebook_without_outputs_and_without_any_myst(stem: str, made: dict[str, Any]) -> None:
    notebook, source = made[stem], BOOK.path(PAGES[stem]).read_text()
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert sum(cell.cell_type == "code" for cell in notebook.cells) == source.count("```{code-cell}")
    assert MYST.findall(words(notebook)) == []


@pytest.mark.parametrize("stem", PAGES)
def test_listings_drawings_citations_and_answers_are_in_the_notebook(stem: str, made: dict[str, Any]) -> None:
    text, source = words(made[stem]), BOOK.path(PAGES[stem]).read_text()
    everything = "\n".join(cell.source for cell in made[stem].cells)
    listings = re.findall(r"^\*\*`[\w/]+\.py`\*\*\n\n```python\n(?!```)", everything, re.MULTILINE)
    assert len(listings) == source.count("{literalinclude}")
    drawings = [base64.b64decode(each) for each in re.findall(r'<img [^>]*alt="[^"]{20,}"[^>]*;base64,(.*)">', text)]
    names = [name.replace(".svg", ".png") for name in re.findall(r"\{figure\} (\S+)", source)]
    assert drawings == [(ROOT / "book" / name).read_bytes() for name in names]
    assert text.count("<details>\n<summary>") == text.count("</details>") == source.count(":class: dropdown")
    cited = sum(len(keys.split(",")) for keys in re.findall(r"\{cite(?::t)?\}`(.*?)`", source))
    assert len(re.findall(r"\[[^][]*\b(?:19|20)\d\d[a-z]?\]\(https?://", text)) >= cited


def test_two_works_of_the_same_authors_and_year_are_told_apart_by_a_letter(made: dict[str, Any]) -> None:
    """In notebooks, and in pages, which print the same authors and the same field."""
    printed = [shown for key in BOOK.works for shown in cited("cite", key, Place(BOOK, "book/pipeline"))]
    authors_and_years = [each.partition("](")[0] for each in printed]
    assert len(set(authors_and_years)) == len(printed) > 50
    assert "2021a](" in words(made["pipeline"])
    assert "2021b](" in words(made["pipeline"])


@pytest.mark.parametrize("key", ["narayanan2021", "narayanan2021b", "li2020"])
def test_a_label_of_the_bibliography_ends_with_the_whole_year(key: str) -> None:
    entry = BOOK.works[key]
    assert Labels().format_label(entry).endswith(entry.fields["year"][2:])
    assert re.fullmatch(r"[A-Z]+\+?\d\d[a-z]?", Labels().format_label(entry))


@pytest.mark.parametrize("stem", PAGES)
def test_links_lead_to_notebooks_that_exist(stem: str, made: dict[str, Any]) -> None:
    for address in links(made[stem]):
        if not address.startswith(("https://", "http://")):
            target = address.partition("#")[0]
            assert target in BOOK.names.values() or (ROOT / "notebooks" / target).resolve().is_file(), address


def test_the_same_source_gives_the_same_bytes(made: dict[str, Any]) -> None:
    again = Book(ROOT)
    for stem, page in PAGES.items():
        assert notebooks.written(notebooks.notebook(again, page)) == notebooks.written(made[stem])


def test_with_an_address_links_lead_to_the_pages_there() -> None:
    book = Book(ROOT, "https://example.org/book/")
    found = notebooks.notebook(book, "book/index")
    assert "https://example.org/book/book/memory.html" in set(links(found))


def test_with_an_address_a_link_to_a_file_leads_to_where_the_page_has_it(site: Path) -> None:
    address = "https://example.org/"
    found = set(links(notebooks.notebook(Book(ROOT, address), "book/operations")))
    files = [each.removeprefix(address) for each in found if "_downloads" in each]
    assert files
    assert all((site / file).is_file() for file in files)


# ---- a book of two pages, to change ---------------------------------------------------------------------------------

PAGE = """\
# One

Text with {cite}`li2020`, $\\{cite\\}$, `{cite}` and [two](two.md).

```{code-cell} python
:tags: [hide-input]

1 + 1
```

```{admonition} Why?
:class: dropdown

Because of {cite:t}`li2020,brown2020`.
```
"""


@pytest.fixture
def book(tmp_path: Path) -> Book:
    (tmp_path / "book").mkdir()
    shutil.copy(ROOT / "_config.yml", tmp_path)
    shutil.copy(ROOT / "book" / "references.bib", tmp_path / "book")
    (tmp_path / "book" / "one.md").write_text(PAGE)
    (tmp_path / "book" / "two.md").write_text("# Two\n")
    return number(tmp_path, "one", "two")


def number(root: Path, *stems: str) -> Book:
    """The book of `root` with these chapters in this order."""
    first, *others = (f"book/{stem}" for stem in stems)
    (root / "_toc.yml").write_text(f"format: jb-book\nroot: {first}\nchapters: {[{'file': each} for each in others]}")
    return Book(root)


def test_a_page_in_markdown(book: Book) -> None:
    text, code, answer = notebooks.notebook(book, "book/one").cells
    li, brown = "https://arxiv.org/abs/2006.15704", "https://arxiv.org/abs/2005.14165"
    assert text.source.split("\n\n") == [
        "# One",
        f"Text with [[Li *et al.*, 2020]({li})], $\\{{cite\\}}$, `{{cite}}` and [two](01_two.ipynb).",
    ]
    assert code.metadata["jupyter"] == {"source_hidden": True}
    assert answer.source == (
        "<details>\n<summary><b>Why?</b></summary>\n\n"
        f"Because of Li *et al.* [[2020]({li})], Brown *et al.* [[2020]({brown})].\n\n</details>"
    )


def test_what_a_page_folds_is_folded_as_jupyterlab_saves_it() -> None:
    assert notebooks.folded(["hide-cell"]) == {
        "jupyter": {"outputs_hidden": True, "source_hidden": True},
        "collapsed": True,
        "cellView": "form",
    }
    assert notebooks.folded(["raises-exception"]) == {}


@pytest.mark.parametrize(
    ("wrong", "line", "what"),
    [
        ("```{mermaid}\na\n```", 17, "directive mermaid"),
        ("Some\n{ref}`one`.", 18, "role ref"),
        ("Some {cite}`nobody1999`.", 17, "nobody1999"),
        ("```{literalinclude} none.py\n```", 17, "no file none.py"),
        ("```{literalinclude} one.md\n:lines: none\n```", 17, "literalinclude of one.md"),
        ("```{figure} none.svg\n:alt: nothing\n```", 17, "no file none.svg"),
        ("```{tip}\nFine.\n\n{ref}`one`\n```", 20, "role ref"),
        ("[Three](three.md)", 17, "three.md"),
        ("A note.[^1]\n\n[^1]: Here.", 17, "footnote"),
        ("% a comment", 17, "comment"),
        ("- a list\n  {ref}`one`", 18, "role ref"),
    ],
)
def test_what_has_no_form_in_a_notebook_is_an_error_with_page_and_line(
    book: Book, wrong: str, line: int, what: str
) -> None:
    (book.root / "book" / "one.md").write_text(f"{PAGE}\n{wrong}\n")
    with pytest.raises(ValueError, match=f"book/one.md, line {line}: .*{what}"):
        notebooks.notebook(book, "book/one")


# ---- the learner's folder -------------------------------------------------------------------------------------------


def update(book: Book) -> list[str]:
    return list(lab.update(book, book.root / "notebooks"))


def folder(book: Book) -> set[str]:
    return {path.name for path in (book.root / "notebooks").iterdir()}


def answer(book: Book, name: str, cell: str = "my answer") -> str:
    """Change a notebook as a learner does; return what is in its file."""
    path = book.root / "notebooks" / name
    found = nbformat.read(path, as_version=4)
    found.cells.append(nbformat.v4.new_code_cell(cell))
    nbformat.write(found, path)
    return path.read_text()


def rewrite(book: Book, words: str) -> None:
    (book.root / "book" / "one.md").write_text(f"{PAGE}\n{words}\n")


def test_what_nobody_touched_is_brought_up_to_date(book: Book) -> None:
    assert update(book) == []
    path = book.root / "notebooks" / "00_one.ipynb"
    saved = nbformat.read(path, as_version=4)
    saved.metadata.language_info.version = "3.99"  # saved, folded and run where nothing is shown: still untouched
    saved.cells[1].execution_count = 1
    saved.cells[1].metadata.collapsed = True
    nbformat.write(saved, path)
    rewrite(book, "A better sentence.")
    assert update(book) == []
    assert "A better sentence." in path.read_text()
    assert folder(book) == {"00_one.ipynb", "01_two.ipynb"}


def test_a_changed_notebook_stays_and_newer_editions_come_beside_it(book: Book) -> None:
    update(book)
    mine = answer(book, "00_one.ipynb")
    assert update(book) == []  # the book has not changed
    rewrite(book, "A second edition.")
    (said,) = update(book)
    assert "00_one.ipynb is kept" in said
    assert "00_one_edition_2.ipynb" in said
    newer = nbformat.read(book.root / "notebooks" / "00_one_edition_2.ipynb", as_version=4)
    assert "newer edition" in newer.cells[0].source
    assert "(00_one.ipynb)" in newer.cells[0].source
    assert update(book) == []
    rewrite(book, "A third edition.")  # replaces the second, which nobody has touched
    update(book)
    assert folder(book) == {"00_one.ipynb", "00_one_edition_2.ipynb", "01_two.ipynb"}
    second = answer(book, "00_one_edition_2.ipynb")
    rewrite(book, "A fourth edition.")
    update(book)
    kept = [(book.root / "notebooks" / name).read_text() for name in ("00_one.ipynb", "00_one_edition_2.ipynb")]
    assert kept == [mine, second]
    assert "A fourth edition." in (book.root / "notebooks" / "00_one_edition_3.ipynb").read_text()


def test_an_output_is_a_change_too(book: Book) -> None:
    update(book)
    path = book.root / "notebooks" / "00_one.ipynb"
    found = nbformat.read(path, as_version=4)
    found.cells[1].outputs = [nbformat.v4.new_output("stream", text="2")]
    nbformat.write(found, path)
    rewrite(book, "A second edition.")
    assert len(update(book)) == 1


CHANGES: dict[str, Any] = {
    "a picture": lambda found: found.cells[0].update(attachments={"x.png": {"image/png": "eA=="}}),
    "a tag": lambda found: found.cells[1].metadata.update(tags=["mine"]),
    "an entry of the notebook": lambda found: found.metadata.update(title="Mine"),
    "words in the note": lambda found: found.cells[0].update(source=f"{found.cells[0].source}\nMY NOTES"),
    "a note of one's own": lambda found: found.cells[0].update(source="MY NOTES"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_learner_has_changed_is_kept(change: str, book: Book) -> None:
    update(book)
    answer(book, "00_one.ipynb")
    rewrite(book, "A second edition.")
    update(book)
    path = book.root / "notebooks" / "00_one_edition_2.ipynb"
    found = nbformat.read(path, as_version=4)
    CHANGES[change](found)
    nbformat.write(found, path)
    mine = path.read_text()
    rewrite(book, "A third edition.")
    (said,) = update(book)
    assert said == "00_one.ipynb is kept with your changes; the newer edition is 00_one_edition_3.ipynb"
    assert path.read_text() == mine


UNREADABLE = [
    *(b"null", b"[]", b"{}", b"[" * 100_000, b"", b"\xff", '{"cells": []}'.encode("utf-16"), b"1" * 9999),
    *(b'{"nbformat": 4, "nbformat_minor": 5, "cells": null, "metadata": {}}', b'{"nbformat": 99, "cells": []}'),
    b'{"nbformat": 4, "nbformat_minor": 5, "cells": [], "metadata": {"shardlab": null}}',
    b'{"nbformat": 4, "nbformat_minor": 5, "cells": [7], "metadata": {"shardlab": {"page": 1, "edition": []}}}',
    *("a folder", "a link to itself", "a link that leads nowhere"),
]


@pytest.mark.parametrize("what", UNREADABLE, ids=lambda what: str(what[:40]))
def test_what_cannot_be_read_is_named_and_stops_nothing(what: bytes | str, book: Book) -> None:
    (book.root / "notebooks").mkdir()
    for name in ("00_one.ipynb", "07_old.ipynb"):
        path = book.root / "notebooks" / name
        if isinstance(what, bytes):
            path.write_bytes(what)
        elif what == "a folder":
            path.mkdir()
        else:
            path.symlink_to(name if "itself" in what else "nowhere")
    old = "07_old.ipynb is kept and cannot be read; the book has no such chapter any more"
    assert update(book) == ["00_one.ipynb is kept and cannot be read; the newer edition is 00_one_edition_2.ipynb", old]
    assert update(book) == [old]
    assert folder(book) == {"00_one.ipynb", "00_one_edition_2.ipynb", "01_two.ipynb", "07_old.ipynb"}
    moved, _ = lab.reset(book, book.root / "notebooks", "one")
    assert "your version is now 00_one_2" in moved
    assert not isinstance(what, bytes) or (book.root / "notebooks" / moved.split()[-1]).read_bytes() == what


def test_each_reset_keeps_its_version_under_a_name_of_its_own(book: Book) -> None:
    update(book)
    mine = []
    for number in range(3):
        mine.append(answer(book, "00_one.ipynb", f"answer {number}"))
        assert len(list(lab.reset(book, book.root / "notebooks", "one"))) == 2
    kept = [path.read_text() for path in (book.root / "notebooks").glob("00_one_2*.ipynb")]
    assert sorted(kept) == sorted(mine)


def test_when_chapters_move_answers_stay_and_untouched_notebooks_move_along(book: Book) -> None:
    update(book)
    mine = answer(book, "01_two.ipynb")
    (book.root / "book" / "one.md").write_text("# One, which links to nothing\n")
    shutil.copy(book.root / "book" / "two.md", book.root / "book" / "new.md")
    (said,) = update(number(book.root, "one", "new", "two"))
    assert said == "01_two.ipynb is kept with your changes; the chapter is now 02_two.ipynb"
    assert folder(book) == {"00_one.ipynb", "01_new.ipynb", "01_two.ipynb", "02_two.ipynb"}
    assert (book.root / "notebooks" / "01_two.ipynb").read_text() == mine
    (said,) = update(number(book.root, "new", "one"))
    assert said == "01_two.ipynb is kept with your changes; the book has no such chapter any more"
    assert folder(book) == {"00_new.ipynb", "01_one.ipynb", "01_two.ipynb"}


def test_reset_makes_a_chapter_fresh_and_keeps_what_was_there(book: Book) -> None:
    update(book)
    fresh = (book.root / "notebooks" / "00_one.ipynb").read_text()
    mine = answer(book, "00_one.ipynb")
    moved, made = lab.reset(book, book.root / "notebooks", "one")
    assert made == "00_one.ipynb is fresh"
    (kept,) = re.findall(r"00_one_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d\.ipynb", moved)
    assert (book.root / "notebooks" / kept).read_text() == mine
    assert (book.root / "notebooks" / "00_one.ipynb").read_text() == fresh
    assert update(book) == []  # and that one is nobody's business any more
    assert kept in folder(book)
    assert list(lab.reset(book, book.root / "notebooks", "one")) == ["00_one.ipynb is fresh"]  # nothing to keep
    with pytest.raises(ValueError, match="no chapter 'three'; there are one, two"):
        list(lab.reset(book, book.root / "notebooks", "three"))


def test_a_file_of_the_learner_with_the_name_of_a_chapter_is_not_overwritten(book: Book) -> None:
    (book.root / "notebooks").mkdir()
    for text in ("not a notebook", nbformat.writes(nbformat.v4.new_notebook())):
        path = book.root / "notebooks" / "00_one.ipynb"
        path.write_text(text)
        (said,) = update(book)
        assert "00_one_edition_2.ipynb" in said
        assert path.read_text() == text
        (book.root / "notebooks" / "00_one_edition_2.ipynb").unlink()
