"""Bandwidths that DeepEP prints for dispatch and combine, and what our constants predict.

It prints logical bandwidths: bytes of tokens for every node, or rank, that holds a chosen expert,
the sender's own included, over the time (https://github.com/deepseek-ai/DeepEP#performance). The
sender's own bytes use no wire, so they are subtracted.
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked

from .. import expert_parallel as costs
from ..expert_parallel import TokenTraffic
from ..facts import mixtures, nodes
from ..facts.hardware import LINK_UTILISATION
from ..program import FP8
from .rows import rows

PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
@checked
class Dispatched:
    """One row of a table of DeepEP: tokens of DeepSeek-V3, fp8 there and bf16 back."""

    library: str
    machine: str  # a node; of "SM90" we assume an H100, of "SM100" a B200
    ep: Count
    tokens: Count  # of each rank
    dispatch: Positive  # bytes/s, logical
    combine: Positive
    source: str

    @property
    def name(self) -> str:
        """A short description of what was measured."""
        return f"DeepEP {self.library}, {self.ep} ranks, {self.machine.rpartition(' ')[2]}"

    @property
    def traffic(self) -> TokenTraffic:
        """The tokens of the row, and the ranks between which they travel."""
        spec = mixtures.published("DeepSeek-V3").spec
        assert spec.experts is not None
        return TokenTraffic(
            experts=spec.experts,
            hidden_size=spec.hidden_size,
            tokens=self.tokens,
            ep=self.ep,
            per_node=PER_NODE,
            most_nodes=4,
            dispatch_bytes=FP8,
        )

    @property
    def own(self) -> float:
        """The share of logical bytes that stay in the node; on one node, in the GPU."""
        return 1 / (self.traffic.nodes if self.ep > PER_NODE else self.ep)

    @property
    def wire(self) -> float:
        """Bytes/s over a GPU's own link, on average over both trips."""
        return (self.dispatch + self.combine) / 2 * (1 - self.own)

    @property
    def predicted(self) -> float:
        """Logical bytes/s at LINK_UTILISATION of each link's rate: the slower level decides."""
        e = self.traffic
        rates = nodes.rates_of_a_gpu(nodes.node(self.machine))
        inside, across = (LINK_UTILISATION * rates[wire] for wire in ("NVLink", "network"))
        travelling = costs.copies(e, "nodes")
        seconds = max(travelling["inside"] / inside, travelling["across"] / across)
        level = "across" if e.nodes > 1 else "inside"
        return travelling[level] / (1 - self.own) / seconds


PUBLISHED = rows("deepep", Dispatched)
