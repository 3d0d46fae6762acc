"""The explorers of expert parallelism: who waits for the fullest expert, and where ep fits."""

from dataclasses import replace
from functools import cache
from math import ceil

from shardlab.costs import expert_parallel as costs
from shardlab.costs import memory as held_bytes
from shardlab.costs import units
from shardlab.costs.facts import mixtures, nodes
from shardlab.costs.facts.network import Cluster
from shardlab.costs.program import EXPERT_OVERLAPS
from shardlab.costs.programs import BOOK
from shardlab.costs.step import experts as step_experts
from shardlab.costs.training import Training
from shardlab.figures import expert_parallel as figures
from shardlab.figures import memory
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from .explorer import Explorer
from .view import View

TOKENS = 512  # of all ranks together, in one microbatch: enough for a load, few enough to draw
SKEWS = {"all alike": 0.0, "some popular": 0.5, "few popular": 1.0}
BALANCES = ("nothing", "capacity 1.25", "a learned bias")
CAPACITY = 1.25
STEPS, STEP = 20, 0.15  # of learning the bias

MODEL = "DeepSeek-V3"  # the width, attention and depth of the second explorer's mixtures
CHOSEN = 8 * 2048  # width of all experts of a token together, however many they are
STAGES, GROUPS = 16, 64  # pipeline stages, and ranks of dp
SEQUENCE = 4096  # tokens of one sequence, or fewer if a rank has fewer
PLACES = ("DGX H100", "HGX B200", "NVL72 rack")


def routing_explorer() -> Explorer:
    """Route tokens to experts: see loads, what is dropped, and the slowest rank."""
    return Explorer(
        routing_view,
        {
            "experts": [16, 64],
            "per_token": [1, 2, 8],
            "ep": [4, 8],
            "skew": list(SKEWS),
            "balance": list(BALANCES),
        },
        title="Who waits for the fullest expert",
        most={"yaxis": 4},  # even loads; a few popular ones of 64 have 13
        labels={
            "experts": "Experts of the layer",
            "per_token": "Experts of each token",
            "ep": "Ranks that share the experts",
            "skew": "The router finds experts",
            "balance": "Balanced by",
        },
        default={"per_token": 2, "ep": 8, "skew": "some popular"},
    )


@cache
def routed(experts: int, per_token: int, skew: str, balance: str) -> tuple[list[int], list[float]]:
    """Return the tokens of each expert, and how many of them find no slot.

    A bias is learned on one batch and applied to the next.
    """
    seen, here = (costs.arrivals(TOKENS, experts, SKEWS[skew], seed) for seed in (0, 1))
    favour = None
    if balance == "a learned bias":
        favour = costs.favours(seen, per_token, steps=STEPS, step=STEP)
    loads = costs.loads(costs.chosen(here, per_token, favour), experts)
    capacity = CAPACITY if balance == "capacity 1.25" else None
    rules = Experts(num_experts=experts, per_token=per_token, expert_size=1, capacity=capacity)
    slots = rules.slots(TOKENS)
    return loads, [max(0, load - slots) for load in loads]


def routing_view(*, experts: int, per_token: int, ep: int, skew: str, balance: str) -> View:
    """Show one state."""
    loads, over = routed(experts, per_token, skew, balance)
    fits = [load - more for load, more in zip(loads, over, strict=True)]
    size = experts // ep
    ranks = [sum(fits[size * rank : size * (rank + 1)]) for rank in range(ep)]
    even = TOKENS * per_token  # choices of all tokens
    slowest, dropped = max(ranks) * ep / even, sum(over) / even
    alt = f"Tokens of {experts} experts on {ep} ranks, router {skew}, balanced by {balance}."
    figure = figures.load(fits, over, ep, alt=alt)
    fullest = max(fits) * experts / even
    lost = f", and {units.percent(dropped)} of all choices find no slot" if dropped else ""
    sentence = (
        f"The fullest expert computes {fullest:.2f} times the even load. All ranks wait for rank "
        f"{ranks.index(max(ranks))}, so the experts take <b>{slowest:.2f} times</b> as long as "
        f"with an even load{lost}."
    )
    if balance == "a learned bias":
        sentence += f" The bias was learned on {TOKENS} other tokens, and fits their noise, too."
    header = ["rank", "experts", "computes", "no slot left"]
    rows = []
    for rank, count in enumerate(ranks):
        first, last = size * rank, size * (rank + 1)
        rows += [[f"rank {rank}", f"{first} to {last - 1}", count, sum(over[first:last])]]
    return View(figure, sentence, [header, *rows])


def machine_explorer() -> Explorer:
    """Choose mixture, ranks and machine: see memory, bytes, time, and what is hidden."""
    return Explorer(
        machine_view,
        {
            "experts": [64, 256],
            "per_token": [2, 8],
            "ep": [8, 16, 64],
            "tokens": [1024, 8192],
            "machine": list(PLACES),
            "overlap": list(EXPERT_OVERLAPS),
        },
        title="Where expert parallelism fits",
        most={"xaxis": 200},  # a little more than the largest GPU has
        labels={
            "experts": "Experts of each layer",
            "per_token": "Experts of each token, of the same total width",
            "ep": "Ranks that share the experts",
            "tokens": "Tokens of each rank",
            "machine": "Machine",
            "overlap": "The all-to-alls hide behind",
        },
        default={"experts": 256, "per_token": 8, "ep": 64, "tokens": 8192},
    )


@cache
def mixture(experts: int, per_token: int) -> TransformerSpec:
    """Return a mixture whose experts of a token have the same width together, however many."""
    width = CHOSEN // per_token
    base = mixtures.published(MODEL).spec
    rules = Experts(
        num_experts=experts,
        per_token=per_token,
        expert_size=width,
        num_shared=1,
        choose="sigmoid",
        balance="bias",
    )
    return replace(base, experts=rules)


def training(*, experts: int, per_token: int, ep: int, tokens: int, overlap: str) -> Training:
    """Return what one state trains: as the book's Trainer, with a copy of a token to each node."""
    spec = mixture(experts, per_token)
    assert spec.experts is not None
    sequence = min(tokens, SEQUENCE)
    return Training(
        spec=spec,
        layout=Layout(dp=GROUPS, pp=STAGES, ep=ep, zero=1),
        microbatch=tokens // sequence,
        sequence=sequence,
        imbalance=costs.expected_imbalance(spec.experts, tokens * ep, ep),
        program=replace(BOOK, expert_strategy="nodes", expert_overlap=overlap),
    )


@cache
def cluster(machine: str) -> Cluster:
    """Return as many nodes as hold the ranks of one pipeline stage."""
    return nodes.cluster(machine, ceil(GROUPS / nodes.node(machine).gpus))


def machine_view(
    *, experts: int, per_token: int, ep: int, tokens: int, machine: str, overlap: str
) -> View:
    """Show one state."""
    run = training(experts=experts, per_token=per_token, ep=ep, tokens=tokens, overlap=overlap)
    servers = cluster(machine)
    held = held_bytes.states(run, stage=1)
    each = step_experts.token_traffic(run, servers)
    sent = costs.sent_bytes(each, "nodes")
    seconds = step_experts.forward(run, servers)
    name = f"ep = {ep}"
    alt = f"Memory of a rank and time of one layer, {experts} experts over {ep} ranks of {machine}."
    total, capacity = sum(held.values()), servers.node.chip.memory
    title = "one layer's forward, slowest rank (ms)"
    figure = memory.above_time(
        {name: held}, {name: seconds}, figures.TIMES, capacity, title=title, alt=alt
    )
    verdict = "<b>do not fit</b>"
    if total <= capacity:
        verdict = f"leave {units.text(capacity - total, 'B')} for all else"
    exposed = seconds["all-to-all, exposed"]
    whole = sum(seconds.values()) - seconds["all-to-all, hidden"]
    late = "All of the all-to-alls are hidden."
    if exposed:
        late = f"All-to-alls are <b>exposed</b> for {units.percent(exposed / whole)} of the layer."
    where = "one NVSwitch" if each.nodes == 1 else f"{each.nodes} nodes"
    sentence = (
        f"{ep} ranks on {where} share {experts} experts of width {each.experts.expert_size:,}; "
        f"{units.text(total, 'B')} of states alone {verdict}. {late}"
    )
    rows = [["one rank", name], *([part, units.text(n, "B")] for part, n in held.items())]
    rows += [["states", units.text(total, "B")], ["fullest rank / mean", f"{run.imbalance:.3f}"]]
    for level in ("inside", "across"):
        nbytes = sum(trip[level] for trip in sent.values())
        rows += [[f"dispatch and combine, {level}", units.text(nbytes, "B")]]
    rows += [[part, units.text(value, "s")] for part, value in seconds.items()]
    return View(figure, sentence, rows)
