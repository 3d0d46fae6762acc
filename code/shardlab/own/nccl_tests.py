"""Alpha and beta of your own cluster, from the tables that nccl-tests and rccl-tests print.

Up to some 32 ranks their number follows from the table itself: bus bandwidth divided by algorithm
bandwidth is 2(n-1)/n for an all-reduce and (n-1)/n for all-gather, reduce-scatter and all-to-all.
Beyond, rounding hides it, and the list of devices in the log decides.
https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from shardlab import trace
from shardlab.costs.collectives.bandwidth import BUS_FACTORS
from shardlab.costs.collectives.library import NODE_OPERATIONS
from shardlab.costs.facts import hardware, nodes
from shardlab.costs.facts.hardware import LINK_UTILISATION
from shardlab.costs.facts.network import Cluster
from shardlab.costs.units import GB, Gbit, counted, text
from shardlab.files import given
from shardlab.files.arguments import checked

from .recording import verb

MOST_RANKS = 1 << 17
_TEST = re.compile(r"\b(\w{1,40})_perf\b")
_HOST = re.compile(r"\s*#\s*Rank\s+(\d{1,7})\b.*\bon\s+(\S{1,255})\s+device\b")
_ROW = re.compile(r"\s*\d{1,15}\s+\d+(\s+\S+){5}")
_HEADER = "# size count"
_TWICE = 11  # columns of a row that has both: size, count, type, and twice four
_MOST = 1e15  # of a time or a rate


class Rates(NamedTuple):
    """What one table says in two numbers."""

    op: str
    ranks: int
    nodes: int | None  # different hosts of the list of devices
    alpha: float  # s of one step: the shortest message's time over its steps
    beta: float  # bytes/s: the bus bandwidth of the longest message

    def __str__(self) -> str:
        """Say it in one line."""
        where = f" on {counted(self.nodes, 'node')}" if self.nodes else ""
        return (
            f"{self.op} of {self.ranks} ranks{where}: alpha {text(self.alpha, 's')} a step, "
            f"beta {text(self.beta, 'B/s')}"
        )


@given.in_one_line()
@checked
def read(log: str) -> list[Rates]:
    """Reduce each table of a log to two numbers.

    Errors: ValueError for a log without a row, for bad numbers, for an operation without a rate,
    and where neither the table nor its list of devices tells how many ranks there were.
    """
    found: list[Rates] = []
    name = "unknown"
    devices: dict[str, str] = {}
    rows: list[list[str]] = []
    for line in [*log.splitlines(), _HEADER]:
        test, device = _TEST.search(line), _HOST.match(line)
        if _ROW.match(line):
            rows.append(line.split())
        elif rows and (test or line.split()[:3] == _HEADER.split()):
            found.append(_rates(name, devices, rows))
            devices, rows = {}, []
        if device:
            devices[device[1]] = device[2]
        name = test[1] if test else name
    if not found:
        raise ValueError("no row of a table; pass what all_reduce_perf or another test printed")
    return found


def _rates(name: str, devices: dict[str, str], rows: list[list[str]]) -> Rates:
    op = verb(name)
    if op not in NODE_OPERATIONS:
        raise ValueError(
            f"the test {name!r} of a table gives no rate; pass a log with the line that names the "
            f"program, of {', '.join(NODE_OPERATIONS)}"
        )
    sized = sorted((row for row in rows if int(row[0])), key=lambda row: int(row[0]))
    ranks = _ranks(op, sized[-1], len(devices)) if sized else 0
    if ranks < 2:  # noqa: PLR2004
        raise ValueError(
            f"{op} of {len(sized)} sizes above 0 on {ranks or 'unknown'} ranks gives no rate; pass "
            "a log of two ranks or more with its list of devices, of -b 8 -e 1G"
        )
    alpha = _seconds(sized[0]) / NODE_OPERATIONS[op](1.0, ranks).steps
    beta = trace.ring_bytes(op, int(sized[-1][0]), ranks) / _seconds(sized[-1])
    return Rates(op, ranks, len(set(devices.values())) or None, alpha, beta)


def _seconds(row: list[str]) -> float:
    """Return the shorter of the times out of place and in place."""
    times = [_number(row[at], "a time in us") for at in ((-8, -4) if len(row) >= _TWICE else (-4,))]
    return min(times) / 1e6


def _ranks(op: str, row: list[str], listed: int) -> int:
    """Return the ranks that fit a row's two bandwidths as they are rounded, or 0."""
    at = -8 if len(row) >= _TWICE else -4
    algorithm, bus = (_number(word, "a rate in GB/s") for word in row[at + 1 : at + 3])
    off, off_bus = (0.5 / 10 ** len(word.partition(".")[2]) for word in row[at + 1 : at + 3])
    factors = ((n, BUS_FACTORS[op](n)) for n in range(1, MOST_RANKS))
    fitting = [n for n, each in factors if abs(algorithm * each - bus) <= off * each + off_bus]
    if len(fitting) == 1:
        return fitting[0]
    return listed if listed in fitting else 0


def _number(word: str, what: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < _MOST:
        raise ValueError(f"{word} as {what} must be a finite number above 0")
    return value


@checked
def toml(found: Sequence[Rates], cluster: Cluster) -> str:
    """Describe the cluster with the rates of its own links.

    A ring of one node gives the rate of NVLink, and a ring of several that of all network cards of
    a node together. What is sold is the rate that is reached over `LINK_UTILISATION`. Errors:
    ValueError for a chip that has no name here, and for nodes of which some GPUs were left out.
    """
    node = cluster.node
    if node.chip.name not in hardware.CHIPS:
        raise ValueError(f"{node.chip.name!r} is no known chip; use --node")
    nvlink = nodes.rates_of_a_gpu(node).get("NVLink", 0.0)
    network = node.network_bandwidth
    many = 1
    for each in sorted(found, key=lambda each: each.beta):
        num_nodes = each.nodes or -(-each.ranks // node.gpus)
        many = max(many, num_nodes)
        if num_nodes > 1 and each.nodes and each.ranks != num_nodes * node.gpus:
            raise ValueError(
                f"{each.ranks} ranks on {num_nodes} nodes do not use all {node.gpus} GPUs and "
                f"{node.cards} cards of a node; pass a log of {num_nodes * node.gpus} ranks"
            )
        if num_nodes > 1:
            network = each.beta / LINK_UTILISATION
        elif nvlink:
            nvlink = each.beta / LINK_UTILISATION
    rows = [f"# {each}" for each in found]
    rows += [f"# rates over {LINK_UTILISATION:g}, the share that collectives reach"]
    rows += [f'chip = "{node.chip.name}"', f"gpus = {node.gpus}"]
    rows += [f"nvlink = {nvlink / GB:.4g}  # GB/s in one direction"] if nvlink else []
    if node.cards:
        card = network / node.cards / Gbit
        rows += [f"cards = {node.cards}", f"network = {card:.4g}  # Gb/s of a card"]
    return "\n".join([*rows, f"nodes = {many}", ""])
