"""One layer on tp ranks: what tensor parallelism adds to a step, and which tp pays.

The seconds are those of `costs.step`, by the program of the training. Shoeybi et al. 2019
(https://arxiv.org/abs/1909.08053); Narayanan et al. 2021, section 3.2
(https://arxiv.org/abs/2104.04473), for the bytes. A layer that Korthikanti et al. 2022 measured
(https://arxiv.org/abs/2205.05198, Table 4) is met to within 2 %.
"""

from dataclasses import dataclass, replace

from shardlab.files.arguments import Count, Positive, checked
from shardlab.sharding.layout import Layout, divisors, listed

from .. import collectives, memory
from ..compute import flops
from ..facts import models
from ..facts.hardware import Chip, ReachedLink
from ..facts.network import Cluster, Node
from ..memory import activations, overhead, shards
from ..step import layer_time
from ..step.exposed import Passes, activation_bytes, tensor_passes
from ..step.layer_time import LayerTime
from ..traces import traffic
from ..training import Training


@dataclass(frozen=True, kw_only=True)
@checked
class TensorParallelLayer:
    """Forward and backward of one layer for one microbatch, in seconds of one rank."""

    training: Training
    chip: Chip
    link: ReachedLink  # of every hop
    time: LayerTime
    busy: Passes  # how long the links are busy
    exposed: Passes  # how long the rank waits for them

    @property
    def compute(self) -> float:
        """Seconds of the same layer without communication."""
        return self.time.forward.seconds + self.time.backward_seconds

    @property
    def waiting(self) -> float:
        """Seconds of communication that nothing hides."""
        return sum(self.exposed)

    @property
    def passes(self) -> Passes:
        """Duration of forward and of backward: sums to `seconds`."""
        forward, backward = self.exposed
        return Passes(self.time.forward.seconds + forward, self.time.backward_seconds + backward)

    @property
    def seconds(self) -> float:
        """Duration of both passes."""
        return self.compute + self.waiting

    @property
    def efficiency(self) -> float:
        """Throughput against as many ranks that each have a whole layer: 1 is perfect."""
        whole = layer(replace(self.training, layout=Layout()), self.chip, self.link)
        return whole.seconds / (self.training.layout.tp * self.seconds)

    @property
    def parts(self) -> dict[str, float]:
        """The layer's duration, split: sums to `seconds`."""
        forward, backward = self.time.forward, self.time.backward
        again = {"recomputation": self.time.recomputed} if self.time.recomputed else {}
        return {
            "matrices": forward.matrices + backward.matrices,
            "attention": forward.attention + backward.attention,
            "norms and residuals": forward.between + backward.between,
            **again,
            "waiting": self.waiting,
        }


@checked
def layer(training: Training, chip: Chip, link: ReachedLink) -> TensorParallelLayer:
    """Predict one layer. Of the layout only tp matters. link: see `spread`."""
    time = layer_time.layer(training, chip)
    nothing_hidden = replace(training.program, tensor_overlap="none")
    return TensorParallelLayer(
        training=training,
        chip=chip,
        link=link,
        time=time,
        busy=tensor_passes(replace(training, program=nothing_hidden), link, time),
        exposed=tensor_passes(training, link, time),
    )


@checked
def rate(training: Training, chip: Chip) -> float:
    """Return the model FLOP/s of a rank while it computes a layer: the F of the rule of thumb."""
    spec = training.spec
    work = flops.forward(spec, batch=training.microbatch, sequence=training.tokens_per_sequence)
    forward = (sum(work.values()) - work["head"]) / spec.num_layers / training.layout.tp
    time = layer_time.layer(training, chip)
    return 3 * forward / (time.forward.seconds + time.backward_seconds)


@checked
def sent_bytes(training: Training) -> float:
    """Count the bytes that each rank sends for one layer and microbatch: 8bsh(t-1)/t numbers.

    10bsh(t-1)/t where slices are gathered again, and 4 more where all layers are recomputed. Source:
    Narayanan et al. 2021, section 3.2: four all-reduces of b * s * h numbers, on rings.
    """
    layout = training.layout
    again = layout.sequence_parallel and not training.program.keeps_gathered
    halves = 8 + 2 * again + 4 * training.recomputed_share
    part = training.spec.halves / 2
    return part * halves * collectives.all_gather(activation_bytes(training), layout.tp).sent


@checked
def communication_ratio(training: Training, chip: Chip, link: ReachedLink) -> float:
    """Return a layer's communication time over its computing time: (t - 1) * 8 e h F / (6 P beta).

    A rule of thumb. A layer of P weights takes 6 P FLOPs for each token, divided by t; each rank
    sends 8 h (t - 1) / t numbers of e bytes. Tokens cancel, and so does the batch. For GPT (P = 12
    h^2) in 16 bits: (t - 1) * 2 F / (9 h beta). Left out: latency and attention's scores.
    """
    spec = training.spec
    weights = models.attention_parameters(spec) + models.feed_forward_parameters(spec)
    sent = (training.layout.tp - 1) * 8 * training.recipe.element * spec.hidden_size
    return sent * rate(training, chip) / link.bandwidth / (6 * weights)


@checked
def most_ranks(training: Training, chip: Chip, link: ReachedLink, share: Positive = 0.25) -> float:
    """Return the tp at which `communication_ratio` reaches `share`."""
    two = replace(training, layout=Layout(tp=2))
    return 1 + share / communication_ratio(two, chip, link)


@checked
def layer_bytes(training: Training) -> dict[str, float]:
    """Count the bytes of one layer on one rank: its states, and one microbatch's activations."""
    parameters = shards.layer_parameters(training.spec, training.layout)
    kept = sum(activations.layer(training).values())
    return {**memory.model_states(parameters, training.recipe), "activations": kept}


@checked
def layers_that_fit(training: Training, chip: Chip) -> int:
    """Count the layers that fit beside a process's overhead, without embedding and head."""
    free = chip.memory - sum(overhead.fixed(training).values())
    needed = (1 + training.program.margin) * sum(layer_bytes(training).values())
    return max(0, int(free // needed))


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
def spread(node: Node, tp: Count, per_node: Count | None = None) -> ReachedLink:
    """Return the link of a ring through ranks placed in this way.

    One rank gets the link of two.
    """
    gpus = placement(node, tp, per_node)
    cluster = Cluster(node=node, num_nodes=gpus[-1] // node.gpus + 1)
    return traffic.as_link(cluster, gpus if tp > 1 else range(2)).reached
