"""Sphinx extension: scripts from installed wheels, explorers, guesses, captions, whole lines, clean notebooks.

Without Jupyter Book 1: a plugin of mystmd that writes the same blocks, and files to copy.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import shardlab_mathjax
import shardlab_plotly
from docutils import nodes
from pybtex.plugin import find_plugin, register_plugin
from shardlab_notebooks import notebook, written
from shardlab_source import Book
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXPLORERS = ROOT / "code" / "shardlab" / "explorers"
COLAB = re.compile(r"blob/[^/]+$")
PUNCTUATION = re.compile(r"[.,;:!?)]+")


def add_scripts(app: Sphinx, config: Config) -> None:
    """Put plotly.js, the needed part of MathJax and the text face beside the explorers' own files."""
    config.nb_ipywidgets_js = {}  # else a page with a widget loads scripts from other hosts
    static = Path(app.outdir).parent / ".shardlab_static"
    shutil.rmtree(static, ignore_errors=True)
    (static / "shardlab").mkdir(parents=True)
    ours = [folder.glob(f"*.{kind}") for folder in (HERE, EXPLORERS) for kind in ("js", "css")]
    for path in itertools.chain(HERE.glob("fonts/*"), *ours):
        shutil.copy(path, static / "shardlab")
    plotly = shardlab_plotly.script(Path(app.outdir).parent / ".plotly")
    shutil.copy(plotly, static / "shardlab" / "plotly.min.js")
    shardlab_mathjax.copied(static, shardlab_mathjax.PARTS)
    config.mathjax_path = "shardlab/formulas.js"  # which loads it late
    config.html_static_path.append(str(static))
    app.add_css_file("shardlab/explorer.css")
    app.add_css_file("shardlab/guess.css")
    app.add_css_file("shardlab/book.css", priority=900)  # after the theme's own
    app.add_js_file("shardlab/explorer.js", defer="defer")
    app.add_js_file("shardlab/access.js", defer="defer")
    app.add_js_file("shardlab/download.js", defer="defer")
    app.add_js_file("shardlab/find.js", defer="defer")
    app.add_js_file("shardlab/guess.js", defer="defer")
    app.add_js_file("shardlab/listings.js", defer="defer")


class Captions(SphinxTransform):
    """A quotation right after a cell is the caption of what the cell shows; in a notebook it stays a quotation."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Put the cell's output and the quotation into one numbered figure."""
        for output in [x for x in self.document.findall(nodes.container) if x.get("nb_element") == "cell_code_output"]:
            quotation = output.parent.next_node(descend=False, siblings=True)
            if isinstance(quotation, nodes.block_quote):
                (words,) = quotation.children  # one paragraph
                quotation.parent.remove(quotation)
                figure = nodes.figure("", *output.children, nodes.caption(words.rawsource, "", *words.children))
                self.document.set_id(figure)
                output.children = [figure]
                figure.parent = output


class Punctuation(SphinxTransform):
    """A full stop stays on the line of the formula before it; a browser may break a line after each formula."""

    default_priority = 400

    def apply(self, **_: Any) -> None:
        """Put the formula and the marks into one part, which book.css keeps on one line."""
        for formula in [*self.document.findall(nodes.math)]:
            after = formula.next_node(descend=False, siblings=True)
            marks = PUNCTUATION.match(after) if isinstance(after, nodes.Text) else None
            if marks:
                rest = nodes.Text(after[marks.end() :])
                formula.parent.replace(after, rest)
                together = nodes.inline("", "", classes=["together"])
                formula.parent.replace(formula, together)
                together += [formula, nodes.Text(marks[0])]


@functools.cache
def book_of(root: str, site: str) -> Book:
    """The book, read once for all of its pages."""
    return Book(Path(root), site)


def offer_notebook(app: Sphinx, page: str, _: str, context: dict[str, Any], __: Any) -> None:
    """Let the download button of every page offer a notebook."""
    if page in book_of(app.srcdir, app.config.html_baseurl).names:
        context["ipynb_source"] = f"{page}.ipynb"


def write_notebook(app: Sphinx, page: str, _: str, context: dict[str, Any], __: Any) -> None:
    """Write the notebook of a page, and let the buttons lead to it; Binder makes the same with tools/lab.py."""
    book = book_of(app.srcdir, app.config.html_baseurl)
    if page not in book.names:
        return
    try:
        text = written(notebook(book, page))
    except ValueError as error:
        logging.getLogger(__name__).warning(str(error))
        return
    name, folder = book.names[page], Path(app.outdir, "_sources", page).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{Path(page).name}.ipynb").unlink(missing_ok=True)  # with outputs; the launch button put it there
    (folder / name).write_text(text)
    (folder / f"{name}.js").write_text(f"saveNotebook({json.dumps(name)}, {json.dumps(text)});\n")  # see download.js
    groups = {group.get("label"): group.get("buttons", []) for group in context["header_buttons"]}
    for button in groups["download-buttons"]:
        if button["label"] == "download-notebook-button":
            button["url"] = f"{context['pathto']('_sources', 1)}/{Path(page).parent}/{name}"
    for button in groups.get("launch-buttons", []):  # Binder makes the notebooks; Colab finds them on a branch
        root = button["url"].rpartition(f"/{page}.md")[0]
        folder = COLAB.sub("blob/notebooks", root) if COLAB.search(root) else f"{root}/notebooks"
        button["url"] = f"{folder}/{name}"


def drop_repeated_scripts(app: Sphinx, page: str, _: str, context: dict[str, Any], __: Any) -> None:
    """Keep one of each inline script: sphinx-thebe and sphinx-togglebutton add theirs twice."""
    bodies: set[str] = set()
    kept = []
    for script in context.get("script_files", []):
        body = getattr(script, "attributes", {}).get("body")
        if body is None or body not in bodies:
            kept.append(script)
        bodies.add(body)
    context["script_files"] = kept


class Labels(find_plugin("pybtex.style.labels", "alpha")):  # type: ignore[misc]
    """Label works such as NSC+21a, with the letter that tells two of the same authors and year apart.

    The letter is part of the year in the bibliography's file, so citations in pages and notebooks have it, too.
    """

    def format_label(self, entry: Any) -> str:
        """Join the authors' initials with the year's digits and letter; pybtex takes its last two characters."""
        return str(super().format_label(entry)[:-2] + entry.fields["year"][2:])


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; the priorities put it before myst-nb and around the theme."""
    register_plugin("pybtex.style.labels", "alpha", Labels, force=True)
    app.setup_extension("shardlab_access")
    app.setup_extension("shardlab_cells")
    app.setup_extension("shardlab_drawings")
    app.setup_extension("shardlab_execution")
    app.setup_extension("shardlab_face")
    app.setup_extension("shardlab_light")
    app.setup_extension("shardlab_listings")
    app.setup_extension("shardlab_reading")
    app.setup_extension("shardlab_reference")
    app.setup_extension("shardlab_search")
    app.setup_extension("shardlab_statements")
    app.setup_extension("shardlab_tables")
    app.setup_extension("shardlab_words")
    app.add_transform(Captions)
    app.add_transform(Punctuation)
    app.connect("config-inited", add_scripts, priority=100)
    app.connect("html-page-context", offer_notebook, priority=400)
    app.connect("html-page-context", write_notebook, priority=600)
    app.connect("html-page-context", drop_repeated_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
