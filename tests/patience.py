"""Wait for what comes by itself, for as long as a busy machine may take; kill as often as was asked for."""

import os
import time

PATIENCE = 120.0  # s


def until(condition, seconds=PATIENCE):
    """Return whether the condition came true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def kills(usually):
    """Return how many kills a test shall try: SHARDLAB_KILLS says so for all, see CONTRIBUTING.md."""
    return int(os.environ.get("SHARDLAB_KILLS", usually))
