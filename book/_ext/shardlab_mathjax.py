"""The part of MathJax that typesets formulas without a network, out of an installed wheel."""

import shutil
from importlib import metadata
from pathlib import Path

WHEEL = "sphinx-mathjax-offline"  # its top folder has its name
FONTS = Path("output") / "chtml" / "fonts" / "woff-v2"


def copied(static: Path) -> str:
    """Copy it below a folder of static files, and return the path that Sphinx's `mathjax_path` wants."""
    mathjax = Path(str(metadata.distribution(WHEEL).locate_file(f"{WHEEL}/static/mathjax")))
    shutil.copytree(mathjax / FONTS, static / "mathjax" / FONTS)
    shutil.copy(mathjax / "tex-chtml.js", static / "mathjax")
    return "mathjax/tex-chtml.js"
