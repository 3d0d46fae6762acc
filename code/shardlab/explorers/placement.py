"""The explorers of placement: the order of the axes, and the knee of the network."""

from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

from shardlab.costs import step, units
from shardlab.costs.facts import models, nodes
from shardlab.costs.programs import BOOK
from shardlab.costs.traces import crossings, knee, replay
from shardlab.costs.training import Training
from shardlab.costs.units import MiB
from shardlab.figures import placement as figures
from shardlab.sharding.layout import AXES_3D, Layout, groups
from shardlab.trace import Event

from .explorer import Explorer
from .view import View

LARGE = "Llama 3 8B"
SMALL = "Llama 3.2 3B"  # fits on one GPU, too, as data parallelism alone needs it
SEQUENCE = 4096  # tokens
CLUSTERS = ("DGX H100", "DGX A100", "AWS p4d.24xlarge", "PCIe box, 100 GbE")
HOPS = ("NVLink", "PCIe", "network")  # kinds: a row each, in every machine
LAYOUTS = {
    "tp=8, dp=4": Layout(tp=8, dp=4),
    "tp=4, dp=8": Layout(tp=4, dp=8),
    "tp=4, dp=4, pp=2": Layout(tp=4, dp=4, pp=2),
    "tp=2, dp=4, pp=4": Layout(tp=2, dp=4, pp=4),
}
ORDERS = {" · ".join(each): each for each in permutations(AXES_3D)}  # the first axis: neighbours
NUM_NODES = 4
# Long buckets: latencies of a ring through 32 GPUs weigh little.
PROGRAM = replace(BOOK, bucket_bytes=100 * MiB)
GLOBAL_BATCH = 32  # sequences
TOGETHER = 7  # layers replayed as one, so that a page is computed in seconds
RATES = [1e9 * 2.0**exponent for exponent in range(11)]  # bytes/s of a node: 8 Gb/s to 8 Tb/s
WAYS = {
    "dp=32": Layout(dp=32),
    "tp=8, dp=4": Layout(tp=8, dp=4),
    "tp=8, dp=2, pp=2": Layout(tp=8, dp=2, pp=2),
}


# ---- the order of the axes -----------------------------------------------------------------------


def orders() -> Explorer:
    """Choose a layout, its axes' order and a machine: see the traffic and the time of a step."""
    return Explorer(
        order_view,
        {"layout": list(LAYOUTS), "order": list(ORDERS), "machine": list(CLUSTERS)},
        title=f"Which axis goes over which link: {LARGE} on 32 GPUs",
        labels={
            "order": "Order of axes (first: neighbours)",
            "machine": f"{NUM_NODES} nodes of",
        },
    )


def order_view(*, layout: str, order: str, machine: str) -> View:
    """Show one state: bytes through the busiest links, and the step's time in each order."""
    cluster = nodes.cluster(machine, NUM_NODES)
    carried = _carried(layout, _laid(layout, order), machine)
    seconds = {each: _seconds(layout, _laid(layout, each), machine) for each in ORDERS}
    best = min(seconds, key=lambda each: seconds[each])
    crossing = [
        figures.NAMES[axis] for axis, nbytes in carried.get("network", {}).items() if nbytes
    ]
    over = (
        f"These axes use the network: {', '.join(crossing)}."
        if crossing
        else "Nothing leaves a node."
    )
    here, there = units.text(seconds[order], "s"), units.text(seconds[best], "s")
    ratio = seconds[order] / seconds[best]
    verdict = f"a step takes <b>{here}</b>, and no order is faster."
    if ratio > 1.005:  # noqa: PLR2004, half a percent
        verdict = (
            f"a step takes <b>{here}</b>, {ratio:.2f} times as long as with "
            f"the order {best} ({there})."
        )
    sentence = f"{over} {verdict[0].upper()}{verdict[1:]}"
    rows = [["order, replayed on " + cluster.name, "time of a step"]]
    rows += [[each, units.text(value, "s")] for each, value in seconds.items()]
    lanes = {kind: carried.get(kind, dict.fromkeys(AXES_3D, 0.0)) for kind in HOPS}
    return View(figures.crossings(lanes), sentence, rows)


def _laid(layout: str, order: str) -> str:
    """Put the axes of one rank last: orders that differ in those alone lay the same groups."""
    return " · ".join(sorted(ORDERS[order], key=lambda axis: getattr(LAYOUTS[layout], axis) == 1))


@cache
def _seconds(layout: str, order: str, machine: str) -> float:
    events = _ordered(layout, order, machine)
    return replay.replay(events, nodes.cluster(machine, NUM_NODES)).seconds


@cache
def _carried(layout: str, order: str, machine: str) -> dict[str, dict[str, float]]:
    events = _ordered(layout, order, machine)
    lie = groups(LAYOUTS[layout], ORDERS[order])
    return crossings.busiest(events, nodes.cluster(machine, NUM_NODES), lie)


@cache
def _ordered(layout: str, order: str, machine: str) -> list[Event]:
    chosen = LAYOUTS[layout]
    pieces = 4 if chosen.pp > 1 else 1
    size = GLOBAL_BATCH // chosen.dp // pieces
    return _program(LARGE, chosen, machine, ORDERS[order], microbatch=size, num_microbatches=pieces)


def _program(
    model: str, layout: Layout, machine: str, order: tuple[str, ...] = AXES_3D, **sizes: Any
) -> list[Event]:
    spec = models.published(model).spec
    training = Training(spec=spec, layout=layout, sequence=SEQUENCE, program=PROGRAM, **sizes)
    run = step.Run(training=training, cluster=nodes.cluster(machine, NUM_NODES))
    return step.trace(run, order, layers_at_a_time=TOGETHER)


# ---- the knee ------------------------------------------------------------------------------------


def knees() -> Explorer:
    """Choose how 32 GPUs train a model: see a step's time by the bandwidth between nodes."""
    return Explorer(
        knee_view,
        {
            "layout": list(WAYS),
            "sequences_per_gpu": [1, 2, 4],
            "machine": ["DGX A100", "DGX H100", "HGX B200"],
        },
        title=f"How fast must the network be: {SMALL} on 32 GPUs",
        labels={"sequences_per_gpu": f"{SEQUENCE:,}-token sequences per GPU and step"},
        default={"machine": "DGX H100"},
    )


def knee_view(*, layout: str, sequences_per_gpu: int, machine: str) -> View:
    """Show one state: the curve, its knee, and the bandwidth of the machine."""
    cluster = nodes.cluster(machine, NUM_NODES)
    *seconds, limit = curve(layout, sequences_per_gpu, machine)
    have = cluster.node.network_bandwidth
    known = dict(zip([*RATES, knee.RANGE[1]], [*seconds, limit], strict=True))
    at = knee.knee(_data_program(layout, sequences_per_gpu, machine), cluster, known)
    relative = [each / limit for each in seconds]
    figure = figures.knee(RATES, {layout: relative}, have=have)
    share = at / have
    sentence = (
        f"From <b>{_bits(at)}</b> on, a faster network makes a step at most 5 % faster; "
        f"{machine} has {_bits(have)}, of which this run needs {units.percent(share)}."
    )
    if share > 1:
        sentence += (
            " That is too little: larger microbatches would give the gradients "
            "more computing to hide behind."
        )
    rows = [["bandwidth of one node", "time of a step"]]
    rows += [
        [_bits(rate), units.text(each, "s")] for rate, each in zip(RATES, seconds, strict=True)
    ]
    return View(figure, sentence, [*rows, ["without limit", units.text(limit, "s")]])


@cache
def curve(layout: str, sequences_per_gpu: int, machine: str) -> list[float]:
    """Replay a step at each of RATES, and without a limit: seconds."""
    events = _data_program(layout, sequences_per_gpu, machine)
    return knee.curve(events, nodes.cluster(machine, NUM_NODES), [*RATES, knee.RANGE[1]])


@cache
def _data_program(layout: str, sequences_per_gpu: int, machine: str) -> list[Event]:
    chosen = WAYS[layout]
    pieces = sequences_per_gpu * chosen.pp
    return _program(SMALL, chosen, machine, microbatch=chosen.tp, num_microbatches=pieces)


def _bits(rate: float) -> str:
    return units.text(8 * rate, "b/s")
