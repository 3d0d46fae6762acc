"""The project's own files that the package reads: chapters, benches, and what they measured.

In a checkout these files lie where git has them. An installed package carries copies of them in
`_data`, which setup.py makes.
"""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
CARRIED = PACKAGE / "_data"
ROOT = CARRIED if CARRIED.is_dir() else PACKAGE.parents[1]
BOOK = ROOT / "book"
BENCH = ROOT / "bench"
