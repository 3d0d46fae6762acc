"""How the book is built: what fails a build, what runs again, what a page may contain; tried on a book of one page."""

from __future__ import annotations

import gzip
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import shardlab_execution
import shardlab_uses
from nbformat.v4 import new_output

from .conftest import ROOT, build_book, serving

MOST_BYTES_OF_STYLE = 40_000  # gzipped, as a server sends it
HEADER = """---
jupytext:
  text_representation: {extension: .md, format_name: myst}
kernelspec: {display_name: Python 3, language: python, name: python3}
---

# One page
"""


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's settings and extension around one page, which `write_page` writes."""
    book = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "code", book / "code", ignore=shutil.ignore_patterns("__pycache__"))
    (book / "bench" / "results").mkdir(parents=True)
    shutil.copytree(ROOT / "book" / "_ext", book / "book" / "_ext")
    shutil.copy(ROOT / "_config.yml", book)
    (book / "book" / "images").mkdir()
    for name in ("favicon.svg", "references.bib", "images/title.png"):
        shutil.copy(ROOT / "book" / name, book / "book" / name)
    (book / "requirements.txt").write_text("")
    (book / "_toc.yml").write_text("{format: jb-book, root: book/page}")
    return book


def write_page(book: Path, *parts: str) -> None:
    """A page of cells, and of paragraphs: those that begin with a capital letter, a bracket or a mark of quotation."""
    blocks = [part if re.match(r"[A-Z>\[]", part) else f"```{{code-cell}} ipython3\n{part}\n```" for part in parts]
    (book / "book" / "page.md").write_text("\n\n".join([HEADER, *blocks]) + "\n")


PROSE = ("All-reduce runs out of memory. " * 144).strip()
SEARCHED = (  # with every mark that means something to a regular expression, or to HTML
    *("tp=8", "RuntimeError: Expected all tensors", "NCCL_DEBUG=INFO", "gpt-2 xl", "Adam's", '"busbw"', "80 %"),
    *("1,024", "loss = nan", "--tensor-model-parallel-size", "<pad>", "@checked", "a&b", "/", "#", "!", "~"),
    *("-", "--", "_", "\\", "(", "[", "]", "{", "}", "^", "$", ".", "*", "+", "?", "|"),
)
TYPED = f"Readers type `{'`, `'.join(SEARCHED)}`."
CELLS = (
    "_ = open('runs', 'a').write('x')",  # it notes that it ran
    "import plotly.graph_objects as go\ngo.Figure(go.Bar(x=['a'], y=[2.5]))",
    "> What to see at $N - 1$, $\\sqrt{N}$.",
    "go.Figure(go.Bar(x=['a'], y=[2.5])).show()",
    "import ipywidgets\nipywidgets.IntSlider()",
    "print(sorted(x for x in dir() if x == 'page'))",
)


def runs(book: Path) -> int:
    return len((book / "book" / "runs").read_text())


# The builds of one page, each for all tests that look at it: a build takes seconds.


@pytest.fixture(scope="module")
def page(book: Path) -> str:
    """The first build: figures and widgets, captions, what a page loads."""
    write_page(book, PROSE, TYPED, *CELLS, "Not a caption, but", "> a quotation.")
    build_book(book)
    assert runs(book) == 1
    return (book / "_build" / "html" / "book" / "page.html").read_text()


def test_figures_and_widgets_stay_inside_the_page(page: str) -> None:
    """A figure of plain plotly becomes a block; neither it nor a widget makes the page load from another host."""
    assert page.count('class="explorer-states"') == 2
    assert "2.500" in page
    assert "[]" in page  # what runs first in the kernel leaves no name behind
    assert re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*", page) == []
    assert "cdn" not in page.split("THEBE_JS_URL")[0]


def test_a_page_loads_what_it_uses(book: Path, page: str) -> None:
    """The icons come from one font, and what is searched is loaded by the page of the search."""
    search = (book / "_build" / "html" / "search.html").read_text()
    assert "shardlab/sections.js" in search
    assert "shardlab/sections.js" not in page
    for script in ("searchtools.js", "searchindex.js", "scripts/fontawesome.js"):
        assert script not in page + search


def test_a_page_is_painted_before_anything_runs(book: Path, page: str) -> None:
    """One style sheet comes before the first paint, and no script; the formulas' scripts come last."""
    scripts = re.findall(r"<script[^>]*\bsrc=[^>]*>", page)
    assert scripts
    assert [script for script in scripts if not re.search(r"\b(defer|async)\b", script)] == []
    (early,) = re.findall(r"<link[^>]*preload[^>]*>", page.split("</article>")[1])
    assert len(re.findall("<link[^>]*preload", page)) == 1
    assert "plotly.min.js" in early
    assert "tex-chtml.js" not in page
    (style,) = re.findall(r'<link[^>]*rel="stylesheet"[^>]*href="\.\./([^"?]*)', page)
    first = (book / "_build" / "html" / style).read_bytes()
    assert len(gzip.compress(first)) < MOST_BYTES_OF_STYLE
    assert b".explorer" in first


def test_a_page_asks_for_its_text_face_before_it_has_read_its_style(book: Path, page: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.route("**/pages.css*", lambda _: None)  # which names the face, and does not come
    with serving(book / "_build" / "html") as address, tab.expect_request("**/source-sans-3-*-normal.woff2"):
        tab.goto(f"{address}/book/page.html", wait_until="commit")
    tab.close()


def test_every_formula_is_set(book: Path, page: str, browser: Any) -> None:
    tab = browser.new_page()
    tab.goto((book / "_build" / "html" / "book" / "page.html").as_uri())
    tab.evaluate("shardlabFormulas()")
    assert tab.locator(".math mjx-container mjx-assistive-mml math").count() == tab.locator(".math").count() > 0
    tab.close()


def test_tex_is_hidden_until_it_is_set_and_shown_where_nothing_sets_it(book: Path, page: str, browser: Any) -> None:
    for scripts, missing, seen in ((True, None, 0), (False, None, 1), (True, "**/mathjax/**", 1)):
        context = browser.new_context(java_script_enabled=scripts)
        tab = context.new_page()
        if missing:
            tab.route(missing, lambda route: route.abort())
        else:
            tab.route("**/formulas.js*", lambda _: None)  # does not come
        tab.goto((book / "_build" / "html" / "book" / "page.html").as_uri(), wait_until="commit")
        raw = tab.locator(".math:not([data-tex])")
        raw.wait_for(state="visible" if seen else "attached")
        assert raw.locator("visible=true").count() == seen
        context.close()


def test_a_quotation_after_a_cell_is_the_caption_of_its_figure(page: str) -> None:
    (figure,) = re.findall(r"<figure.*?</figure>", page, re.S)
    assert 'class="explorer-states"' in figure
    assert re.search(r"<figcaption>.*Fig\. 1 .*What to see at .*<span class=\"math.*</figcaption>", figure, re.S)
    assert [words.strip() for words in re.findall(r"<blockquote>\s*<div><p>(.*?)</p>", page)] == ["a quotation."]


def test_a_full_stop_stays_with_its_formula(page: str) -> None:
    assert re.search(r'<span class="together"><span class="math[^>]*>(?:(?!</?span).)*</span>\.</span>', page)


def test_the_search_finds_whatever_stands_on_a_page(book: Path, page: str, browser: Any) -> None:
    """And marks it there, and in the excerpt; no query is an error."""
    tab = browser.new_page()
    errors: list[str] = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    home = (book / "_build" / "html").as_uri()
    for query in SEARCHED:
        tab.goto(f"{home}/search.html?q={quote(query)}")
        tab.locator("ul.search li a").first.click(timeout=5000)
        tab.wait_for_url("**find=**")
        tab.locator("article mark").first.wait_for(state="attached", timeout=5000)
        assert any(mark in query for mark in tab.locator("article mark").all_inner_texts()), query
    tab.goto(f"{home}/search.html?q={quote('nowhere = [<brr>')}")
    tab.get_by_text("did not match any documents").wait_for(timeout=5000)
    assert errors == []
    tab.close()


@pytest.mark.parametrize("over", ["file", "http"])
def test_the_download_button_saves_the_notebook(book: Path, page: str, browser: Any, over: str) -> None:
    """From disk too, where a link to the file would show it as text."""
    site = book / "_build" / "html"
    (made,) = (site / "_sources").rglob("*.ipynb")
    with serving(site) as served:
        tab = browser.new_page()
        tab.goto(f"{served if over == 'http' else site.as_uri()}/book/page.html")
        with tab.expect_download() as download:
            tab.locator("a.btn-download-notebook-button").evaluate("link => link.click()")
        assert download.value.suggested_filename == made.name == "00_page.ipynb"
        assert Path(download.value.path()).read_bytes() == made.read_bytes()
        tab.close()


def test_no_inline_script_stands_twice(page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert scripts
    assert len(set(scripts)) == len(scripts)


def test_a_page_runs_again_only_when_something_it_depends_on_changed(book: Path, page: str) -> None:
    """And a warning fails the build, whatever else is right."""
    before = runs(book)
    write_page(book, "A better sentence.", *CELLS, "[Nowhere](no-such-page.md).")
    with pytest.raises(AssertionError, match="no-such-page"):
        build_book(book)
    assert runs(book) == before
    (book / "bench" / "results" / "launch.json").write_text("{}")  # which no cell of the page reads
    write_page(book, *CELLS)
    build_book(book)
    assert runs(book) == before
    with (book / "code" / "shardlab" / "explorers" / "page.py").open("a") as module:
        module.write("# changed\n")
    for _ in range(2):
        build_book(book)
        assert runs(book) == before + 1


def test_buttons_open_the_page_on_binder_and_colab_once_the_project_has_an_address(book: Path, page: str) -> None:
    """And not before. The downloaded notebook stays without outputs."""
    assert "mybinder.org" not in page
    settings = (book / "_config.yml").read_text()
    (book / "_config.yml").write_text(re.sub("^# (repository|launch_buttons):", r"\1:", settings, flags=re.MULTILINE))
    write_page(book, *CELLS)
    build_book(book)
    address = "https://mybinder.org/v2/gh/OWNER/NAME/main?urlpath=lab/tree/notebooks/00_page.ipynb"
    built = (book / "_build" / "html" / "book" / "page.html").read_text()
    assert address in built
    assert "https://colab.research.google.com/github/OWNER/NAME/blob/notebooks/00_page.ipynb" in built
    (downloaded,) = (book / "_build" / "html" / "_sources").rglob("*.ipynb")
    assert downloaded.name == "00_page.ipynb"
    assert '"outputs": []' in downloaded.read_text()
    assert "ipywidgets.IntSlider" in downloaded.read_text()
    (book / "_config.yml").write_text(settings)


def test_binder_makes_the_notebooks_that_the_button_opens_with_the_same_torch_as_everybody() -> None:
    """PyTorch is conda's there, in the build for CPUs; pip brings the rest."""
    environment, script = ((ROOT / "binder" / name).read_text() for name in ("environment.yml", "postBuild"))
    (pinned,) = re.findall(r"^torch==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert re.findall(r"pytorch-cpu=(\S+)", environment) == [pinned]
    assert "grep -v '^torch==' requirements.txt" in script
    for path in re.findall(r"tools/\S+", script):
        assert (ROOT / path).is_file()
    assert "python tools/lab.py\n" in script
    assert os.access(ROOT / "binder" / "postBuild", os.X_OK)


@pytest.mark.parametrize(
    ("cell", "cause"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("import os; os._exit(1)", "DeadKernelError: Kernel died")],
)
def test_a_failed_cell_fails_every_build(book: Path, cell: str, cause: str) -> None:
    """The log ends with its page, its code and its error, or the death of its kernel."""
    write_page(book, cell)
    for _ in range(2):
        with pytest.raises(AssertionError, match="does not build") as failed:
            build_book(book)
        end = re.sub(r"\x1b\[[\d;]*m", "", str(failed.value)).split("Look above for the cause")[1]
        told = re.search(rf"book/page\.md fails twice.*?\n *{re.escape(cell)}\n.*?{cause}", end, re.S)
        assert told, end


def test_a_cell_that_fails_for_a_moment_fails_no_build_and_no_kernel_listens_on_tcp(book: Path) -> None:
    """Its page is executed again when it is read; no kernel warns of those who could listen."""
    fails_once = "import pathlib\nseen = pathlib.Path('seen').exists()\npathlib.Path('seen').touch()\nassert seen"
    sockets = "import ipykernel\nprint(ipykernel.get_connection_info(unpack=True)['transport'], 'sockets')"
    write_page(book, fails_once, sockets)
    log = build_book(book)
    assert "book/page.md did not run at first" in log
    assert "eavesdropping" not in log
    assert "Traceback" not in log
    built = (book / "_build" / "html" / "book" / "page.html").read_text()
    assert "ipc sockets" in built


def test_a_chapter_uses_what_its_cells_import_and_the_data_beside_it(tmp_path: Path) -> None:
    """Of whatever it does not use, its outputs do not depend; they always depend on how it is executed."""
    files = {
        "book/page.md": HEADER + "```{code-cell} python\n:tags: [hide-input]\nfrom shardlab.costs import rates\n```\n",
        "book/other.md": HEADER + "```{code-cell} python\nimport importlib\n```\n",
        "book/_ext/kernel_start.py": "from shardlab import page",
        "book/_ext/shardlab_execution.py": "",
        "book/_ext/shardlab_face.py": "",
        "requirements.txt": "",
        "bench/results/zero.json": "{}",
        "code/shardlab/page.py": "",
        "code/shardlab/costs/__init__.py": "",
        "code/shardlab/costs/rates.py": "def rate():\n    from ..files import measured",
        "code/shardlab/costs/facts.csv": "",
        "code/shardlab/files/measured.py": "",
        "code/shardlab/plans/plan.py": "",
        "code/shardlab/plans/plan.csv": "",
        "code/shardlab/exercises/page/adding.py": "",
        "code/shardlab/exercises/page/__init__.py": "from . import adding",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    used = {path.relative_to(tmp_path).as_posix() for path in shardlab_uses.used(tmp_path, tmp_path / "book/page.md")}
    not_used = {"book/page.md", "book/other.md", "book/_ext/shardlab_face.py"}
    assert used == files.keys() - not_used - {"code/shardlab/plans/plan.py", "code/shardlab/plans/plan.csv"}
    assert shardlab_uses.used(tmp_path, tmp_path / "book/other.md") == {tmp_path / name for name in files}


def test_a_name_of_sources_depends_on_their_text_and_place(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    for path in (one, two):
        path.write_text("something = 1")
    seen = {shardlab_uses.digest(tmp_path, each) for each in ([], [one], [two], [one, two])}
    one.write_text("something = 2")
    assert len(seen | {shardlab_uses.digest(tmp_path, [one])}) == 5


def test_what_a_cell_prints_in_pieces_is_one_text() -> None:
    """Pieces of the other stream between them are another text; what stands after a display stays there."""
    pieces = [("stdout", "rank 0: "), ("stderr", "10 %"), ("stdout", "3, "), ("stdout", "4\n"), ("stderr", "\r20 %")]
    outputs = [new_output("stream", name=name, text=text) for name, text in pieces]
    outputs += [new_output("display_data"), new_output("stream", name="stdout", text="sum: 7\n")]
    joined = shardlab_execution.joined(outputs)
    assert [each.get("text") for each in joined] == ["rank 0: 3, 4\n", "10 %\r20 %", None, "sum: 7\n"]
