"""Tests of what the benches are made of, which import each other from the folder that they stand in."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
