"""One layer on tp ranks, predicted: what it computes, says and keeps, and up to which tp that pays.

Shoeybi et al. 2019 (https://arxiv.org/abs/1909.08053); Narayanan et al. 2021, section 3.2
(https://arxiv.org/abs/2104.04473), for the bytes; Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198), whose
measured layer of 22 billion parameters (Table 4) this prediction meets to within 3 %. Left out: matrices become less
efficient as they become narrower, so that small models gain less than predicted here (Shoeybi et al., Table 8).
"""

from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.layout import Layout, divisors, listed
from shardlab.spec import TransformerSpec

from .. import collectives, memory
from ..compute import flops
from ..facts import models
from ..facts.hardware import LINK_UTILISATION, Chip, Link
from ..facts.network import Cluster, Node
from ..facts.recipes import MIXED, Recipe
from ..memory import activations, shards
from ..traces import traffic
from ..training import Training

# Numbers read and written for each of a token's hidden numbers by norms and additions, each taken to be one kernel: a
# norm reads one and writes one, an addition to the residual reads two and writes one. In backward a norm reads the
# gradient and its input and writes one, and the gradients of both branches are added. Twice in a layer.
BETWEEN_FORWARD, BETWEEN_BACKWARD = 2 * (2 + 3), 2 * (3 + 3)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A model on tp ranks, one microbatch at a time."""

    spec: TransformerSpec
    chip: Chip
    link: Link  # of every hop; for ranks in servers, `spread`
    tp: int = 1
    microbatch: int = 1  # sequences computed at a time
    sequence: int | None = None  # tokens; None: the model's context length
    sequence_parallel: bool = False
    regather: bool = False  # with sequence_parallel: keep slices of what matrices read, gather them again in backward
    overlap: bool = False  # send while the next gradient is computed: all that is said in backward but what leaves
    # The share of the peak that matrices reach: what is left of Korthikanti et al.'s 7.7 and 7.2 ms (Table 4) after
    # two all-reduces and what lies between the matrices.
    utilisation: float = 0.56
    link_utilisation: float = LINK_UTILISATION
    recipe: Recipe = MIXED

    def __post_init__(self) -> None:
        if self.regather and not self.sequence_parallel:
            raise ValueError("regather=True gathers slices of sequences again; use it with sequence_parallel=True")
        for name in ("utilisation", "link_utilisation"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} is no share of a peak; use 0.5 for 50 %")
        _ = self.training  # raises where heads or sequences do not split

    @cached_property
    def training(self) -> Training:
        """The same for the counts of memory."""
        layout = Layout(tp=self.tp, sequence_parallel=self.sequence_parallel)
        return Training(
            spec=self.spec, layout=layout, recipe=self.recipe, microbatch=self.microbatch, sequence=self.sequence
        )

    @property
    def message(self) -> float:
        """Bytes of what enters or leaves the cut matrices, whole: b * s * h numbers."""
        return float(self.training.tokens * self.spec.hidden_size * self.recipe.element)


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Forward and backward of one layer for one microbatch. Seconds and bytes are of one rank; all ranks are alike."""

    run: Run
    matrices: dict[str, float]  # pass -> seconds of the products
    between: dict[str, float]  # pass -> seconds of norms and additions
    communication: dict[str, float]  # pass -> seconds the links are busy
    exposed: dict[str, float]  # pass -> seconds of these in which the rank waits

    @property
    def compute(self) -> float:
        """Seconds of the same layer if nothing had to be said."""
        return sum(self.matrices.values()) + sum(self.between.values())

    @property
    def waiting(self) -> float:
        """Seconds of communication that nothing hides."""
        return sum(self.exposed.values())

    @property
    def passes(self) -> dict[str, float]:
        """Duration of each pass: sums to `seconds`."""
        kinds = self.matrices, self.between, self.exposed
        return {name: sum(kind[name] for kind in kinds) for name in self.matrices}

    @property
    def seconds(self) -> float:
        """Duration of both passes."""
        return self.compute + self.waiting

    @property
    def efficiency(self) -> float:
        """Throughput of the tp ranks against as many ranks that each have a whole layer: 1 is perfect."""
        alone = layer(replace(self.run, tp=1))
        return alone.seconds / (self.run.tp * self.seconds)

    @property
    def parts(self) -> dict[str, float]:
        """The layer's duration, split: sums to `seconds`."""
        return {
            "matrices": sum(self.matrices.values()),
            "norms and residuals": sum(self.between.values()),
            "waiting": self.waiting,
        }


def layer(run: Run) -> Layer:
    """What one layer takes."""
    speed, work = run.utilisation * run.chip.peak_flops, halves(run)
    forward = sum(every for every, _ in work) / speed
    number = run.message / (run.tp if run.sequence_parallel else 1) / run.chip.memory_bandwidth
    enter, again, leave = message_seconds(run)
    said = {"forward": 2 * (enter["forward"] + leave["forward"])}
    said["backward"] = 2 * (enter["backward"] + again + leave["backward"])
    hidden = 0.0
    if run.overlap:  # the entrance's gradient travels beside that of its weights, what is gathered again beside its own
        hidden = sum(min(enter["backward"], first / speed) + min(again, first / speed) for _, first in work)
    return Layer(
        run=run,
        matrices={"forward": forward, "backward": 2 * forward},
        between={"forward": BETWEEN_FORWARD * number, "backward": BETWEEN_BACKWARD * number},
        communication=said,
        exposed={**said, "backward": said["backward"] - hidden},
    )


def halves(run: Run) -> list[tuple[float, float]]:
    """For attention and the feed-forward block: FLOPs of a rank's forward; of these, of the matrices that read x."""
    spec, readers = run.spec, 1 if run.spec.style == "gpt2" else 2
    work = flops.forward(spec, batch=run.microbatch, sequence=run.training.tokens_per_sequence)
    every = work["projections"] + work["scores"], work["feed-forward"]
    widths = spec.hidden_size + 2 * spec.kv_size, readers * spec.ffn
    first = [2 * run.training.tokens * spec.hidden_size * width for width in widths]
    return [(each / spec.num_layers / run.tp, some / run.tp) for each, some in zip(every, first, strict=True)]


def message_seconds(run: Run) -> tuple[dict[str, float], float, dict[str, float]]:
    """Seconds of what is said at one entrance in each pass, of gathering again, and at one exit in each pass."""
    link = replace(run.link, bandwidth=run.link_utilisation * run.link.bandwidth)
    if not run.sequence_parallel:
        both = collectives.all_reduce_seconds(run.message, run.tp, link)
        return {"forward": 0.0, "backward": both}, 0.0, {"forward": both, "backward": 0.0}
    half = collectives.all_gather(run.message, run.tp).seconds(link)  # a reduce-scatter takes as long
    each = {"forward": half, "backward": half}
    return each, half * run.regather, each


def sent_bytes(run: Run) -> float:
    """Bytes that each rank sends for one layer and microbatch: 8bsh(t-1)/t numbers; 10 where slices are gathered again.

    Source: Narayanan et al. 2021, section 3.2; four all-reduces of b * s * h numbers, on rings.
    """
    halves = 10 if run.regather else 8
    return halves * collectives.all_gather(run.message, run.tp).sent


def communication_ratio(run: Run) -> float:
    """Seconds of saying over seconds of computing a layer, by rule of thumb: (t - 1) * 8 e h F / (6 P beta).

    A layer of P weights takes 6 P FLOPs for each token, divided by t; each rank sends 8 h (t - 1) / t numbers of e
    bytes. Tokens cancel, and so does the batch. For GPT (P = 12 h^2) with 16 bits: (t - 1) * 2 F / (9 h beta).
    Latency, attention's scores and what lies between the matrices are left out.
    """
    weights = models.attention_parameters(run.spec) + models.feed_forward_parameters(run.spec)
    flops_per_byte = run.utilisation * run.chip.peak_flops / (run.link_utilisation * run.link.bandwidth)
    return (run.tp - 1) * 8 * run.recipe.element * run.spec.hidden_size * flops_per_byte / (6 * weights)


def most_ranks(run: Run, share: float = 0.25) -> float:
    """The tp at which `communication_ratio` reaches this share; below it, a layer says less than that."""
    return 1 + share / communication_ratio(replace(run, tp=2, sequence_parallel=False, regather=False))


def layer_bytes(run: Run) -> dict[str, float]:
    """Bytes of one layer on one rank: its states, and the activations of one microbatch."""
    states = memory.model_states(shards.layer_parameters(run.spec, run.training.layout), run.recipe)
    kept = sum(activations.layer(run.training).values())
    if run.sequence_parallel and not run.regather:
        kept += 2 * run.message * (1 - 1 / run.tp)  # what the matrices read, whole
    return {**states, "activations": kept}


def layers_that_fit(run: Run) -> int:
    """How many such layers a rank's memory holds, embedding and head left out."""
    return int(run.chip.memory // sum(layer_bytes(run).values()))


def placement(node: Node, tp: int, per_node: int | None = None) -> list[int]:
    """The GPUs of tp ranks of which so many are in each server; None: as many as it has GPUs.

    Errors: ValueError where they do not fill servers evenly, or a server has too few GPUs.
    """
    each = min(tp, node.gpus) if per_node is None else per_node
    if not 1 <= each <= node.gpus or tp % each:
        works = [count for count in divisors(tp) if count <= node.gpus]
        raise ValueError(f"tp={tp} ranks are not {each} in each {node.name} of {node.gpus} GPUs; use {listed(works)}")
    return [node.gpus * server + gpu for server in range(tp // each) for gpu in range(each)]


def spread(node: Node, tp: int, per_node: int | None = None) -> Link:
    """What a ring of so placed ranks runs at; one rank has nobody to talk to, but a link."""
    gpus = placement(node, tp, per_node)
    return traffic.as_link(Cluster(node=node, num_nodes=gpus[-1] // node.gpus + 1), gpus if tp > 1 else range(2))
