"""What a step is predicted for: a run, and one microbatch of it on one rank."""

from dataclasses import dataclass
from typing import NamedTuple

from ..facts.hardware import Link
from ..facts.network import Cluster
from ..training import Training
from . import exposed, layer_time
from .engines import NEMO_2024, Engine
from .layer_time import LayerTime


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is trained, how it is cut, on what, by what kind of program."""

    training: Training
    cluster: Cluster
    engine: Engine = NEMO_2024
    precision: str | None = None  # of the matrices of the layers: "fp8"; None: what models are trained in

    def __post_init__(self) -> None:
        if self.training.layout.ranks > self.cluster.gpus:
            raise ValueError(
                f"a layout of {self.training.layout.ranks} ranks does not fit on {self.cluster.name} "
                f"with {self.cluster.gpus} GPUs; use fewer ranks or more nodes"
            )

    @property
    def batch(self) -> int:
        """Sequences of one step, on all ranks together."""
        return self.training.layout.dp * self.training.microbatch * self.training.num_microbatches

    @property
    def tokens(self) -> int:
        """Of one step, on all ranks together."""
        return self.batch * self.training.tokens_per_sequence


class Micro(NamedTuple):
    """Seconds of one microbatch on one rank."""

    time: LayerTime
    tensor: float  # a layer's waiting for its peers of tp
    context: float  # of cp
    first: float  # the embedding, forward and backward, with its messages
    last: float  # the head and the loss
    layer: float  # one layer, forward and backward, with its waiting
    forward: float  # what a layer computes in forward
    backward: float  # in backward


def microbatch(run: Run, links: dict[str, Link]) -> Micro:
    """One microbatch on one rank. Of the layout only tp, cp and sequence parallelism matter."""
    training, chip = run.training, run.cluster.node.chip
    time = layer_time.layer(training, chip, run.precision)
    tensor = exposed.tensor_seconds(training, run.engine, links["tp"], time)
    context = exposed.context_seconds(training, run.engine, links["cp"], time)
    forward, backward = time.forward.seconds, time.backward_seconds
    message = exposed.all_reduce_seconds(training, links["tp"]) if training.layout.tp > 1 else 0.0
    return Micro(
        time=time,
        tensor=tensor,
        context=context,
        first=sum(layer_time.embedding_seconds(training, chip)) + message,
        last=sum(layer_time.head_seconds(training, chip)) + message,
        layer=forward + backward + tensor + context,
        forward=forward,
        backward=backward,
    )
