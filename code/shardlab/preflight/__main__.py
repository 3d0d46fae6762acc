"""Check the machines of a run before it starts: `python -m shardlab.preflight --help`."""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from typing import Any, NoReturn

from shardlab.costs.facts import limits, machines, nodes
from shardlab.costs.facts.network import Cluster
from shardlab.files import described
from shardlab.files.given import shown
from shardlab.files.terminal import Parser, complain, guarded
from shardlab.launch.ending import finalize_mpi
from shardlab.launch.join import learn_rank

from . import facts, together
from .result import FAIL, CheckResult, result, status

NOT_UNDERSTOOD = 2
LONGEST = 86_400  # s
PAUSE = 2.0  # s; see `_refuse`
HELP = """check the machines of a run before it starts

  python -m shardlab.preflight                                        this machine
  torchrun --nproc-per-node 8 -m shardlab.preflight                   eight ranks of it
  torchrun --nnodes 2 ... -m shardlab.preflight --code train.py       all ranks of a run
  mpiexec -n 16 python -m shardlab.preflight                          the same under MPI or Slurm

Start it exactly as you start the run: same machines, same ranks, same environment."""
CODES = "Exit status: 0 nothing failed, 1 something failed, 2 the input is not understood."


class _Parser(Parser):
    """A parser that complains on rank 0 alone."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with status 2."""
        sys.exit(_refuse(f"{message}; `{self.prog} --help` lists the options"))


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    made = _Parser(prog="python -m shardlab.preflight", description=HELP, epilog=CODES)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    text = "seconds to wait for a missing rank"
    made.add_argument("--timeout", type=float, default=60.0, metavar="60", help=text)
    text = "script, or folder with *.py, that should be the same on all ranks"
    made.add_argument("--code", default=".", metavar="PATH", help=text)
    text = "compare links with what costs expects of a node, or of a TOML file, as for plan"
    made.add_argument("--cluster", metavar="NAME", help=text)
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def main(words: list[str] | None = None) -> int:
    """Check all ranks; return the exit status."""
    try:
        learn_rank()
        given = parser().parse_args(words)
        limits.hold("--timeout", given.timeout, LONGEST, 1)
        own = facts.own(given.code)
        cluster = known(given.cluster, own["world"]) if given.cluster else None
    except (ValueError, ModuleNotFoundError) as error:
        return _refuse(str(error))

    def tell(results: list[CheckResult]) -> None:
        print(text(results, own["world"], given.json), flush=True)

    try:
        return together.check(own, given.timeout, cluster, tell)
    except RuntimeError as error:
        tell([result("who", FAIL, str(error).splitlines()[0])])
        return 1


def known(name: str, gpus: int) -> Cluster:
    """Return the cluster of a name or a TOML file. Errors: ValueError with the way out."""
    if name not in nodes.NODES and not os.path.exists(name):
        raise ValueError(f"--cluster {name} is no file and no node; use {', '.join(nodes.NODES)}")
    table = {"node": name} if name in nodes.NODES else described.read_toml(name)
    return machines.read(table, gpus).cluster


def text(results: list[CheckResult], ranks: int, as_json: bool) -> str:
    """Write findings as lines, or as one JSON object."""
    if as_json:
        data: dict[str, Any] = {"status": status(results), "ranks": ranks}
        return json.dumps({**data, "findings": [asdict(each) for each in results]})
    return shown("\n".join(each.line for each in results))


def _refuse(message: str) -> int:
    """Complain on rank 0; the others wait, since torchrun ends all ranks when one fails."""
    if os.environ.get("RANK", "0") == "0":
        complain(message)
    else:
        time.sleep(PAUSE)
    return NOT_UNDERSTOOD


if __name__ == "__main__":
    code = guarded(main)
    finalize_mpi()
    os._exit(code)  # a thread that is stuck in a connection must not keep the process
