"""What a rank is asked to do: the pickled call, and the surroundings it was made in."""

import os
import sys
from dataclasses import dataclass, field

from . import surroundings

GRACE = 0.3  # seconds that the other ranks get to report after the first failure


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a rank needs to begin: the pickled call, and the surroundings it was made in."""

    call: bytes  # cloudpickle of (fn, args)
    world_size: int
    timeout: float  # s
    threads: int
    store: str  # path of the file at which the ranks meet
    hosted: int = 0  # ranks that are threads of one process; 0: each has a process of its own
    environment: dict[str, str] = field(
        default_factory=lambda: {**os.environ, "GLOO_SOCKET_IFNAME": loopback()}
    )
    path: list[str] = field(default_factory=lambda: [*sys.path])
    folder: str = field(default_factory=surroundings.current)

    @property
    def ranks(self) -> int:
        """How many ranks there are, in as many processes or in one."""
        return self.hosted or self.world_size


def loopback() -> str:
    """Name the interface that only this machine sees.

    By itself gloo listens on whatever address the host name resolves to.
    """
    return "lo0" if sys.platform == "darwin" else "lo"


def label(number: int) -> str:
    """Return what stands before each line that a rank prints."""
    return f"[rank {number}] "
