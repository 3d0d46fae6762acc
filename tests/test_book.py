"""How the book is built: what fails a build, what runs again, what a page may contain; tried on a book of one page."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest

from .conftest import ROOT, build_book

HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# One page
"""


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """The project's settings and extension around one page, which `write_page` writes."""
    shutil.copytree(ROOT / "code", tmp_path / "code", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "bench" / "results").mkdir(parents=True)
    shutil.copytree(ROOT / "book" / "_ext", tmp_path / "book" / "_ext")
    shutil.copy(ROOT / "_config.yml", tmp_path)
    for name in ("favicon.svg", "references.bib"):
        shutil.copy(ROOT / "book" / name, tmp_path / "book")
    (tmp_path / "requirements.txt").write_text("")
    (tmp_path / "_toc.yml").write_text("{format: jb-book, root: book/page}")
    return tmp_path


def write_page(book: Path, *cells: str, prose: str = "") -> None:
    code = "\n\n".join(f"```{{code-cell}} ipython3\n{cell}\n```" for cell in cells)
    (book / "book" / "page.md").write_text(f"{HEADER}\n{prose}\n\n{code}\n")


def page_of(book: Path) -> str:
    return (book / "_build" / "html" / "book" / "page.html").read_text()


def test_a_failed_cell_fails_every_build(book: Path) -> None:
    write_page(book, "1 / 0")
    for _ in range(2):
        with pytest.raises(AssertionError, match="ZeroDivisionError"):
            build_book(book)


def test_a_warning_fails_the_build(book: Path) -> None:
    write_page(book, prose="[nowhere](no-such-page.md)")
    with pytest.raises(AssertionError, match="no-such-page"):
        build_book(book)


def test_a_page_runs_again_only_when_something_it_depends_on_changed(book: Path) -> None:
    runs = book / "book" / "runs"

    def build() -> int:
        build_book(book)
        return len(runs.read_text())

    cell = "_ = open('runs', 'a').write('x')"
    write_page(book, cell)
    assert build() == 1
    assert build() == 1
    write_page(book, cell, prose="A better sentence.")
    assert build() == 1
    (book / "bench" / "results" / "launch.json").write_text("{}")
    assert build() == 2
    assert len(list((book / "_build" / ".jupyter_cache").iterdir())) == 1  # the stale cache is gone


def test_figures_and_widgets_stay_inside_the_page(book: Path) -> None:
    """A figure of plain plotly becomes a block; neither it nor a widget makes the page load from another host."""
    figure = "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['a'], y=[2.5]))"
    shown = "import ipywidgets\nipywidgets.IntSlider()"
    write_page(book, figure, f"{figure}.show()", shown, "print(sorted(x for x in dir() if x == 'page'))")
    build_book(book)
    page = page_of(book)
    assert page.count('class="explorer-states"') == 2
    assert "2.500" in page
    assert "[]" in page  # what runs first in the kernel leaves no name behind
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*", page) == []
    assert "cdn" not in page.split("THEBE_JS_URL")[0]


def test_no_inline_script_stands_twice(book: Path) -> None:
    write_page(book, "pass")
    build_book(book)
    scripts = re.findall(r"<script>(.*?)</script>", page_of(book), re.S)
    assert scripts
    assert len(set(scripts)) == len(scripts)


def test_the_cache_depends_on_code_results_and_pinned_versions(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("shardlab_book", ROOT / "book" / "_ext" / "shardlab_book.py")
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    seen = {extension.digest(tmp_path)}
    for name in ("code/shardlab/costs/new.py", "bench/results/new.json", "requirements.txt", "book/_ext/new.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("something = 1")
        seen.add(extension.digest(tmp_path))
    assert len(seen) == 5
    (tmp_path / "book" / "page.md").write_text("Prose has a cache of its own.")
    assert extension.digest(tmp_path) in seen
