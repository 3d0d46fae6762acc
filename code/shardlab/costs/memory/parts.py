"""Bytes that one rank holds while it trains, part by part, for every layout and pipeline stage.

States: Rajbhandari et al. 2020, "ZeRO" (https://arxiv.org/abs/1910.02054).
Activations: Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198); see `activations`.
Left out: the CUDA context, libraries' own memory, fragmentation; what a layer's backward holds for a moment beside what
it reads; messages of the pipeline and of context parallelism.
"""

from shardlab.layout import ZERO_STAGES, listed, stages

from ..facts.recipes import MIXED, Recipe
from ..training import Training, in_flight
from . import activations, shards

CUT_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}  # the ZeRO stage from which a part is cut


def per_rank(training: Training, stage: int = 0) -> dict[str, float]:
    """Bytes on a rank of the stage at its peak: when backward begins, with gradients of earlier microbatches there.

    A step of one microbatch holds less, because its gradients appear while its activations go: see `timeline`.
    """
    return {**states(training, stage), **kept(training, stage), "buffers": sum(buffers(training, stage).values())}


def total(training: Training) -> float:
    """Bytes on a rank of the worst stage."""
    return max(sum(per_rank(training, stage).values()) for stage in _ends(training))


def worst_stage(training: Training) -> int:
    """The stage whose ranks hold the most."""
    return max(_ends(training), key=lambda stage: sum(per_rank(training, stage).values()))


def _ends(training: Training) -> set[int]:
    """The stages that may be the worst: the first has most layers and microbatches, the last has the head."""
    return {0, training.layout.pp - 1}


def model_states(
    num_parameters: float, recipe: Recipe = MIXED, *, dp: int = 1, zero: int = 0
) -> dict[str, float]:
    """Bytes on one rank for parameters, gradients and optimizer states.

    dp: ranks that hold replicas; plain data parallelism (zero=0) does not divide by it. zero: the ZeRO
    stage, 0 to 3, of which each cuts one more part into dp pieces. Source: ZeRO, section 5 and Figure 1.
    Errors: ValueError for dp below 1, an unknown stage, or a negative size.
    """
    if dp < 1 or num_parameters < 0:
        raise ValueError(f"{num_parameters} parameters on {dp} ranks is no layout; use at least 0 and 1")
    if zero not in ZERO_STAGES:
        raise ValueError(f"ZeRO has the stages {listed(ZERO_STAGES)}, not {zero}")
    return {
        part: getattr(recipe, part) * num_parameters / (dp if zero >= stage else 1)
        for part, stage in CUT_FROM.items()
    }


def states(training: Training, stage: int = 0) -> dict[str, float]:
    """Bytes of parameters, gradients and optimizer states on a rank of the stage."""
    layout = training.layout
    held = sum(shards.parameters(training.spec, layout, stage).values())
    return model_states(held, training.recipe, dp=layout.replicas, zero=layout.zero)


def kept(training: Training, stage: int = 0) -> dict[str, float]:
    """Bytes of activations of all microbatches in flight; the logits are named, for they are only on the last stage."""
    pp, flying = training.layout.pp, in_flight(training, stage)
    layers = len(stages(training.spec.num_layers, pp)[stage]) / training.chunks
    parts = {"activations": layers * sum(flying) * sum(activations.layer(training).values()), "logits": 0.0}
    if stage == 0:
        parts["activations"] += flying[0] * sum(activations.embedding(training).values())
    if stage == pp - 1:
        head = activations.head(training)
        parts["logits"] = flying[-1] * head.pop("logits")
        parts["activations"] += flying[-1] * sum(head.values())
    return parts


def buffers(training: Training, stage: int = 0) -> dict[str, float]:
    """Bytes that come and go, by what they are for; only one of those that backward needs is there at a time."""
    layout = training.layout
    backward = {
        "loss": 2 * activations.logits(training) * (stage == layout.pp - 1),  # gradient before and after the softmax
        "recomputation": recomputed(training),
    }
    largest = max(backward, key=lambda part: backward[part])
    gathered = layout.tp > 1 and layout.sequence_parallel
    return {
        largest: backward[largest],
        "sequence parallelism": gathered * training.tokens * training.spec.hidden_size * float(training.recipe.element),
        **_messages(training, stage),
    }


def recomputed(training: Training) -> float:
    """Bytes that the layer in work holds beyond what it kept."""
    return sum(activations.whole_layer(training).values()) - sum(activations.layer(training).values())


def _messages(training: Training, stage: int) -> dict[str, float]:
    """Buckets of data parallelism, and what ZeRO-2 and -3 have whole when backward begins.

    As torch's fully_shard does it: while a layer computes the next one is gathered, and what is not in a layer stays
    whole from forward to the end of backward; so does the head's gradient, which is the first to be made.
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    spec, layout, recipe = training.spec, training.layout, training.recipe
    if layout.replicas == 1:
        return {}
    parts, layer = shards.parameters(spec, layout, stage), shards.layer_parameters(spec, layout)
    held = sum(parts.values())
    if layout.zero < CUT_FROM["gradients"]:
        return {"buckets": 0.0 if training.bucket_views else recipe.gradients * held}
    rest = held - layer * len(stages(spec.num_layers, layout.pp)[stage])
    head = parts["head"] or parts["token embedding"] if stage == layout.pp - 1 else 0  # no head of its own: tied
    gathered = layout.zero >= CUT_FROM["parameters"]
    return {
        "gradients of head and layer": recipe.gradients * (head + layer),
        "gathered layers": gathered * recipe.parameters * (2 * layer + rest),
    }
