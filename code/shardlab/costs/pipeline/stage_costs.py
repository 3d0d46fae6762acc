"""A transformer as `balance` sees it: the units that stages are made of, with their time and bytes.

The head makes a stage slow: its product with a large vocabulary takes as long as several layers.
For such reasons Llama 3 takes one layer from the first stage and one from the last (Llama Team
2024, section 3.3.2, https://arxiv.org/abs/2407.21783).
"""

from shardlab.arguments import Positive, checked

from ..compute import flops
from ..facts import models
from ..memory import activations
from ..training import Training
from .balance import Layer


@checked
def names(training: Training) -> list[str]:
    """Name the units in the order of the model."""
    return ["embedding", *(f"layer {layer}" for layer in range(training.spec.num_layers)), "head"]


@checked
def pieces(training: Training, speed: Positive) -> list[Layer]:
    """List embedding, layers, and head with the last norm. speed: FLOP/s that a device reaches.

    seconds and activations are of one microbatch: forward, a backward of twice the FLOPs, and what
    backward computes again. The head counts as a copy even if it is tied, because on its own stage
    it is a second copy of the embedding.
    """
    spec = training.spec
    per_parameter = training.recipe.bytes_per_parameter
    step = flops.training_step(
        spec,
        batch=training.microbatch,
        sequence=training.tokens_per_sequence,
        recomputation=training.recomputation,
    )
    work = step["forward"]
    again = step["recomputed"]
    counts = models.parameters(spec)
    head = work.pop("head")
    layer = Layer(
        seconds=(3 * sum(work.values()) + sum(again.values())) / spec.num_layers / speed,
        states=per_parameter * models.layer_parameters(spec),
        activations=sum(activations.layer(training).values()),
    )
    embedding = Layer(
        seconds=0.0,  # it looks up
        states=per_parameter * (counts["token embedding"] + counts["position embedding"]),
        activations=sum(activations.embedding(training).values()),
    )
    last = Layer(
        seconds=3 * head / speed,
        states=per_parameter * (spec.vocab_size * spec.hidden_size + models.norm_parameters(spec)),
        activations=sum(activations.head(training).values()),
    )
    return [embedding, *[layer] * spec.num_layers, last]
