"""Does a run lose a checkpoint, or change a loss, where it is killed 100 times, and goes on in other layouts?

This runs the test that kills it, and keeps what the test found: two to four ranks in float64; every two lives have
another layout. In half of the cases or more the kill is placed within a save. While the layout stays, every loss must
be bitwise that of a run that nobody kills; the difference is that from one process, which has no layout, over all
losses.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import record

from shardlab.files.terminal import no_arguments

KILLS = 100
TEST = Path(__file__).parents[1] / "tests" / "ranks" / "checkpoint" / "test_killed.py"


class Listener:
    """A plugin of pytest that keeps what the test found."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.found |= dict(report.user_properties).get("found", {})


def main() -> None:
    os.environ["SHARDLAB_KILLS"] = str(KILLS)
    listener, began = Listener(), time.monotonic()
    if code := pytest.main(["-q", "-s", "-k", "layouts", str(TEST)], plugins=[listener]):
        sys.exit(code)
    result = {**listener.found, "seconds": round(time.monotonic() - began)}
    print("written to", record.write("killed", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
