"""The time of one layer with expert parallelism: who computes, who sends, and what is hidden.

Tokens inside a node and tokens across nodes travel at the same time, on different wires. What the
all-to-alls hide behind depends on the program, see `program.EXPERT_OVERLAPS`.
"""

from dataclasses import dataclass

from shardlab.arguments import Count, Positive, checked
from shardlab.layout import divisors, listed
from shardlab.spec import TransformerSpec

from ..facts import hardware, nodes
from ..facts.chips import Chip
from ..facts.hardware import LINK_UTILISATION
from ..program import BF16, EXPERT_OVERLAPS
from . import mixture
from .exchange import Exchange, sent_bytes


@dataclass(frozen=True, kw_only=True)
@checked
class Machine:
    """GPUs in nodes: the rates that one GPU reaches, in bytes/s and one direction."""

    name: str
    chip: Chip
    gpus: Count  # in a node, or in a rack that one NVSwitch joins
    inside: Positive
    across: Positive

    def per_node(self, ep: Count) -> int:
        """Count the ranks of a group of `ep` neighbours that share a node, as many as possible."""
        return max(ranks for ranks in divisors(ep) if ranks <= self.gpus)


def _of_node(name: str) -> Machine:
    """Take the rates of a known node, of which collectives reach LINK_UTILISATION."""
    node = nodes.node(name)
    rates = nodes.rates_of_a_gpu(node)
    return Machine(
        name=name,
        chip=node.chip,
        gpus=node.gpus,
        inside=LINK_UTILISATION * rates["NVLink"],
        across=LINK_UTILISATION * rates["network"],
    )


_H800 = hardware.link("NVLink 4 (H800)")
MACHINES: dict[str, Machine] = {
    machine.name: machine
    for machine in (
        _of_node("DGX H100"),
        Machine(  # an H100 with fewer links
            name="8 x H800",
            chip=hardware.chip("H100 SXM 80 GB"),
            gpus=8,
            inside=LINK_UTILISATION * _H800.bandwidth,
            across=LINK_UTILISATION * hardware.link("InfiniBand NDR").bandwidth,
        ),
        _of_node("HGX B200"),
        _of_node("NVL72 rack"),
    )
}


@checked
def machine(name: str) -> Machine:
    """Return the machine called `name`. Errors: ValueError that lists the known names."""
    if name not in MACHINES:
        raise ValueError(f"no machine is called {name!r}; known: {listed(MACHINES)}")
    return MACHINES[name]


@checked
def exchange(
    spec: TransformerSpec,
    on: Machine,
    *,
    tokens: Count,
    ep: Count,
    most_nodes: Count | None = None,
    dispatch: Positive = BF16,
    combine: Positive = BF16,
) -> Exchange:
    """Spread the experts of a model over `ep` neighbours. tokens: of each rank.

    Errors: ValueError for a model without experts.
    """
    if spec.experts is None:
        raise ValueError("the model has no experts to spread; use a spec with `experts`")
    return Exchange(
        experts=spec.experts,
        hidden_size=spec.hidden_size,
        tokens=tokens,
        ep=ep,
        per_node=on.per_node(ep),
        most_nodes=most_nodes,
        dispatch=dispatch,
        combine=combine,
    )


@checked
def travelling(each: Exchange, on: Machine, way: str) -> dict[str, float]:
    """Time a dispatch and a combine, by level: the longer one decides."""
    sent = sent_bytes(each, way).values()
    return {
        level: sum(trip[level] for trip in sent) / rate
        for level, rate in (("inside", on.inside), ("across", on.across))
    }


@checked
def layer(
    spec: TransformerSpec,
    each: Exchange,
    on: Machine,
    *,
    rate: Positive,
    way: str = "nodes",
    overlap: str = "nothing",
    imbalance: Positive = 1.0,
    expert_rate: Positive | None = None,
    sequence: Count = 4096,
) -> dict[str, float]:
    """Time the forward of one layer on its slowest rank, by part.

    rate: FLOP/s of all products; expert_rate: of the routed experts, if theirs differs. imbalance:
    fullest load over mean, a factor on experts and on what travels. overlap: of EXPERT_OVERLAPS.
    Errors: ValueError for an unknown overlap.
    """
    if overlap not in EXPERT_OVERLAPS:
        raise ValueError(f"unknown overlap {overlap!r}; known: {listed(EXPERT_OVERLAPS)}")
    counted = mixture.flops(spec, sequence=sequence)
    sparse = max(1, spec.num_layers - spec.num_dense)
    seconds = each.tokens / rate
    routed = rate if expert_rate is None else expert_rate
    parts = {
        "attention": (counted["attention"] + counted["scores"]) / spec.num_layers * seconds,
        "shared experts": counted["shared experts"] / sparse * seconds,
        "routed experts": counted["routed experts"] / sparse * each.tokens * imbalance / routed,
    }
    sending = max(travelling(each, on, way).values()) * imbalance
    hidden = min(sending, sum(parts[part] for part in EXPERT_OVERLAPS[overlap]))
    return {**parts, "all-to-all, hidden": hidden, "all-to-all, exposed": sending - hidden}
