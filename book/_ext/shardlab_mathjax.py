"""The parts of MathJax that typeset formulas without a network, out of an installed wheel.

Without Jupyter Book 1: it goes, as mystmd typesets formulas with KaTeX.
"""

import shutil
from importlib import metadata
from pathlib import Path

WHEEL = "sphinx-mathjax-offline"  # its top folder has its name
FONTS = Path("output") / "chtml" / "fonts" / "woff-v2"
WHOLE = "tex-chtml.js"  # with a menu that is two fifths of it
PARTS = "startup.js", "core.js", "input/tex.js", "output/chtml.js", "output/chtml/fonts/tex.js", "a11y/assistive-mml.js"


def copied(static: Path, names: tuple[str, ...] = (WHOLE,)) -> str:
    """Copy files of it below a folder of static files; return the path of the first, for Sphinx's `mathjax_path`."""
    mathjax = Path(str(metadata.distribution(WHEEL).locate_file(f"{WHEEL}/static/mathjax")))
    shutil.copytree(mathjax / FONTS, static / "mathjax" / FONTS)
    for name in names:
        (static / "mathjax" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(mathjax / name, static / "mathjax" / name)
    return f"mathjax/{names[0]}"
