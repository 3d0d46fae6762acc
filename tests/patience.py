"""Wait for what comes by itself, for as long as a busy machine may take."""

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
