"""The store in which ranks find each other: a file, and waits that can be seen.

A rank that makes a group looks in the store for its peers' addresses, again and again until they
are there. To an observer that looks like work. Here such a wait is one Python frame, and counted.
"""

import time
from datetime import timedelta
from math import inf

import torch.distributed as dist

from . import waiting

PAUSE = 0.002  # s between two looks at the file


class Store(dist.Store):
    """A `FileStore` for `world_size` ranks at `path`; torch calls its methods from C++."""

    def __init__(self, path: str, world_size: int) -> None:
        super().__init__()
        self.file = dist.FileStore(path, world_size)

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self.file.set(key, value)

    def get(self, key: str) -> bytes:
        """Wait for a key, and return its value."""
        self.wait([key])
        value: bytes = self.file.get(key)
        return value

    def add(self, key: str, amount: int) -> int:
        """Add to a number, and return the sum."""
        total: int = self.file.add(key, amount)
        return total

    def check(self, keys: list[str]) -> bool:
        """Tell whether all keys are set."""
        there: bool = self.file.check(keys)
        return there

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Set a key if it has the expected value, and return the value that it has then."""
        found: bytes = self.file.compare_set(key, expected, value)
        return found

    def delete_key(self, key: str) -> bool:
        """Delete a key, and tell whether it was there."""
        deleted: bool = self.file.delete_key(key)
        return deleted

    def num_keys(self) -> int:
        """Count the keys."""
        count: int = self.file.num_keys()
        return count

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are set. Errors: torch's, after `timeout`; None: the run's own."""
        end = time.monotonic() + timeout.total_seconds() if timeout else inf
        while not self.file.check(keys):
            if time.monotonic() > end:
                raise dist.DistStoreError(f"no rank has set {', '.join(keys)} in time")
            time.sleep(PAUSE)
        waiting.ended_in_store += 1
