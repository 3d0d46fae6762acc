"""One layer on tp ranks, predicted: what it computes, sends and keeps, and which tp pays.

Shoeybi et al. 2019 (https://arxiv.org/abs/1909.08053); Narayanan et al. 2021, section 3.2
(https://arxiv.org/abs/2104.04473), for the bytes; Korthikanti et al. 2022
(https://arxiv.org/abs/2205.05198), whose measured layer of a 22-billion model (Table 4) this
prediction meets to within 3 %. Left out: matrices become less efficient as they become narrower, so
that small models gain less than predicted here (Shoeybi et al., Table 8).
"""

from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.arguments import Count, Positive, Share, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout, divisors, listed

from .. import collectives, memory
from ..compute import flops
from ..facts import models
from ..facts.hardware import LINK_UTILISATION, Chip, Link
from ..facts.network import Cluster, Node
from ..facts.recipes import MIXED, Recipe
from ..memory import activations, shards
from ..traces import traffic
from ..training import Training

# Numbers read and written by norms and additions for each of a token's hidden numbers, each being
# one kernel: a norm reads one and writes one, an addition to the residual reads two and writes one.
# In backward a norm reads the gradient and its input and writes one, and the gradients of both
# branches are added. Twice in a layer.
BETWEEN_FORWARD, BETWEEN_BACKWARD = 2 * (2 + 3), 2 * (3 + 3)


@dataclass(frozen=True, kw_only=True)
@checked
class TensorParallelRun:
    """A model on tp ranks, one microbatch at a time."""

    spec: TransformerSpec
    chip: Chip
    link: Link  # of every hop; for ranks in servers, `spread`
    tp: Count = 1
    microbatch: Count = 1  # sequences computed at a time
    sequence: Count | None = None  # tokens; None: the model's context length
    sequence_parallel: bool = False
    # With sequence_parallel: keep slices of the matrices' inputs, and gather them again in
    # backward.
    regather: bool = False
    # Overlap backward's messages with gradients, except those at the exits.
    overlap: bool = False
    # The share of the peak that matrices reach: it follows from Korthikanti et al.'s 7.7 and 7.2 ms
    # (Table 4) less two all-reduces and the operations between the matrices.
    utilisation: Share = 0.56
    link_utilisation: Share = LINK_UTILISATION
    recipe: Recipe = MIXED

    def __post_init__(self) -> None:
        if self.regather and not self.sequence_parallel:
            raise ValueError(
                "regather=True gathers slices of sequences again; "
                "use it with sequence_parallel=True"
            )
        _ = self.training  # raises where heads or sequences do not split

    @cached_property
    def training(self) -> Training:
        """The same run for the counts of memory."""
        layout = Layout(tp=self.tp, sequence_parallel=self.sequence_parallel)
        return Training(
            spec=self.spec,
            layout=layout,
            recipe=self.recipe,
            microbatch=self.microbatch,
            sequence=self.sequence,
        )

    @property
    def message(self) -> float:
        """Bytes of a whole input or output of the cut matrices: b * s * h numbers."""
        return float(self.training.tokens * self.spec.hidden_size * self.recipe.element)


@dataclass(frozen=True, kw_only=True)
@checked
class TensorParallelLayer:
    """Forward and backward of one layer for one microbatch, in seconds of one rank."""

    run: TensorParallelRun
    matrices: dict[str, float]  # pass -> seconds of the products
    between: dict[str, float]  # pass -> seconds of norms and additions
    communication: dict[str, float]  # pass -> seconds for which the links are busy
    exposed: dict[str, float]  # pass -> seconds of these for which the rank waits

    def __post_init__(self) -> None:
        kinds = self.matrices, self.between, self.communication, self.exposed
        if any(kind.keys() != self.matrices.keys() for kind in kinds):
            raise ValueError(
                "matrices, between, communication and exposed must name the same passes"
            )

    @property
    def compute(self) -> float:
        """Seconds of the same layer without communication."""
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
        """Throughput against as many ranks that each have a whole layer: 1 is perfect."""
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


@checked
def layer(run: TensorParallelRun) -> TensorParallelLayer:
    """Predict one layer."""
    speed = run.utilisation * run.chip.peak_flops
    work = halves(run)
    forward = sum(every for every, _ in work) / speed
    sharing = run.tp if run.sequence_parallel else 1
    number = run.message / sharing / run.chip.memory_bandwidth  # seconds to move each number once
    enter, again, leave = message_seconds(run)
    communication = {
        "forward": 2 * (enter["forward"] + leave["forward"]),
        "backward": 2 * (enter["backward"] + again + leave["backward"]),
    }
    hidden = 0.0
    if run.overlap:  # an entrance's gradient, and what is gathered again, overlap one product each
        products = [first / speed for _, first in work]
        hidden = sum(min(enter["backward"], each) + min(again, each) for each in products)
    return TensorParallelLayer(
        run=run,
        matrices={"forward": forward, "backward": 2 * forward},
        between={"forward": BETWEEN_FORWARD * number, "backward": BETWEEN_BACKWARD * number},
        communication=communication,
        exposed={**communication, "backward": communication["backward"] - hidden},
    )


@checked
def halves(run: TensorParallelRun) -> list[tuple[float, float]]:
    """Count the FLOPs of attention and of the feed-forward block, as (all, matrices that read x).

    Of a rank's forward.
    """
    spec = run.spec
    sequence = run.training.tokens_per_sequence
    work = flops.forward(spec, batch=run.microbatch, sequence=sequence)
    readers = 1 if spec.style == "gpt2" else 2  # matrices of the feed-forward block that read x
    products = 2 * run.training.tokens * spec.hidden_size
    attention = work["projections"] + work["scores"]
    entering = products * (spec.attention_size + 2 * spec.kv_size)
    return [
        (attention / spec.num_layers / run.tp, entering / run.tp),
        (work["feed-forward"] / spec.num_layers / run.tp, products * readers * spec.ffn / run.tp),
    ]


@checked
def message_seconds(run: TensorParallelRun) -> tuple[dict[str, float], float, dict[str, float]]:
    """Time the messages at one entrance by pass, of gathering again, at one exit by pass."""
    link = replace(run.link, bandwidth=run.link_utilisation * run.link.bandwidth)
    if not run.sequence_parallel:
        both = collectives.all_reduce_seconds(run.message, run.tp, link)
        return {"forward": 0.0, "backward": both}, 0.0, {"forward": both, "backward": 0.0}
    # A reduce-scatter takes as long.
    half = collectives.all_gather(run.message, run.tp).seconds(link)
    each = {"forward": half, "backward": half}
    return each, half * run.regather, each


@checked
def sent_bytes(run: TensorParallelRun) -> float:
    """Count the bytes that each rank sends for one layer and microbatch: 8bsh(t-1)/t numbers.

    10bsh(t-1)/t where slices are gathered again. Source: Narayanan et al. 2021, section 3.2: four
    all-reduces of b * s * h numbers, on rings.
    """
    count = 10 if run.regather else 8
    return count * collectives.all_gather(run.message, run.tp).sent


@checked
def communication_ratio(run: TensorParallelRun) -> float:
    """Return a layer's communication time over its computing time: (t - 1) * 8 e h F / (6 P beta).

    A rule of thumb. A layer of P weights takes 6 P FLOPs for each token, divided by t; each rank
    sends 8 h (t - 1) / t numbers of e bytes. Tokens cancel, and so does the batch. For GPT (P = 12
    h^2) in 16 bits: (t - 1) * 2 F / (9 h beta). Left out: latency, attention's scores, and the
    operations between the matrices.
    """
    weights = models.attention_parameters(run.spec) + models.feed_forward_parameters(run.spec)
    bytes_reached = run.link_utilisation * run.link.bandwidth
    flops_per_byte = run.utilisation * run.chip.peak_flops / bytes_reached
    sent = (run.tp - 1) * 8 * run.recipe.element * run.spec.hidden_size
    return sent * flops_per_byte / (6 * weights)


@checked
def most_ranks(run: TensorParallelRun, share: Positive = 0.25) -> float:
    """Return the tp at which `communication_ratio` reaches `share`."""
    two = replace(run, tp=2, sequence_parallel=False, regather=False)
    return 1 + share / communication_ratio(two)


@checked
def layer_bytes(run: TensorParallelRun) -> dict[str, float]:
    """Count the bytes of one layer on one rank: its states, and one microbatch's activations."""
    parameters = shards.layer_parameters(run.spec, run.training.layout)
    states = memory.model_states(parameters, run.recipe)
    kept = sum(activations.layer(run.training).values())
    if run.sequence_parallel and not run.regather:
        kept += 2 * run.message * (1 - 1 / run.tp)  # what the matrices read, whole
    return {**states, "activations": kept}


@checked
def layers_that_fit(run: TensorParallelRun) -> int:
    """Count the layers that a rank's memory holds, without embedding and head."""
    return int(run.chip.memory // sum(layer_bytes(run).values()))


@checked
def placement(node: Node, tp: Count, per_node: Count | None = None) -> list[int]:
    """List the GPUs of tp ranks, `per_node` of them in each server; None: as many as it has GPUs.

    Errors: ValueError where they do not fill servers evenly, or a server has too few GPUs.
    """
    each = min(tp, node.gpus) if per_node is None else per_node
    if not 1 <= each <= node.gpus or tp % each:
        works = [count for count in divisors(tp) if count <= node.gpus]
        raise ValueError(
            f"tp={tp} ranks are not {each} in each {node.name} of {node.gpus} GPUs; "
            f"use {listed(works)}"
        )
    return [node.gpus * server + gpu for server in range(tp // each) for gpu in range(each)]


@checked
def spread(node: Node, tp: Count, per_node: Count | None = None) -> Link:
    """Return the link of a ring through ranks placed in this way; one rank gets the link of two."""
    gpus = placement(node, tp, per_node)
    cluster = Cluster(node=node, num_nodes=gpus[-1] // node.gpus + 1)
    return traffic.as_link(cluster, gpus if tp > 1 else range(2))
