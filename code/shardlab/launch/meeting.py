"""The store in which ranks find each other: a file, and waits that can be seen.

A rank that makes a group looks in the store for its peers' addresses, again and again until they
are there. To an observer that looks like work. Here such a wait is one Python frame, and counted.
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any

import torch.distributed as dist

from . import waiting

PAUSE = 0.002  # s between two looks at the file


class Store(dist.Store):
    """A `FileStore` for `world_size` ranks at `path`; torch calls its methods from C++."""

    def __init__(self, path: str, world_size: int) -> None:
        super().__init__()
        self.folder = os.path.dirname(path)
        self._file = dist.FileStore(path, world_size)

    @property
    def file(self) -> dist.FileStore:
        """The file. Errors: FileNotFoundError if its folder is gone; torch would wait for it."""
        if not os.path.isdir(self.folder):
            raise FileNotFoundError(f"{self.folder} has been deleted, where ranks meet; run again")
        return self._file

    def get(self, key: str) -> bytes:
        """Wait for a key, and return its value."""
        self.wait([key])
        value: bytes = self.file.get(key)
        return value

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Return when all keys are set. Errors: torch's, after `timeout`; None: the run's own."""
        end = time.monotonic() + timeout.total_seconds() if timeout else inf
        while not self.file.check(keys):
            if time.monotonic() > end:
                raise dist.DistStoreError(f"no rank has set {', '.join(keys)} in time")
            time.sleep(PAUSE)
        waiting.ended_in_store += 1


def _of_file(name: str) -> Callable[..., Any]:
    return lambda store, *args: getattr(store.file, name)(*args)


for _name in ("set", "add", "check", "compare_set", "delete_key", "num_keys"):
    setattr(Store, _name, _of_file(_name))
