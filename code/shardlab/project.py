"""The project's own files that the package reads: the chapters, the benches, and what the benches measured.

In a checkout they lie where git has them. An installed package carries copies of them in `_data`, which setup.py makes.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
CARRIED = PACKAGE / "_data"
ROOT = CARRIED if CARRIED.is_dir() else PACKAGE.parents[1]
BOOK, BENCH = ROOT / "book", ROOT / "bench"
