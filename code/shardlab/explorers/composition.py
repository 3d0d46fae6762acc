"""The explorer of composition: one GPU's groups, what it sends along each axis, what it holds."""

from shardlab.costs import composition, memory, step, units
from shardlab.costs.facts import models, nodes
from shardlab.costs.facts.hardware import LINK_UTILISATION
from shardlab.costs.facts.network import Cluster
from shardlab.costs.training import Training
from shardlab.figures import composition as figures
from shardlab.sharding.layout import AXES_3D, Layout, groups

from .explorer import Explorer
from .view import View

MODEL = "Llama 3 70B"
SEQUENCE = 8192  # tokens
BATCH = 128  # sequences in a step
NUM_NODES = 8
ORDERS = {
    " · ".join(order): order
    for order in (AXES_3D, ("tp", "pp", "dp"), ("dp", "tp", "pp"), ("pp", "dp", "tp"))
}
ADVICE = {
    "tp": "put tp first in the order",
    "dp": "use more tp, or a lower ZeRO stage",
    "pp": "use fewer stages",
}
MACHINE = "DGX H100"
LARGEST = 8  # tp and pp on the sliders


def explorer() -> Explorer:
    """Choose ZeRO, tp, pp and an order of axes: see groups, traffic and memory of one GPU of 64."""
    return Explorer(
        layout_view,
        {"zero": [0, 1, 3], "tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], "order": list(ORDERS)},
        title=f"Three axes: {MODEL} on {NUM_NODES} {MACHINE}, a million tokens in a step",
        most={"xaxis2": 160},  # twice what one GPU has
        labels={
            "tp": "Tensor parallel (tp)",
            "pp": "Pipeline stages (pp)",
            "zero": "ZeRO over dp = 64 / (tp · pp)",
            "order": "Order of axes (first: neighbours)",
        },
        default={"tp": 8, "pp": 2, "zero": 1},
    )


def training_of(tp: int, pp: int, zero: int) -> Training:
    """Return the run: microbatches of one sequence, 1F1B, sequence parallelism where tp > 1."""
    dp = 64 // (tp * pp)
    layout = Layout(dp=dp, tp=tp, pp=pp, zero=zero if dp > 1 else 0, sequence_parallel=tp > 1)
    return Training(
        spec=models.published(MODEL).spec,
        layout=layout,
        sequence=SEQUENCE,
        num_microbatches=BATCH // dp,
    )


def layout_view(*, tp: int, pp: int, zero: int, order: str) -> View:
    """Show one state: GPU 0 among the others."""
    training = training_of(tp, pp, zero)
    cluster = nodes.cluster(MACHINE, NUM_NODES)
    layout = training.layout
    axes = ORDERS[order]
    per_node = cluster.node.gpus
    capacity = cluster.node.chip.memory
    held = memory.per_rank(training)
    mine = {
        axis: next(each for each in every if 0 in each)
        for axis, every in groups(layout, axes).items()
    }
    by_axis = {axis: sum(parts.values()) for axis, parts in composition.sent(training).items()}
    away = {axis: _crosses(ranks, per_node) for axis, ranks in mine.items()}
    sent = {
        link: {axis: by_axis[axis] * (away[axis] == outside) for axis in AXES_3D}
        for link, outside in zip(figures.LINKS, (False, True), strict=True)
    }
    figure = figures.one_rank(
        _peers(layout, mine, per_node),
        sent,
        held,
        capacity,
        alt=f"GPU 0 of 64, with {layout_name(layout)}, order {order}.",
    )
    left = composition.leaving(training, per_node, axes)
    fitting = _fitting(training, capacity)
    network = _network(training, left, cluster)
    sentence = f"<b>{layout_name(layout)}</b> {fitting} {network}"
    rows = [["axis", "ranks in a group", "GPU 0 sends in a step", "leaves the busiest node"]]
    rows += [
        [axis, str(len(mine[axis])), units.text(by_axis[axis], "B"), units.text(left[axis], "B")]
        for axis in AXES_3D
    ]
    rows += [[part, "", units.text(nbytes, "B"), ""] for part, nbytes in held.items()]
    return View(figure, sentence, rows)


def layout_name(layout: Layout) -> str:
    return f"dp={layout.dp} · tp={layout.tp} · pp={layout.pp}" + (
        f", ZeRO-{layout.zero}" if layout.zero else ""
    )


def _crosses(ranks: tuple[int, ...], per_node: int) -> bool:
    """Whether `ranks`, a group with GPU 0, has members in other nodes."""
    return max(ranks) >= per_node


def _peers(
    layout: Layout, mine: dict[str, tuple[int, ...]], per_node: int
) -> dict[str, list[tuple[int, int]]]:
    ranks = {"itself": (0,), **{axis: each[1:] for axis, each in mine.items()}}
    known = {rank for each in ranks.values() for rank in each}
    ranks["none"] = tuple(rank for rank in range(layout.ranks) if rank not in known)
    return {
        peer: [(rank % per_node, rank // per_node) for rank in each] for peer, each in ranks.items()
    }


def _fitting(training: Training, capacity: float) -> str:
    """Say whether `training` fits, and if not, which single change makes it fit."""
    whole = memory.total(training)
    if whole <= capacity:
        return f"<b>fits</b>: {units.text(whole, 'B')} of {units.text(capacity, 'B')}."
    layout = training.layout
    verdict = f"<b>does not fit</b>: {units.text(whole, 'B')} of {units.text(capacity, 'B')}"
    near = [(layout.tp, layout.pp, zero) for zero in (1, 3) if zero > layout.zero and layout.dp > 1]
    near += [(2 * layout.tp, layout.pp, layout.zero), (layout.tp, 2 * layout.pp, layout.zero)]
    for tp, pp, zero in near:
        if max(tp, pp) > LARGEST:
            continue
        changed = training_of(tp, pp, zero)
        if memory.total(changed) <= capacity:
            return f"{verdict}; {layout_name(changed.layout)} would fit."
    return f"{verdict}, and no single change makes it fit."


def _network(training: Training, left: dict[str, float], cluster: Cluster) -> str:
    """Say what crosses the network and how long that takes at least, beside the computing time."""
    total = sum(left.values())
    if not total:
        return "Nothing leaves a node."
    seconds = total / (LINK_UTILISATION * cluster.node.network_bandwidth)
    computing = step.step(step.Run(training=training, cluster=cluster)).computing
    most = max(left, key=lambda axis: left[axis])
    text = (
        f"In a step, {units.text(total, 'B')} leave the busiest node, most of it for {most}. "
        f"That takes its network at least {units.text(seconds, 's')}, "
        f"beside {units.text(computing, 's')} of computing."
    )
    if seconds > computing:
        text += f" <b>The network is the limit</b>; {ADVICE[most]}."
    return text
