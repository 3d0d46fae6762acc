"""Alpha and beta of your own cluster, from nccl-tests, as the file that `plan --cluster` reads."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from shardlab import trace
from shardlab.costs.collectives import library
from shardlab.costs.facts import hardware, nodes
from shardlab.costs.facts.hardware import LINK_UTILISATION
from shardlab.costs.facts.network import Cluster
from shardlab.costs.units import GB, Gbit, counted, text
from shardlab.files.arguments import checked

from .nccl_tests import MessageTime, Table


class Rates(NamedTuple):
    """What one table says in two numbers."""

    op: str
    ranks: int
    nodes: int | None
    alpha: float  # s of one step: the shortest message's time over its steps
    beta: float  # bytes/s: the bus bandwidth of the longest message


@checked
def rates(table: Table) -> Rates:
    """Reduce a table. Errors: ValueError without its ranks, or for another operation."""
    if table.op not in library.NODE_OPERATIONS or not table.ranks or table.ranks == 1:
        raise ValueError(
            f"{table.op} on {table.ranks or 'unknown'} ranks gives no rate; pass a log with its "
            f"list of devices, of {', '.join(library.NODE_OPERATIONS)}"
        )
    sized = [row for row in table.rows if row.nbytes]
    if not sized:
        raise ValueError(f"the table of {table.op} has no size above 0; use -b 8 -e 1G")
    shortest = min(sized, key=lambda row: row.nbytes)
    longest = max(sized, key=lambda row: row.nbytes)
    steps = library.NODE_OPERATIONS[table.op](1.0, table.ranks).steps
    bus = trace.ring_bytes(table.op, longest.nbytes, table.ranks)
    return Rates(table.op, table.ranks, table.nodes, _best(shortest) / steps, bus / _best(longest))


def _best(row: MessageTime) -> float:
    return min(row.out_of_place, row.in_place or row.out_of_place)


@checked
def lines(found: Sequence[Rates]) -> Iterator[str]:
    """Yield a line for each table."""
    for each in found:
        where = f" on {counted(each.nodes, 'node')}" if each.nodes else ""
        yield (
            f"{each.op} of {each.ranks} ranks{where}: alpha {text(each.alpha, 's')} a step, "
            f"beta {text(each.beta, 'B/s')}"
        )


@checked
def toml(found: Sequence[Rates], cluster: Cluster) -> str:
    """Describe the cluster with the rates of its own links.

    A ring of one node gives the rate of NVLink, and a ring of several that of all network cards of
    a node together. What is sold is the rate that is reached over `LINK_UTILISATION`. Errors:
    ValueError for a chip that has no name here.
    """
    node = cluster.node
    if node.chip.name not in hardware.CHIPS:
        raise ValueError(f"{node.chip.name!r} is no known chip; use --node")
    sold = nodes.rates_of_a_gpu(node)
    card = node.network_bandwidth / node.cards if node.cards else 0.0
    nvlink = sold.get("NVLink", 0.0)
    for each in sorted(found, key=lambda each: each.beta):
        if (each.nodes or -(-each.ranks // node.gpus)) > 1:
            card = each.beta / LINK_UTILISATION / max(1, node.cards)
        elif nvlink:
            nvlink = each.beta / LINK_UTILISATION
    many = max((each.nodes or -(-each.ranks // node.gpus) for each in found), default=1)
    rows = [f"# {line}" for line in lines(found)]
    rows += [f"# rates over {LINK_UTILISATION:g}, the share that collectives reach"]
    rows += [f'chip = "{node.chip.name}"', f"gpus = {node.gpus}"]
    rows += [f"nvlink = {nvlink / GB:.4g}  # GB/s in one direction"] if nvlink else []
    if node.cards:
        rows += [f"cards = {node.cards}", f"network = {card / Gbit:.4g}  # Gb/s of a card"]
    return "\n".join([*rows, f"nodes = {many}", ""])


@checked
def write(path: Path, content: str) -> None:
    """Write a new file. Errors: ValueError for one that exists, or cannot be written."""
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; name a new file") from None
