"""Your own run beside the book's numbers: `python -m shardlab.own --help`."""

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from shardlab.costs.facts import hugging_face, machines, nodes
from shardlab.costs.facts.network import Cluster
from shardlab.costs.step import Run, Step, step
from shardlab.costs.traces import waiting
from shardlab.costs.training import Training
from shardlab.files import described, given
from shardlab.files.terminal import Parser, complain, guarded
from shardlab.sharding.layout import Layout

from . import flight, kineto, nccl_tests, rates, text
from .recording import Recording
from .report import report

NOT_UNDERSTOOD = 2
HELP = """read what profilers and benchmarks of your run wrote

  python -m shardlab.own rank*.json.gz --node "DGX H100" --config config.json --layout tp=2,dp=4
  python -m shardlab.own all_reduce.log --node "DGX H100" --write-cluster ours.toml

FILES are traces of torch.profiler or dumps of the flight recorder, one a rank, or logs of
nccl-tests.
"""
OF_TRAINING = ("microbatch", "num_microbatches", "sequence")
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
    some = ", ".join([*(field.name for field in fields(Layout)), *OF_TRAINING])
    made.add_argument("--layout", metavar="tp=2,dp=4", help=f"of: {some}")
    made.add_argument("--step", type=int, help="number of a ProfilerStep; default: the last")
    made.add_argument("--json", action="store_true", help="print JSON")
    made.add_argument("--picture", metavar="FILE", help="write a timeline as HTML")
    made.add_argument("--write-cluster", metavar="FILE", help="write nccl-tests' rates as TOML")
    return made


def main(words: list[str] | None = None) -> int:
    """Answer one command line; return the exit status."""
    asked = parser().parse_args(words)
    try:
        kinds = {_kind(path) for path in asked.files}
        if len(kinds) > 1:
            raise ValueError(
                f"the files are of {' and '.join(sorted(kinds))}; pass one kind at a time"
            )
        data, lines = (_benchmark if kinds == {"nccl-tests"} else _run)(asked, *kinds)
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
    recorder = (b'"entries"', b'"pg_config"')
    if b'"schemaVersion"' not in head and (
        head.startswith(b"\x80") or any(each in head for each in recorder)
    ):
        return "the flight recorder"
    return "torch.profiler" if head[:1] in (b"{", b"[", b"\x1f", b"") else "nccl-tests"


def _benchmark(asked: argparse.Namespace, _: str) -> tuple[object, str]:
    unused = [
        name for name in ("config", "layout", "step", "picture") if getattr(asked, name) is not None
    ]
    if unused:
        raise ValueError(f"--{unused[0]} is for traces, and these files are logs of nccl-tests")
    tables = [table for path in asked.files for table in nccl_tests.read(given.read(path))]
    found = [rates.rates(table) for table in tables]
    if asked.write_cluster:
        cluster = _cluster(asked, max(each.ranks for each in found))
        if cluster is None:
            raise ValueError("--write-cluster needs --node or --cluster for what no log has")
        rates.write(Path(asked.write_cluster), rates.toml(found, cluster))
    return [each._asdict() for each in found], "\n".join(rates.lines(found))


def _run(asked: argparse.Namespace, kind: str) -> tuple[object, str]:
    if asked.write_cluster:
        raise ValueError("--write-cluster needs logs of nccl-tests, and these files are others")
    if kind == "the flight recorder" and asked.step is not None:
        raise ValueError("--step is for traces of torch.profiler; a dump has no steps")
    recording = (
        flight.read(asked.files)
        if kind == "the flight recorder"
        else kineto.read(asked.files, step=asked.step)
    )
    cluster = _cluster(asked, recording.world_size)
    made = report(recording, cluster, _step(asked, cluster, recording.world_size))
    if asked.picture:
        _draw(recording, Path(asked.picture))
    return made.data, "\n".join(text.lines(made))


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
    numbers: dict[str, Any] = dict(_numbers(asked.layout))
    rest = {name: numbers.pop(name) for name in OF_TRAINING if name in numbers}
    switches = {"sequence_parallel", "whole_experts"} & numbers.keys()
    layout = Layout(**numbers | {name: bool(numbers[name]) for name in switches})
    if layout.ranks != ranks:
        raise ValueError(f"--layout has {layout.ranks} ranks, and the run has {ranks}")
    spec = hugging_face.read(described.read_json(asked.config)).spec
    return step(Run(training=Training(spec=spec, layout=layout, **rest), cluster=cluster))


def _numbers(layout: str) -> dict[str, int]:
    known = [*(field.name for field in fields(Layout)), *OF_TRAINING]
    found = {}
    for part in layout.split(","):
        name, _, number = part.strip().partition("=")
        if name not in known or not number.isdecimal() or len(number) > 9:  # noqa: PLR2004
            raise ValueError(f"--layout {part!r} must be one of {', '.join(known)}, as in tp=2")
        found[name] = int(number)
    return found


def _draw(recording: Recording, path: Path) -> None:
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
    page = drawn.to_html(include_plotlyjs=True)
    rates.write(path, page)


if __name__ == "__main__":
    sys.exit(guarded(main))
