"""What a step is predicted for: a run, and one microbatch of it on one rank.

What a rank holds and sends follows from a `Training`, which names its program: `memory.total` and
`composition.sent` take no more. Seconds also need the cluster: `step.step` takes a `Run`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shardlab.files.arguments import checked

from ..facts.hardware import ReachedLink
from ..facts.network import NETWORK, Cluster
from ..program import Program
from ..training import Training
from . import experts, exposed, layer_time
from .exposed import Passes
from .layer_time import LayerTime


@dataclass(frozen=True, kw_only=True)
@checked
class Run:
    """A training and the machine it runs on."""

    training: Training
    cluster: Cluster

    def __post_init__(self) -> None:
        if self.training.layout.ranks > self.cluster.gpus:
            raise ValueError(
                f"a layout of {self.training.layout.ranks} ranks does not fit on "
                f"{self.cluster.name} with {self.cluster.gpus} GPUs; use fewer ranks or more nodes"
            )

    def by(self, program: Program) -> "Run":
        """Return the same run by another program."""
        return replace(self, training=replace(self.training, program=program))

    @property
    def batch(self) -> int:
        """Count the sequences of one step on all ranks together."""
        training = self.training
        return training.layout.dp * training.microbatch * training.num_microbatches

    @property
    def tokens(self) -> int:
        """Count the tokens of one step on all ranks together."""
        return self.batch * self.training.tokens_per_sequence


@dataclass(frozen=True, kw_only=True)
@checked
class MicrobatchTime:
    """Seconds of one microbatch on one rank."""

    time: LayerTime
    tensor: Passes  # how long one layer waits for the other ranks of tp
    context: float  # how long one layer waits for the other ranks of cp
    first: float  # the embedding, forward and backward, with its messages
    last: float  # the head and the loss, likewise
    layer: float  # one layer, forward and backward, with its waiting
    forward: float  # what one layer computes in forward
    backward: float  # what one layer computes in backward, recomputation included
    experts: float = 0.0  # how long one layer waits for tokens to travel to experts and back
    fullest: float = 0.0  # and for the rank whose experts have the most

    @checked
    def beside(self, links: Mapping[str, ReachedLink]) -> Passes:
        """Seconds of each pass of a layer in which messages among replicas may travel.

        They travel while it computes. While it waits for ranks of tp, links in a node with twice
        the rate of the replicas' have room for both; with the same rate, and on network cards,
        whatever the one gains the other loses. links: axis -> its link, of "tp" and "replicas".
        """
        if "tp" not in links or "replicas" not in links:
            raise ValueError("links= has no tp or no replicas; use those of `axes.links`")
        tp, data = links["tp"], links["replicas"]
        room = min(1.0, max(0.0, tp.bandwidth / data.bandwidth - 1)) * (tp.kind != NETWORK)
        forward, backward = self.tensor
        return Passes(self.forward + room * forward, self.backward + room * backward)


@checked
def microbatch(run: Run, links: dict[str, ReachedLink]) -> MicrobatchTime:
    """Time one microbatch on one rank. Of the layout, pp and dp do not matter.

    links: axis -> its link, as `axes.links` finds them.
    """
    if missing := {"tp", "cp"} - links.keys():
        raise ValueError(
            f"links have no {' and '.join(sorted(missing))}; use those of `axes.links`"
        )
    training = run.training
    chip = run.cluster.node.chip
    time = layer_time.layer(training, chip)
    tensor = exposed.tensor_passes(training, links["tp"], time)
    context = exposed.context_seconds(training, links["cp"], time)
    routed = experts.waiting(training, run.cluster, links, time)
    forward = time.forward.seconds
    backward = time.backward_seconds
    logits = exposed.logits_seconds(training, links["tp"])
    message = 0.0
    if training.layout.tp > 1:
        message = exposed.all_reduce_seconds(training, links["tp"])
    return MicrobatchTime(
        time=time,
        tensor=tensor,
        context=context,
        first=sum(layer_time.embedding_seconds(training, chip)) + message,
        last=sum(layer_time.head_seconds(training, chip)) + message + logits,
        layer=forward + backward + sum(tensor) + context + sum(routed),
        forward=forward,
        backward=backward,
        experts=routed.messages,
        fullest=routed.fullest,
    )
