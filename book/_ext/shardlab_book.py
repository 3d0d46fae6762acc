"""Sphinx extension: scripts from installed wheels, explorers, guesses, captions, whole lines, clean notebooks."""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.transforms import SphinxTransform

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXPLORERS = ROOT / "code" / "shardlab" / "explorers"
PUNCTUATION = re.compile(r"[.,;:!?)]+")
# The search page fetches the pages it found to show a line of each; from disk a browser does not allow that.
SEARCH_FROM_DISK = 'if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;'


def add_scripts(app: Sphinx, config: Config) -> None:
    """Copy plotly.js and the needed part of MathJax out of their wheels, beside the explorers' own files."""
    config.nb_ipywidgets_js = {}  # else a page with a widget loads scripts from other hosts
    static = Path(app.outdir).parent / ".shardlab_static"
    shutil.rmtree(static, ignore_errors=True)
    (static / "shardlab").mkdir(parents=True)
    plotly = wheel_file("plotly", "package_data/plotly.min.js")
    for path in (*EXPLORERS.glob("*.js"), *EXPLORERS.glob("*.css"), HERE / "book.css", plotly):
        shutil.copy(path, static / "shardlab")
    mathjax = wheel_file("sphinx-mathjax-offline", "static/mathjax")
    (static / "mathjax").mkdir()
    shutil.copy(mathjax / "tex-chtml.js", static / "mathjax")
    fonts = Path("output") / "chtml" / "fonts" / "woff-v2"
    shutil.copytree(mathjax / fonts, static / "mathjax" / fonts)
    config.mathjax_path = "mathjax/tex-chtml.js"
    config.html_static_path.append(str(static))
    app.add_css_file("shardlab/explorer.css")
    app.add_css_file("shardlab/guess.css")
    app.add_css_file("shardlab/book.css", priority=900)  # after the theme's own
    app.add_js_file("shardlab/explorer.js", defer="defer")
    app.add_js_file("shardlab/guess.js", defer="defer")
    app.add_js_file(None, body=SEARCH_FROM_DISK)


def wheel_file(package: str, path: str) -> Path:
    """A file of an installed wheel whose top folder is named like the wheel."""
    return Path(str(metadata.distribution(package).locate_file(f"{package}/{path}")))


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


def offer_notebook(app: Sphinx, page: str, _: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the download button of an executed MyST page offer it as a notebook."""
    if is_notebook(app, page, doctree):
        context["ipynb_source"] = f"{page}.ipynb"


def write_notebook(app: Sphinx, page: str, _: str, __: dict[str, Any], doctree: Any) -> None:
    """Write that notebook, without outputs; the theme's launch button has put one with outputs there."""
    if is_notebook(app, page, doctree):
        notebook = jupytext.read(Path(app.srcdir) / f"{page}.md", fmt="md:myst")
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook.metadata = nbformat.from_dict({"kernelspec": kernel})
        target = Path(app.outdir) / "_sources" / f"{page}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)


def is_notebook(app: Sphinx, page: str, doctree: Any) -> bool:
    """Whether a page of the site is made from a MyST file with cells."""
    cells = doctree is not None and "kernelspec" in app.env.metadata.get(page, {})
    return cells and (Path(app.srcdir) / f"{page}.md").exists()


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


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; the priorities put it before myst-nb and around the theme."""
    app.setup_extension("shardlab_execution")
    app.setup_extension("shardlab_reading")
    app.add_transform(Captions)
    app.add_transform(Punctuation)
    app.connect("config-inited", add_scripts, priority=100)
    app.connect("html-page-context", offer_notebook, priority=400)
    app.connect("html-page-context", write_notebook, priority=600)
    app.connect("html-page-context", drop_repeated_scripts, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
