"""Two hosts on this machine: network namespaces joined by a cable whose rate the kernel holds down. Linux, as root.

    with TwoHosts(rate=200e6) as hosts:            # bits/s in each direction
        results = hosts.run("bench/replay.py", "play", ranks=4)

Each rank is a process inside its host; the ranks meet as under torchrun. Nothing leaves the two namespaces.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from shardlab.files.terminal import no_arguments

NAMES = ("shardlab-a", "shardlab-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
CABLE = "cable"  # what the network card of each host is called
BURST = 32 * 1024  # bytes that may pass at once
PORT = 29_517
TIMEOUT = 120.0  # s


def unavailable() -> str:
    """Why there can be no two hosts here, or nothing."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces need Linux and root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    name = "shardlab-probe"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if tried.returncode:
        return f"no namespace can be made here: {tried.stderr.strip()}"
    pair = ["link", "add", "name", "one", "type", "veth", "peer", "name", "two"]
    made = subprocess.run(["ip", "-n", name, *pair], capture_output=True, check=False)
    command = ["tc", "-n", name, "qdisc", "add", "dev", "one", *_shape(1e6)]
    shaped = subprocess.run(command, capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], check=False)
    return "" if made.returncode == shaped.returncode == 0 else "the kernel has no veth or no tbf"


class TwoHosts:
    """Makes the hosts, and takes them away again."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __enter__(self) -> "TwoHosts":
        self._away()
        for name in NAMES:
            _do("ip", "netns", "add", name)
        a, b = NAMES
        _do("ip", "link", "add", "name", CABLE, "netns", a, "type", "veth", "peer", "name", CABLE, "netns", b)
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            _do("ip", "-n", name, "address", "add", f"{address}/24", "dev", CABLE)
            for card in (CABLE, "lo"):
                _do("ip", "-n", name, "link", "set", card, "up")
            _do("tc", "-n", name, "qdisc", "add", "dev", CABLE, *_shape(self.rate))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._away()

    def run(self, script: str, *arguments: str, ranks: int) -> str:
        """Start the script on so many ranks, half of them on each host; returns what rank 0 printed.

        Errors: RuntimeError with what a rank said that failed.
        """
        with tempfile.TemporaryDirectory() as folder:
            outputs = [Path(folder) / str(rank) for rank in range(ranks)]
            started = [self._start(script, arguments, rank, ranks, outputs[rank]) for rank in range(ranks)]
            try:
                codes = [process.wait(TIMEOUT) for process in started]
            finally:
                for process in started:
                    process.kill()
            failed = [output for output, code in zip(outputs, codes, strict=True) if code]
            if failed:
                raise RuntimeError(failed[0].read_text()[-4000:])
            return outputs[0].read_text()

    def _start(self, script: str, arguments: tuple[str, ...], rank: int, ranks: int, output: Path) -> Any:
        local = ranks // 2
        host = NAMES[rank // local]
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank % local),
            "LOCAL_WORLD_SIZE": str(local),
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": CABLE,
        }
        command = ["ip", "netns", "exec", host, sys.executable, script, *arguments]
        with output.open("w") as file:
            return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def _away(self) -> None:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _shape(rate: float) -> list[str]:
    return ["root", "tbf", "rate", f"{rate:.0f}bit", "burst", str(BURST), "latency", "1s"]


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    no_arguments(__doc__)
    print(unavailable() or "two hosts can be made here")
