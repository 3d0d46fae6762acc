"""Sphinx extension: pages load what they use, and paint before they run anything.

The theme gives each page its icons twice, and Sphinx its own search. Scripts of the head wait until the page is read.

Without Jupyter Book 1: it goes with the theme.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import shardlab_styles
from shardlab_formulas import legible
from sphinx.application import Sphinx

ICONS = "scripts/fontawesome.js"  # the same icons as in the web font of its style sheet
NEEDLESS = ICONS, "searchtools.js", "language_data.js", "sphinx-thebe.js"
SCRIPT = r'\s*<script [^>]*src="[./]*{}[^>]*></script>'
EARLY = re.compile(r'\s*<link rel="preload" as="script"[^>]*>')  # these run last
WAITS = re.compile(r"<script (?!defer|async)(?=[^>]*\bsrc=)")
EXPLORERS = re.compile(r'src="([./]*_static/shardlab/)explorer\.js')
DRAWS = '<link rel="preload" as="script" fetchpriority="low" href="{}plotly.min.js">\n</body>'
OPTIONS = re.compile(SCRIPT.format(re.escape("_static/documentation_options.js")))  # a script in the page adds to them
FACE = "_static/shardlab/source-sans-3-latin-wght-normal.woff2"
ASKS = """<script>location.protocol === "file:" || document.head.append(Object.assign(document.createElement("link"),
  { rel: "preload", as: "font", type: "font/woff2", crossOrigin: "", href: "%s" }));</script>
"""
FORMULA = re.compile(r'(<span class="math notranslate nohighlight")>(\\\([^<]*\\\))</span>')


def ask_for_face(_app: Sphinx, _page: str, _template: str, context: dict[str, Any], _document: Any) -> None:
    """Load the text face beside the style sheet that names it, so that no text moves; from disk that is an error."""
    context["metatags"] = context.get("metatags", "") + ASKS % context["pathto"](FACE, 1)


def lighten(app: Sphinx, error: Exception | None) -> None:
    """Take out of each page what it does not use; let what remains wait for the first paint, or be one file."""
    if error is not None or app.builder.format != "html":
        return
    site = Path(app.outdir)
    options = (site / "_static" / "documentation_options.js").read_text(encoding="utf-8")
    pages = {path: light(path.read_text(encoding="utf-8"), options) for path in site.rglob("*.html")}
    style = shardlab_styles.written(site / "_static", pages.values())
    for path, text in pages.items():
        path.write_text(shardlab_styles.linked(text, style), encoding="utf-8")


def light(page: str, options: str) -> str:
    """Return a page whose scripts are those it uses, none of which blocks its first paint.

    A page with figures loads plotly.js last, on a phone too: of what it waits for, only its figures need that.
    """
    for script in ("searchindex.js", *(f"_static/{name}" for name in NEEDLESS)):
        page = re.sub(SCRIPT.format(re.escape(script)), "", page)
    page = OPTIONS.sub(lambda _: f"\n<script>{options}</script>", EARLY.sub("", page))
    if 'class="explorer"' in page and (files := EXPLORERS.search(page)):
        page = page.replace("</body>", DRAWS.format(files[1]))
    return WAITS.sub("<script defer ", FORMULA.sub(legible, page))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("html-page-context", ask_for_face)
    app.connect("build-finished", lighten, priority=900)  # after the theme has written pygments.css
    return {"parallel_read_safe": True, "parallel_write_safe": True}
