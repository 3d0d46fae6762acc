"""Your own run beside the book's numbers: `python -m shardlab.own --help`."""

import argparse
import json
import re
import sys
from dataclasses import fields
from typing import Any

from shardlab.costs.facts import hugging_face, machines, nodes
from shardlab.costs.facts.network import Cluster
from shardlab.costs.step import Run, Step, step
from shardlab.costs.traces import waiting
from shardlab.costs.training import Training
from shardlab.files import described, given
from shardlab.files.terminal import Parser, complain, guarded
from shardlab.sharding.layout import Layout

from . import flight, kineto, nccl_tests, text
from .recording import Recording
from .report import report

NOT_UNDERSTOOD = 2
HELP = """read what profilers and benchmarks of your run wrote

  python -m shardlab.own rank*.json.gz --node "DGX H100" --config config.json --layout tp=2,dp=4
  python -m shardlab.own all_reduce.log --node "DGX H100" --write-cluster ours.toml

FILES are traces of torch.profiler or dumps of the flight recorder, one a rank, or logs of
nccl-tests.
"""
UNUSED = {  # kind of files -> options that say nothing about them
    "nccl-tests": ("config", "layout", "step", "picture"),
    "the flight recorder": ("step", "write_cluster"),
    "torch.profiler": ("write_cluster",),
}
OF_TRAINING = ("microbatch", "num_microbatches", "sequence")
OF_LAYOUT = [*(field.name for field in fields(Layout)), *OF_TRAINING]
SWITCHES = ("sequence_parallel", "whole_experts")
HEAD = 4096  # bytes of a file that tell what it is


def parser() -> Parser:
    """Make the parser of the command line."""
    made = Parser(prog="python -m shardlab.own", description=HELP)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("files", nargs="+", metavar="FILES")
    where = made.add_mutually_exclusive_group()
    where.add_argument("--node", help=f"one of: {'; '.join(nodes.NODES)}")
    where.add_argument("--cluster", metavar="FILE", help="TOML, as for shardlab.plan")
    made.add_argument("--config", help="config.json of the model, with --layout")
    made.add_argument("--layout", metavar="tp=2,dp=4", help=f"of: {', '.join(OF_LAYOUT)}")
    made.add_argument("--step", type=int, help="number of a ProfilerStep; default: the last")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--picture", metavar="FILE", help="write a timeline as HTML")
    made.add_argument("--write-cluster", metavar="FILE", help="write nccl-tests' rates as TOML")
    return made


def main(words: list[str] | None = None) -> int:
    """Answer one command line; return the exit status."""
    asked = parser().parse_args(words)
    try:
        kinds = sorted({_kind(path) for path in asked.files})
        if len(kinds) > 1:
            raise ValueError(f"the files are of {' and '.join(kinds)}; pass one kind at a time")
        for name in UNUSED[kinds[0]]:
            if getattr(asked, name) is not None:
                option = f"--{name.replace('_', '-')}"
                raise ValueError(f"{option} says nothing about files of {kinds[0]}; leave it out")
        data, lines = _benchmark(asked) if kinds == ["nccl-tests"] else _run(asked, *kinds)
    except ValueError as error:
        complain(str(error))
        return NOT_UNDERSTOOD
    print(json.dumps(data, indent=2, allow_nan=False) if asked.json else given.shown(lines))
    return 0


def _kind(path: str) -> str:
    try:
        with open(path, "rb") as file:
            head = file.read(HEAD).lstrip()
    except OSError as error:
        raise ValueError(f"{given.line(path)} cannot be read: {error.strerror}") from None
    recorder = b'"entries"' in head or b'"pg_config"' in head
    if head.startswith(b"\x80") or (recorder and b'"schemaVersion"' not in head):
        return "the flight recorder"
    return "torch.profiler" if head[:1] in (b"{", b"[", b"\x1f", b"") else "nccl-tests"


def _benchmark(asked: argparse.Namespace) -> tuple[object, str]:
    found = [rates for path in asked.files for rates in nccl_tests.read(given.read(path))]
    if asked.write_cluster:
        cluster = _cluster(asked, max(each.ranks for each in found))
        if cluster is None:
            raise ValueError("--write-cluster needs --node or --cluster for what no log has")
        _write(asked.write_cluster, nccl_tests.toml(found, cluster))
    return [each._asdict() for each in found], "\n".join(map(str, found))


def _run(asked: argparse.Namespace, kind: str) -> tuple[object, str]:
    traces = kind == "torch.profiler"
    recording = kineto.read(asked.files, step=asked.step) if traces else flight.read(asked.files)
    data = made(asked, recording)
    if asked.picture:
        _write(asked.picture, _picture(recording))
    return data, "\n".join(text.lines(data))


def made(asked: argparse.Namespace, recording: Recording) -> dict[str, Any]:
    """Report on a recording, beside what the options node, cluster, config and layout predict."""
    cluster = _cluster(asked, recording.world_size)
    return report(recording, cluster, _step(asked, cluster, recording.world_size))


def _cluster(asked: argparse.Namespace, ranks: int) -> Cluster | None:
    if asked.cluster:
        return machines.read(described.read_toml(asked.cluster)).cluster
    if not asked.node:
        return None
    return nodes.cluster(asked.node, -(-ranks // nodes.node(asked.node).gpus))


def _step(asked: argparse.Namespace, cluster: Cluster | None, ranks: int) -> Step | None:
    """Predict the step of the model and layout that are named."""
    if not asked.config and not asked.layout:
        return None
    if not asked.config or not asked.layout or cluster is None:
        raise ValueError("--config, --layout and one of --node and --cluster belong together")
    numbers: dict[str, Any] = {}
    for part in asked.layout.split(","):
        name, _, number = part.strip().partition("=")
        if name not in OF_LAYOUT or not re.fullmatch(r"\d{1,9}", number):
            raise ValueError(f"--layout {part!r} must be one of {', '.join(OF_LAYOUT)}, as in tp=2")
        numbers[name] = bool(int(number)) if name in SWITCHES else int(number)
    rest = {name: numbers.pop(name) for name in OF_TRAINING if name in numbers}
    layout = Layout(**numbers)
    if layout.ranks != ranks:
        raise ValueError(f"--layout has {layout.ranks} ranks, and the run has {ranks}")
    spec = hugging_face.read(described.read_json(asked.config)).spec
    return step(Run(training=Training(spec=spec, layout=layout, **rest), cluster=cluster))


def _picture(recording: Recording) -> str:
    try:
        from plotly.graph_objects import Figure

        from shardlab.figures.trace import timeline
    except ModuleNotFoundError as error:
        raise ValueError(
            f"--picture needs {error.name}; install it with: pip install 'shardlab[book]'"
        ) from None
    computing = [event for event in recording.events if event.kind == "compute"]
    events = [*waiting.parted(recording.together), *computing]
    drawn = Figure(timeline(events).to_dict())  # checked anew: to_html needs its template in full
    return str(drawn.to_html(include_plotlyjs=True))


def _write(path: str, content: str) -> None:
    """Write a new file. Errors: ValueError for one that exists, or cannot be written."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; name a new file") from None


if __name__ == "__main__":
    sys.exit(guarded(main))
