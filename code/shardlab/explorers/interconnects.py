"""The explorers of interconnects: the path of a message, the busiest hop, and the fabric."""

from shardlab import exchanges
from shardlab.costs import units
from shardlab.costs.collectives import fabric
from shardlab.costs.facts import hardware, hops, nodes
from shardlab.costs.traces import crossings, writing
from shardlab.figures import interconnects as figures
from shardlab.figures import topology

from .explorer import Explorer
from .view import View

MACHINES = (
    "Two RTX 4090",
    "Two RTX 3090, bridged",
    "PCIe box, 100 GbE",
    "DGX-1V",
    "DGX A100",
    "DGX H100",
    "HGX B200",
)
PODS = {  # cabling -> nodes whose cards end at the same leaves, each with 32 ports for cards
    "rails: card i of 32 nodes at leaf i": 32,
    "node by node: all cards of 4 nodes at one leaf": 4,
}
TRAFFIC = {"ring, nodes in order": True, "all-to-all, or a ring in any order": False}
NUM_NODES = [2**exponent for exponent in range(1, 11)]


# ---- paths ---------------------------------------------------------------------------------------


def paths() -> Explorer:
    """Choose a machine and a GPU: see the wires that a message from GPU 0 passes."""
    return Explorer(
        path_view,
        {"machine": list(MACHINES), "to": list(range(1, 8))},
        title="The path of a message",
        labels={"to": "From GPU 0 to GPU"},
        default={"machine": "DGX-1V", "to": 5},
    )


def path_view(*, machine: str, to: int) -> View:
    """Show one state: the node with the path drawn in it."""
    cluster = nodes.cluster(machine)
    there = min(to, cluster.gpus - 1)
    path = cluster.path(0, there)
    rate = hops.bandwidth(path)
    parts = hops.parts(path)
    name = f"GPU 0 to GPU {there}: {rate / 1e9:.3g} GB/s"
    narrow = min(path, key=lambda hop: hop.bandwidth)
    wide = nodes.rates_of_a_gpu(cluster.node).get("NVLink")
    seconds = units.text(1e9 / rate, "s")
    sentence = (
        f"The path is {' → '.join(parts)}. In one direction it carries "
        f"<b>{units.text(rate, 'B/s')}</b>; 1 GB takes {seconds}."
    )
    if wide and rate < wide:
        joined = any(hop.kind == "NVLink" for hop in path)
        sentence += (
            f" All NVLinks of a GPU together carry {units.text(wide, 'B/s')}; "
            f"this pair shares {'only some' if joined else 'none'} of them."
        )
    elif len({hop.bandwidth for hop in path}) > 1:
        sentence += f" The narrowest hop is {narrow.name}."
    rows = [[hop.name, units.text(hop.bandwidth, "B/s")] for hop in path]
    figure = topology.topology(cluster.node.drawn, paths={name: parts})
    return View(figure, sentence, [["hop", "one direction"], *rows])


# ---- the busiest hop -----------------------------------------------------------------------------


def busiest() -> Explorer:
    """Choose how many ranks add up a buffer, how, and where: see which hop decides."""
    servers = MACHINES[2:]  # of eight GPUs
    return Explorer(
        busiest_view,
        {
            "ranks": [2, 4, 8, 16],
            "machine": list(servers),
            "algorithm": list(exchanges.ALL_REDUCES),
        },
        title="The busiest hop of an all-reduce of 1 GB",
        per=["ranks"],  # 1 to 733 ms
        labels={"ranks": "Ranks, one GPU each"},
        default={"ranks": 8, "machine": "DGX-1V", "algorithm": "ring"},
    )


def busiest_view(*, ranks: int, machine: str, algorithm: str) -> View:
    """Show one state: how long each kind of hop is busy at least."""
    cluster = nodes.cluster(machine, max(1, ranks // 8))
    events = writing.of_plan(exchanges.ALL_REDUCES[algorithm](ranks), 10**9)
    carries = crossings.bytes_on(events, cluster)
    busy = {hop: nbytes / hop.bandwidth for hop, nbytes in carries.items()}
    worst = {hop.kind: hop for hop in sorted(busy, key=busy.__getitem__)}  # of each kind
    last = max(busy, key=busy.__getitem__)
    carried = units.text(carries[last], "B")
    sentence = (
        f"The busiest hop is {last.name}: it carries {carried} at "
        f"{units.text(last.bandwidth, 'B/s')}, so the all-reduce takes at least "
        f"<b>{units.text(busy[last], 's')}</b>."
    )
    rows = [["kind", "its busiest hop", "carries", "in one direction", "busy for"]]
    for kind, hop in worst.items():
        rate, seconds = hop.bandwidth, busy[hop]
        shown = units.text(carries[hop], "B"), units.text(rate, "B/s"), units.text(seconds, "s")
        rows += [[kind, hop.name, *shown]]
    return View(figures.busy({kind: busy[hop] for kind, hop in worst.items()}), sentence, rows)


# ---- the fabric ----------------------------------------------------------------------------------


def fabrics() -> Explorer:
    """Choose the cables behind the cards: see the rate that every card reaches."""
    return Explorer(
        fabric_view,
        {"oversubscription": [1, 2, 4, 7], "nodes": NUM_NODES[1::2], "cabling": list(PODS)},
        title="Behind the cards: what leaves and spines leave of 400 Gb/s",
        labels={
            "oversubscription": "Cables down for each cable up",
            "nodes": "Nodes of eight GPUs in the job",
        },
        default={"oversubscription": 4, "nodes": 256},
    )


def fabric_view(*, oversubscription: int, nodes: int, cabling: str) -> View:
    """Show one state: the rate of a card for a ring and for an all-to-all."""
    card = hardware.link("InfiniBand NDR").bandwidth
    counts = sorted({*NUM_NODES, nodes})
    rates, rows = {}, [["traffic", "of the bytes pass a spine", "each card reaches"]]
    for name, neighbours in TRAFFIC.items():
        shares = {n: fabric.crossing(n, PODS[cabling], neighbours=neighbours) for n in counts}
        rates[name] = [fabric.card_rate(card, shares[n], oversubscription) for n in counts]
        reached = units.text(rates[name][counts.index(nodes)], "B/s")
        rows += [[name, units.percent(shares[nodes]), reached]]
    (_, _, ring), (_, share, everybody) = rows[1:]
    sentence = (
        f"Of an all-to-all {share} of the bytes pass a spine, and each card reaches "
        f"<b>{everybody}</b>; in a ring that visits the nodes in order it reaches {ring}."
    )
    return View(figures.card_rates(counts, rates, nodes), sentence, rows)
