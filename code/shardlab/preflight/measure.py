"""What only a measurement tells: clocks, links between all ranks, and whether a rank can add up."""

import hashlib
import time
from typing import Any

import torch

from shardlab import comm

from .roll import Roll

TRIPS = 5  # to each clock; the quickest is the most exact
SMALL, LARGE, LARGE_GPU = 1, 8 << 20, 64 << 20  # bytes of messages
REPEATS = 3  # of the large one, of which the quickest counts
SIZE, SEED, PRODUCTS = 256, 20, 4  # of the matrices of the checksum


def clocks(roll: Roll, ranks: list[int], seconds: float) -> dict[int, tuple[float, float]]:
    """Ask the clocks of ranks, from rank 0: rank -> seconds it is ahead, and half the round trip.

    Stops at the first one that does not answer. Cristian 1989 (https://doi.org/10.1007/BF01784024).
    """
    found: dict[int, tuple[float, float]] = {}
    for rank in ranks:
        trips = []
        for trip in range(TRIPS):
            before = time.time()
            roll.post(f"ask/{rank}/{trip}", None)
            if not roll.at_once(f"tell/{rank}/{trip}", seconds):
                return found
            after = time.time()
            told = roll.read(f"tell/{rank}/{trip}", seconds)
            trips.append(((after - before) / 2, told - (before + after) / 2))
        error, ahead = min(trips)
        found[rank] = (ahead, error)
    return found


def tell_clock(roll: Roll, seconds: float) -> None:
    """Answer the questions of `clocks` on one of its ranks."""
    for trip in range(TRIPS):
        if not roll.at_once(f"ask/{roll.rank}/{trip}", seconds):
            break
        roll.post(f"tell/{roll.rank}/{trip}", time.time())


class Measurement:
    """Messages to and from each other rank, and a checksum; filled by `run`, read at any time."""

    def __init__(self) -> None:
        self.doing = "waits for the others to connect"
        self.error = ""
        self.rates: dict[int, float] = {}  # source -> bytes/s
        self.sum = ""
        self.over = False

    def run(self, roll: Roll, backend: str, device: torch.device | None, seconds: float) -> None:
        """Measure all on this rank, as all ranks do at once."""
        try:
            if device is not None:
                torch.cuda.set_device(device)
            group = roll.group(backend, device, seconds)
            size = group.size()
            for distance in range(1, size):
                to, source = (roll.rank + distance) % size, (roll.rank - distance) % size
                self.doing = f"sends to rank {to} and waits for rank {source}"
                self.rates[source] = rate(group, to, source)
            self.doing = "computes the checksum"
            self.sum = checksum(comm.device(group))
            self.over = True
        except (RuntimeError, ValueError) as error:
            self.error = str(error).splitlines()[0][:200]

    @property
    def posted(self) -> dict[str, Any]:
        """What rank 0 needs of it."""
        return {**vars(self), "rates": {str(source): each for source, each in self.rates.items()}}


def rate(group: comm.Group, to: int, source: int) -> float:
    """Send to one rank while another sends to this one; return the bytes/s that arrived.

    Errors: ValueError if other numbers arrive than were sent.
    """
    device = comm.device(group)
    seconds = []
    large = LARGE_GPU if device.type == "cuda" else LARGE
    for nbytes in (SMALL, *[large] * REPEATS):
        mine = torch.full((nbytes,), group.rank() % 251, dtype=torch.uint8, device=device)
        _finish(device)
        began = time.perf_counter()
        arrived = comm.exchange(mine, group, to, source)
        _finish(device)
        seconds.append(time.perf_counter() - began)
        if not bool((arrived == source % 251).all()):
            raise ValueError(f"rank {source} sent other numbers than arrived at {group.rank()}")
    return float(large / min(seconds[1:]))


def checksum(device: torch.device) -> str:
    """Multiply matrices of whole numbers on a device and hash the product.

    Every sum stays below 2^53, so float64 is exact in any order: 256^4 terms of at most 8^5.
    """
    numbers = torch.Generator().manual_seed(SEED)
    shape = (PRODUCTS + 1, SIZE, SIZE)
    matrices = torch.randint(-8, 9, shape, generator=numbers, device="cpu").double()
    product, *others = matrices.to(device)
    for other in others:
        product = product @ other
    return hashlib.sha256(product.cpu().numpy().tobytes()).hexdigest()[:12]


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
