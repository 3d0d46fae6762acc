"""The parts of MathJax that typeset formulas without a network, out of an installed wheel.

Without Jupyter Book 1: it goes, as mystmd typesets formulas with KaTeX.
"""

import shutil
from importlib import metadata
from pathlib import Path

WHEEL = "sphinx-mathjax-offline"  # its top folder has its name
FONTS = Path("output") / "chtml" / "fonts" / "woff-v2"
WHOLE = "tex-chtml.js"  # with a menu that is two fifths of it
LETTERS = "output/chtml/fonts/tex.js"  # their sizes
PARTS = "startup.js", "core.js", "input/tex.js", "output/chtml.js", LETTERS, "a11y/assistive-mml.js"


def folder() -> Path:
    """Return the folder of the wheel."""
    return Path(str(metadata.distribution(WHEEL).locate_file(f"{WHEEL}/static/mathjax")))


def source(name: str) -> str:
    """Return the text of one of its files."""
    return (folder() / name).read_text(encoding="utf-8")


def copied(static: Path, names: tuple[str, ...] = (WHOLE,)) -> str:
    """Copy files of it below a folder of static files; return the path of the first, for Sphinx's `mathjax_path`."""
    mathjax = folder()
    shutil.copytree(mathjax / FONTS, static / "mathjax" / FONTS)
    for name in names:
        (static / "mathjax" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(mathjax / name, static / "mathjax" / name)
    return f"mathjax/{names[0]}"
