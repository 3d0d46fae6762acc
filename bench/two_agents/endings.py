"""Stop or kill processes of a run in training, and watch what becomes of the others.

Each row of endings.toml is one event in a run of two nodes: two agents of torchrun, and the ranks
that each of them starts.
"""

import os
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from . import ports
from .agents import Agent, StartNode, kill, plain
from .events import BACKENDS, ENDINGS, GROUP, PROGRAM, Ending

__all__ = ["ENDINGS", "GROUP", "Ending", "EndingOutcome", "Life", "run"]
READY = 8  # steps of each rank before the event
PATIENCE = 120.0  # s until the training must have begun
LOOK = 0.2  # s between two looks at all processes
# What an agent logs of its ranks: one that failed, one that it ends, one that needed SIGKILL.
FAILED = re.compile(r"exitcode\s*: (-?\d+)\)?.*\(pid: (\d+)\)")
CLOSED = re.compile(r"Sending process (\d+) closing signal (\w+)")
FORCED = re.compile(r"Unable to shutdown process (\d+) via \S+, forcefully exiting via \S+")


@dataclass(frozen=True, kw_only=True)
class Life:
    """What became of one process of a run. Times are in seconds after the event."""

    who: str  # "agent 1", "rank 1"; one prime for each start after the first
    begun: float  # negative for processes of the first start
    steps: int  # after the event
    ended: float | None  # None if it was alive when the observation ended
    how: str  # exit code, or the signal from its agent; empty if it lives or no agent saw it end
    left: str  # "runs" or "stands still" at the end of the observation; empty if it has ended


@dataclass(frozen=True, kw_only=True)
class EndingOutcome:
    """All processes of a run, agents first, and what each agent and its ranks printed, by agent."""

    lives: tuple[Life, ...]
    messages: dict[str, str]


def run(ending: Ending) -> EndingOutcome:
    """Run a row, and end whatever is still alive before returning, orphans too.

    Errors: RuntimeError, with what the agents printed, if training has not begun after `PATIENCE`.
    """
    with tempfile.TemporaryDirectory() as folder:
        observed = _Run(ending, Path(folder))
        try:
            observed.train()
            observed.watch()
            return observed.outcome()
        finally:
            observed.end()


@dataclass(frozen=True)
class _Process:
    who: str
    pid: int
    begun: float  # time.monotonic(), which is one clock for all processes of a machine
    steps: list[float]  # when each was made, by the same clock


class _Run:
    """The agents of a run, and what has been seen of them and of their ranks."""

    def __init__(self, ending: Ending, folder: Path) -> None:
        self.ending, self.folder = ending, folder
        port = str(ports.free())
        # `plain` expects two ports
        self.known = {"port": port, "other": port, "folder": str(folder)}
        self.agents: dict[int, Agent] = {}  # by process id, as all that follow
        self.names: dict[int, str] = {}
        self.gone: dict[int, float] = {}  # when each process was found to have ended
        self.states: dict[int, str] = {}  # as `ps` writes them: T is stopped, Z has ended
        self.event = 0.0

    def begin(self, name: str) -> None:
        row, node = self.ending, name[len("agent ")]
        counts = (f"--nproc-per-node={row.ranks}", f"--max-restarts={row.max_restarts}")
        arguments = ("--nnodes=2", f"--node-rank={node}", *counts, *BACKENDS[row.backend])
        environment = {
            "GROUP_SECONDS": str(GROUP),
            "WATCHDOG_SECONDS": str(row.watchdog),
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "01"[not row.shared_store],
        }
        start = StartNode(arguments=arguments, environment=environment, program=PROGRAM)
        agent = Agent(start, self.folder / name, {**self.known, "host": str(node == "0")})
        pid = agent.begin()
        self.agents[pid], self.names[pid] = agent, name

    def train(self) -> None:
        """Start both nodes, and return when each rank has made a few steps."""
        for node in range(2):
            self.begin(f"agent {node}")
        limit = time.monotonic() + PATIENCE
        while sum(len(each.steps) > READY for each in self.processes()) < 2 * self.ending.ranks:
            self.look()
            if time.monotonic() > limit:
                printed = "\n".join(agent.printed() for agent in self.agents.values())
                raise RuntimeError(f"no training after {PATIENCE:g} s; agents print:\n{printed}")

    def watch(self) -> None:
        """Send the signal, start again what the row says, and look on.

        It returns when all processes have ended, or when the row has been watched long enough.
        """
        row = self.ending
        receivers = [each.pid for each in self.processes() if each.who in row.to]
        assert len(receivers) == len(row.to), f"{row.to} do not all run"
        waiting = [f"agent {node}'" for node in row.again]
        self.event = time.monotonic()
        for pid in receivers:
            os.kill(pid, row.sent)
        while (elapsed := time.monotonic() - self.event) < row.watched:
            while waiting and elapsed > row.later:
                self.begin(waiting.pop(0))
            if not self.look() and not waiting:
                return

    def look(self) -> bool:
        """Note which processes have ended since the last look; return whether any is alive."""
        time.sleep(LOOK)
        living = {each.pid for each in self.processes()} - self.gone.keys()
        listed = subprocess.check_output(["ps", "-A", "-o", "pid=,stat="], text=True)
        self.states = {int(pid): stat for pid, stat in map(str.split, listed.splitlines())}
        for agent in self.agents.values():
            agent.look()
        ended = {pid for pid in living if self.states.get(pid, "Z").startswith("Z")}
        self.gone.update(dict.fromkeys(ended, time.monotonic()))
        return living > ended

    def processes(self) -> list[_Process]:
        """List agents, then ranks by the files that they write, both in the order of start."""
        agents = [
            _Process(name, pid, self.agents[pid].begun, []) for pid, name in self.names.items()
        ]
        ranks: list[_Process] = []
        files = [file.read_text().split() for file in self.folder.glob("*/steps-*")]
        files.sort(key=lambda words: [*map(float, words[2:3])])
        for pid, rank, begun, *steps in filter(None, files):
            again = "'" * sum(each.who.startswith(f"rank {rank}") for each in ranks)
            name = f"rank {rank}{again}"
            ranks.append(_Process(name, int(pid), float(begun), list(map(float, steps))))
        return agents + ranks

    def outcome(self) -> EndingOutcome:
        """Sum up what was seen, in seconds after the event."""
        printed = {name: self.agents[pid].printed() for pid, name in self.names.items()}
        told = _told("\n".join(printed.values()))
        told |= {pid: f"exit code {agent.code}" for pid, agent in self.agents.items()}
        return EndingOutcome(
            lives=tuple(self.life(each, told.get(each.pid, "")) for each in self.processes()),
            messages={name: plain(text, self.known) for name, text in printed.items()},
        )

    def life(self, process: _Process, told: str) -> Life:
        ended = self.gone.get(process.pid)
        still = self.states.get(process.pid, "").startswith("T")
        return Life(
            who=process.who,
            begun=round(process.begun - self.event, 1),
            steps=sum(step > self.event for step in process.steps),
            ended=None if ended is None else round(ended - self.event, 1),
            how="" if ended is None else told,
            left="" if ended is not None else "stands still" if still else "runs",
        )

    def end(self) -> None:
        """End the agents first: they start nothing more."""
        for agent in self.agents.values():
            agent.end()
        kill(each.pid for each in self.processes() if each.pid not in self.gone)
        limit = time.monotonic() + PATIENCE
        while self.look() and time.monotonic() < limit:  # they take a moment to go
            pass


def _told(printed: str) -> dict[int, str]:
    """Find in what agents printed how each rank ended, by process id."""
    told = {int(pid): f"exit code {code}" for code, pid in FAILED.findall(printed)}
    told |= {int(pid): f"{name} from its agent" for pid, name in CLOSED.findall(printed)}
    return told | {int(pid): "SIGKILL from its agent" for pid in FORCED.findall(printed)}
