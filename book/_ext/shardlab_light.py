"""Sphinx extension: pages load what they use. The theme gives each its icons twice, and Sphinx its own search."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

ICONS = "_static/scripts/fontawesome.js"  # the same icons as in the web font of its style sheet
NEEDLESS = ICONS, "_static/searchtools.js", "_static/language_data.js", "searchindex.js"


def lighten(app: Sphinx, error: Exception | None) -> None:
    """Take the scripts that a page does not use out of it."""
    if error is None and app.builder.format == "html":
        for page in Path(app.outdir).rglob("*.html"):
            text = page.read_text(encoding="utf-8")
            for script in map(re.escape, NEEDLESS):
                text = re.sub(rf'\s*<script [^>]*src="[./]*{script}[^>]*></script>', "", text)
            page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.connect("build-finished", lighten)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
