"""The roll call: a store in which each rank announces itself and posts what it knows.

Until all ranks are known to be there no collective is started, since it would wait for whoever is
missing without a name. Rank 0 speaks for all; without it the lowest rank that is there.
"""

import json
import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

GRACE = 2.0  # s that the others wait longer than rank 0 does
PAUSE, LOOKS = 0.02, 100  # s between two looks, ranks for which it is twice as long
LEAVING = 5.0  # s that the host of the store waits for the others to read the end
AGENT = "TORCHELASTIC_USE_AGENT_STORE"  # "True" where torchrun's agent hosts the store


class Unreachable(RuntimeError):
    """The failure to reach the store."""


class Roll:
    """The store as one rank sees it."""

    def __init__(self, rank: int, size: int, seconds: float) -> None:
        self.rank, self.size, self.seconds = rank, size, seconds
        self.hosts = False  # whether this process hosts the store
        self._connection = self._connect()
        self.store = self._prefixed(self._connection)
        self.turn = self.store.add(f"here/{rank}", 1)  # 1, and more for a rank that came twice

    def announce(self, facts: dict[str, Any]) -> None:
        """Post this rank's facts, under its number, so that the others know it is here."""
        self.post(f"facts/{self.rank}/{self.turn}", facts)

    def speaks(self) -> bool:
        """Return whether this rank speaks for all; without rank 0 that takes until the deadline."""
        if self.turn > 1:
            return False
        if self.rank:
            if self._wait(["speaker"], self.seconds + GRACE):
                return False
            if any(self.store.check([f"facts/{lower}/1"]) for lower in range(1, self.rank)):
                return False
        speaker: bytes = self.store.compare_set("speaker", "", str(self.rank))
        return speaker == str(self.rank).encode()

    def present(self) -> list[dict[str, Any]]:
        """Wait for all ranks, at most until the deadline; return the facts of those who came."""
        keys = {rank: f"facts/{rank}/1" for rank in range(self.size)}
        self._wait(list(keys.values()), self.seconds if self.rank == 0 else 0)
        found = []
        for rank in range(self.size):
            for turn in range(1, self.store.add(f"here/{rank}", 0) + 1):
                if self.store.check([key := f"facts/{rank}/{turn}"]):
                    found.append(json.loads(self.store.get(key)))
        return found

    def post(self, key: str, value: Any) -> None:
        """Set a key to what JSON can hold."""
        self.store.set(key, json.dumps(value))

    def read(self, key: str, seconds: float) -> Any:
        """Wait for a key and return its value; None if nobody has set it in time."""
        return json.loads(self.store.get(key)) if self._wait([key], seconds) else None

    def at_once(self, key: str, seconds: float) -> bool:
        """Return as soon as a key is set: whether it is in time. Nothing interrupts this wait."""
        with suppress(dist.DistStoreError):
            self.store.wait([key], timedelta(seconds=seconds))
            return True
        return False

    def collect(self, what: str, ranks: Iterable[int], seconds: float) -> dict[int, Any]:
        """Return what ranks have posted under `what`, by rank; without those that are late."""
        keys = {rank: f"{what}/{rank}" for rank in ranks}
        self._wait(list(keys.values()), seconds)
        there = {rank: key for rank, key in keys.items() if self.store.check([key])}
        return {rank: json.loads(self.store.get(key)) for rank, key in there.items()}

    def group(self, backend: str, device: torch.device | None, seconds: float) -> Any:
        """Join all ranks to a group, over a connection of its own."""
        store = dist.PrefixStore("group", self._prefixed(self._again()))
        limit = timedelta(seconds=seconds)
        options: dict[str, Any] = {"rank": self.rank, "world_size": self.size, "store": store}
        dist.init_process_group(backend, timeout=limit, device_id=device, **options)
        return dist.group.WORLD

    def leave(self, expected: int = 1) -> None:
        """Leave the store; its host waits a moment until all `expected` have left."""
        with suppress(RuntimeError):  # whoever hosts it may be gone
            left = self.store.add("left", 1)
            end = time.monotonic() + LEAVING
            while self.hosts and left < expected and time.monotonic() < end:
                time.sleep(PAUSE)
                left = self.store.add("left", 0)

    def _connect(self) -> Any:
        if self.size == 1:
            return dist.HashStore()
        if self.rank == 0 and os.environ.get(AGENT) != "True":
            with suppress(RuntimeError):  # another rank 0 hosts it: then it is joined and named
                store = self._open(host=True)
                self.hosts = True
                return store
        return self._open(host=False)

    def _open(self, host: bool) -> Any:
        name, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not name or not port.isdigit():
            raise Unreachable("MASTER_ADDR and MASTER_PORT are not set; start ranks with torchrun")
        if not host:
            self._reach(name, int(port))
        limit = timedelta(seconds=self.seconds)
        return dist.TCPStore(name, int(port), None, host, limit, wait_for_workers=False)

    def _reach(self, name: str, port: int) -> None:
        """Wait until somebody listens at a port."""
        end = time.monotonic() + self.seconds
        while True:
            try:
                left = max(end - time.monotonic(), PAUSE)
                return socket.create_connection((name, port), timeout=left).close()
            except OSError as error:
                reason = error.strerror or str(error)
            if time.monotonic() > end:
                raise Unreachable(
                    f"rank {self.rank} could not reach rank 0's store at {name}:{port} within "
                    f"{self.seconds:g} s ({reason}); rank 0 was not started, the address or port "
                    "is wrong, or a firewall lies between"
                )
            time.sleep(5 * PAUSE)

    def _again(self) -> Any:
        return self._connection if self.size == 1 else self._open(host=False)

    @staticmethod
    def _prefixed(store: Any) -> Any:
        run = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(f"shardlab/preflight/{run}", store)

    def _wait(self, keys: list[str], seconds: float) -> bool:
        """Return whether all keys are set in time; the more ranks look, the less often they do."""
        end = time.monotonic() + seconds
        while not self.store.check(keys):
            if time.monotonic() > end:
                return False
            time.sleep(PAUSE + PAUSE * self.size / LOOKS)
        return True
