"""Start two agents of torchrun on this machine as a row says, and end them again."""

import contextlib
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import ports

TIMEOUT = 4  # s that a process group waits, instead of torch's half an hour
PROGRAM = f"""
from datetime import timedelta
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=timedelta(seconds={TIMEOUT}))
total = torch.ones(1)
dist.all_reduce(total)
if dist.get_rank() == 0:
    print("sum", total.item(), flush=True)
dist.destroy_process_group()
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--shutdown-timeout=2")
LIMIT = 45.0  # s until agents that still wait are ended
# Variables that tell a process which run it belongs to: an agent inherits none of them.
RUN_VARIABLES = re.compile(
    "MASTER_|RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|TORCHELASTIC_|GLOO_|NCCL_|OMP_"
)


@dataclass(frozen=True, kw_only=True)
class StartNode:
    """What one agent is started with: {port}, {other} and {folder} stand for what a run chooses."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    program: str = PROGRAM
    launcher: tuple[str, ...] = TORCHRUN
    seconds_late: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Start:
    """One wrong start: its cause, what finds it, and the phrases by which its message is known."""

    name: str
    cause: str
    phrases: tuple[str, ...]  # what one agent or the other says; regular expressions
    nodes: tuple[StartNode, ...]
    command: str = ""  # finds the cause; empty where nothing is wrong
    stage: str = ""  # whose time-out ends it, a name in starts.toml; empty where it ends at once
    port: str = "closed"  # state of the port that the agents are told, a name in `ports.STATES`
    other: str = "closed"  # and of a second one
    names: str = ""  # what names resolve to on two hosts; empty where loopback will do
    firewall: bool = False  # between these hosts


@dataclass(frozen=True, kw_only=True)
class StartOutcome:
    """What became of each agent: exit code (None if it still waited), seconds, all it printed."""

    codes: tuple[int | None, ...]
    seconds: tuple[float, ...]
    messages: tuple[str, ...]


def meet(start: Start, limit: float = LIMIT) -> StartOutcome:
    """Start the agents of a row; end after at most `limit` seconds what has not ended by itself."""
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        known = {
            "port": str(held.enter_context(ports.STATES[start.port]())),
            "other": str(held.enter_context(ports.STATES[start.other]())),
            "folder": str(folder),
        }
        agents = [Agent(node, folder / f"node{i}", known) for i, node in enumerate(start.nodes)]
        for agent in agents:
            held.callback(agent.end)
        _watch(agents, limit)
        for agent in agents:
            agent.end()
        return StartOutcome(
            codes=tuple(agent.code for agent in agents),
            seconds=tuple(agent.seconds for agent in agents),
            messages=tuple(plain(agent.printed(), known) for agent in agents),
        )


class Agent:
    """One process of torchrun, and its workers.

    known: what {port}, {other} and {folder} stand for in the arguments and the environment.
    """

    def __init__(self, node: StartNode, folder: Path, known: Mapping[str, str]) -> None:
        self.node, self.folder, self.known = node, folder, known
        self.process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.seconds = 0.0
        self.begun = 0.0
        folder.mkdir()
        (folder / "train.py").write_text(node.program)

    def begin(self) -> int:
        """Start it in a folder of its own, with its temporary files, and return its process id."""
        arguments = [each.format(**self.known) for each in self.node.arguments]
        added = {name: each.format(**self.known) for name, each in self.node.environment.items()}
        usual = {name: each for name, each in os.environ.items() if not RUN_VARIABLES.match(name)}
        self.begun = time.monotonic()
        with (self.folder / "printed").open("wb") as file:
            self.process = subprocess.Popen(
                [*self.node.launcher, *arguments, "train.py"],
                cwd=self.folder,
                env={**usual, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.folder), **added},
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.process.pid

    def look(self) -> bool:
        """Return whether it has ended; keep its exit code and the seconds that it has taken."""
        if self.process is None:
            return False
        if self.code is None:
            self.seconds = round(time.monotonic() - self.begun, 1)
            self.code = self.process.poll()
        return self.code is not None

    def end(self) -> None:
        """Kill the agent and all below it; it is stopped first, so that it starts nothing more."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)
        kill([self.process.pid, *descendants(self.process.pid)])
        self.process.wait()

    def printed(self) -> str:
        """Read everything that it and its workers have printed so far."""
        file = self.folder / "printed"
        return file.read_text(errors="replace") if file.exists() else ""


def _watch(agents: list[Agent], limit: float) -> None:
    """Begin each agent when its time has come; return when all have ended, or after the limit."""
    begun = time.monotonic()
    while (elapsed := time.monotonic() - begun) < limit:
        for agent in agents:
            if agent.process is None and elapsed >= agent.node.seconds_late:
                agent.begin()
        if all([agent.look() for agent in agents]):
            return
        time.sleep(0.05)


def kill(pids: Iterable[int]) -> None:
    """Kill the process groups that these processes lead, whether they run or are stopped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """List the processes below one: workers lead sessions of their own, no group has them all."""
    listed = subprocess.check_output(["ps", "-A", "-o", "pid=,ppid="], text=True)
    pairs = (line.split() for line in listed.splitlines())
    parents = {int(child): int(parent) for child, parent in pairs}
    return [child for child in parents if pid in _above(child, parents)]


def _above(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    while pid in parents and pid > 1:
        pid = parents[pid]
        yield pid


def plain(text: str, known: Mapping[str, str]) -> str:
    """Replace what belongs to this machine and run: ports become 29500 and 29501, paths short."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    text = re.sub(rf"\b{known['port']}\b", "29500", text)
    text = re.sub(rf"\b{known['other']}\b", "29501", text)
    text = re.sub(r"(/[\w.+-]+)+/(train\.py|torch/|python[\d.]*)", r"\2", text)
    text = re.sub(rf"\b{re.escape(platform.node())}\b", "HOST", text)
    return text.replace(known["folder"], "")
