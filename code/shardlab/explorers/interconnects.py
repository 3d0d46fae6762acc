"""The explorers of interconnects: the busiest hop, and the fabric."""

from shardlab import exchanges
from shardlab.costs import units
from shardlab.costs.collectives import fabric
from shardlab.costs.facts import hardware, nodes
from shardlab.costs.traces import crossings, writing
from shardlab.figures import interconnects as figures

from .explorer import Explorer
from .view import View

SERVERS = ("PCIe box, 100 GbE", "DGX-1V", "DGX A100", "DGX H100", "HGX B200")  # of eight GPUs
PODS = {  # cabling -> nodes whose cards end at the same leaves, each with 32 ports for cards
    "rails: card i of 32 nodes at leaf i": 32,
    "node by node: all cards of 4 nodes at one leaf": 4,
}
HOPS = ("NVLink", "PCIe", "host", "network")  # kinds, as they lie from the GPU outwards
TRAFFIC = {"ring, nodes in order": True, "all-to-all, or a ring in any order": False}
NUM_NODES = [2**exponent for exponent in range(1, 11)]


# ---- the busiest hop -----------------------------------------------------------------------------


def busiest() -> Explorer:
    """Choose how many ranks add up a buffer, how, and where: see which hop decides."""
    return Explorer(
        busiest_view,
        {
            "ranks": [2, 4, 8, 16],
            "machine": list(SERVERS),
            "algorithm": list(exchanges.ALL_REDUCES),
        },
        title="The busiest hop of an all-reduce of 1 GB",
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
    figure = figures.busy({kind: busy[hop] for kind, hop in worst.items()}, HOPS)
    return View(figure, sentence, rows)


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
