"""A transformer as `balance` sees it: the units that stages are made of, with their time and bytes.

The head makes a stage slow: its product with a large vocabulary takes as long as several layers.
For such reasons Llama 3 takes one layer from the first stage and one from the last (Llama Team
2024, section 3.3.2, https://arxiv.org/abs/2407.21783).
"""

from shardlab.files.arguments import checked

from .. import memory
from ..facts import models
from ..facts.hardware import Chip
from ..memory import overhead, shards
from ..step import layer_time
from ..training import Training
from . import balance
from .balance import Layer


@checked
def pieces(training: Training, chip: Chip) -> list[Layer]:
    """List embedding, layers, and head with the last norm and the loss; dp must be 1.

    seconds: as `costs.step` times them for one microbatch, without messages. Bytes include the
    program's margin.
    """
    one = memory.microbatch_bytes(training)
    first, last = (
        shards.parameters(training.spec, training.layout, stage)
        for stage in (0, training.layout.pp - 1)
    )
    embedding = first["token embedding"] + first["position embedding"]
    inner = shards.layer_parameters(training.spec, training.layout)
    head = last["head"] + models.norm_parameters(training.spec)
    time = layer_time.layer(training, chip)
    margin = 1 + training.program.margin

    def piece(seconds: float, parameters: int, activations: float) -> Layer:
        states = margin * training.recipe.bytes_per_parameter * parameters
        return Layer(seconds=seconds, states=states, activations=margin * activations)

    layer = piece(time.forward.seconds + time.backward_seconds, inner, one.layer)
    return [
        piece(sum(layer_time.embedding_seconds(training, chip)), embedding, one.embedding),
        *[layer] * training.spec.num_layers,
        piece(sum(layer_time.head_seconds(training, chip)), head, one.head + one.logits),
    ]


@checked
def held(training: Training) -> list[int]:
    """Count the microbatches that each stage holds at its peak."""
    return [training.in_flight(stage).all for stage in range(training.layout.pp)]


@checked
def beside(training: Training) -> list[float]:
    """Count the bytes of each stage beside its units: buffers with their margin, and the rest."""
    fixed = sum(overhead.fixed(training).values())
    margin = 1 + training.program.margin
    buffers = [memory.buffers(training, stage) for stage in range(training.layout.pp)]
    return [fixed + margin * sum(each.values()) for each in buffers]


@checked
def split(training: Training, chip: Chip) -> balance.Partition:
    """Find the fastest cut that fits. Errors: those of `balance.split`."""
    units = pieces(training, chip)
    return balance.split(units, held(training), memory=chip.memory, beside=beside(training))
