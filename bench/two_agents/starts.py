"""The wrong starts of starts.toml, and two that only look wrong."""

import sys
from pathlib import Path
from typing import Any

from shardlab.files.described import tomllib

from .agents import PROGRAM, TORCHRUN, Start, StartNode

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
STAGES: list[dict[str, Any]] = DATA["stages"]
PROGRAMS = {
    "gather": PROGRAM.replace("dist.all_reduce(total)", "dist.all_gather([torch.ones(1), torch.ones(1)], total)"),
    "longer": PROGRAM.replace("torch.ones(1)", "torch.ones(1_000)"),
    "later": f"{PROGRAM}import time\ntime.sleep(3)\n",
    "broken": PROGRAM.replace("import torch,", "import not_installed, torch,"),
}


def _node(words: str, seconds_late: float) -> StartNode:
    """Read how an agent is started."""
    pairs = [word.partition("=")[::2] for word in words.split()]
    kind, *program = [name for name, value in pairs if not value]
    usual = [word.partition("=")[::2] for word in DATA["rendezvous"].get(kind, "").split()]
    options = dict(usual) | {name: value for name, value in pairs if name.startswith("--")}
    return StartNode(
        arguments=tuple(f"{name}={value}" for name, value in options.items()),
        environment={name: value for name, value in pairs if value and not name.startswith("--")},
        program=PROGRAMS[program[0]] if program else PROGRAM,
        launcher=(sys.executable,) if kind == "python" else TORCHRUN,
        seconds_late=seconds_late,
    )


def _start(row: dict[str, Any]) -> Start:
    late = row.pop("late", [0.0] * len(row["nodes"]))
    phrases = tuple(DATA["phrases"].get(each, each) for each in row.pop("phrases"))
    nodes = tuple(map(_node, row.pop("nodes"), late))
    return Start(phrases=phrases, nodes=nodes, **row)


SOUND, UNEQUAL, *STARTS = map(_start, DATA["starts"])
