"""Bytes that one rank holds while it trains, by part, for every layout and pipeline stage.

States: Rajbhandari et al. 2020, "ZeRO" (https://arxiv.org/abs/1910.02054).
Activations: Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198); see `activations`.
Beside tensors: see `overhead`. Left out: the messages of the pipeline and of context parallelism.
"""

from dataclasses import dataclass
from functools import lru_cache, partial

from shardlab.files.arguments import Count, checked
from shardlab.sharding.layout import ZERO_STAGES, listed

from ..facts.recipes import MIXED, Recipe
from ..training import MicrobatchesInFlight, Training
from . import activations, overhead, shards

# The ZeRO stage from which a part is cut over the replicas.
CUT_FROM = {"parameters": 3, "gradients": 2, "optimizer": 1}


@dataclass(frozen=True, kw_only=True)
@checked
class MicrobatchBytes:
    """Bytes that one microbatch needs on a rank.

    Of the layout they depend on tp, cp and sequence parallelism only.
    """

    layer: float  # what one layer keeps for backward
    embedding: float
    head: float  # the last norm, the head and the loss, without the logits
    logits: float
    loss: float  # while the loss's backward runs: gradients before and after the softmax
    backward: float  # while one layer runs backward: what it recomputes, gradients of activations
    gathered: float  # sequence parallelism's gathered input of a matrix


@checked
def per_rank(
    training: Training, stage: int = 0, one: MicrobatchBytes | None = None
) -> dict[str, float]:
    """Count the bytes on a rank of the stage at its peak.

    one: what a microbatch needs; None: see `microbatch_bytes`.
    The peak is where backward begins, with all gradients present: those of earlier microbatches, or
    the buckets of data parallelism, which exist from its start on (`ranks.data_parallel.buckets`,
    and likewise in torch's DDP). A rank alone that computes one microbatch holds less, because its
    gradients appear while activations go: see `timeline`.
    """
    one = one or microbatch_bytes(training)
    held = {**states(training, stage), **_of_microbatches(training, stage, one)}
    held["buffers"] += sum(messages(training, stage).values())
    beside = overhead.overhead(training, sum(held.values()))
    return {**held, "overhead": sum(beside.values())}


@checked
def total(training: Training) -> float:
    """Count the bytes on a rank of the fullest stage."""
    return max(sum(per_rank(training, stage).values()) for stage in fullest_stages(training))


@checked
def worst_stage(training: Training) -> int:
    """Return the stage whose ranks hold the most."""
    return max(fullest_stages(training), key=lambda stage: sum(per_rank(training, stage).values()))


@checked
def fullest_stages(training: Training) -> set[int]:
    """Return the stages that may be the fullest.

    The first has the most microbatches, the last has the head. The second has more experts than the
    first where a mixture begins with dense layers, and one layer more where embedding and head
    take the place of layers.
    """
    last = training.layout.pp - 1
    second = min(1, last)
    fuller = training.layers_of(second) > training.layers_of(0)
    return {0, last, second} if training.spec.num_dense or fuller else {0, last}


@checked
def model_states(
    num_parameters: float,
    recipe: Recipe = MIXED,
    *,
    dp: Count = 1,
    zero: int = 0,
    frozen: float = 0,
) -> dict[str, float]:
    """Count the bytes of parameters, gradients and optimizer states on one rank.

    dp: ranks that hold replicas; plain data parallelism (zero=0) does not divide by it. zero: the
    ZeRO stage, 0 to 3; each stage cuts one more part into dp pieces. frozen: parameters beside those,
    which have no gradient and no state, in the format of activations. Source: ZeRO, section 5 and
    Figure 1. Errors: ValueError for an unknown stage.
    """
    if zero not in ZERO_STAGES:
        raise ValueError(f"ZeRO has the stages {listed(ZERO_STAGES)}, not {zero}")
    nbytes = {part: getattr(recipe, part) * num_parameters for part in CUT_FROM}
    nbytes["parameters"] += recipe.element * frozen
    return {part: nbytes[part] / (dp if zero >= stage else 1) for part, stage in CUT_FROM.items()}


@checked
def states(training: Training, stage: int = 0) -> dict[str, float]:
    """Count the bytes of parameters, gradients and optimizer states on a rank of the stage.

    Routed experts have fewer replicas than the rest: only 1/ep of the ranks hold the same ones.
    """
    layout = training.layout
    routed = shards.routed(training.spec, layout, stage, training.chunks)
    every = shards.parameters(training.spec, layout, stage, training.chunks)
    rest = sum(every.values()) - routed
    cut = partial(model_states, recipe=training.recipe, zero=layout.zero)
    experts = cut(routed, dp=layout.replicas // layout.ep)
    found = {part: n + experts[part] for part, n in cut(rest, dp=layout.replicas).items()}
    if training.keeps_whole(stage):
        found["gradients"] = float(training.recipe.gradients * (rest + routed))
    return found


@checked
@lru_cache(maxsize=1)  # `kept` and `buffers` ask for the same
def microbatch_bytes(training: Training) -> MicrobatchBytes:
    """Count what one microbatch needs on a rank, for whichever stage it is on."""
    layout = training.layout
    logits = activations.logits(training)
    gathered = 0.0
    if layout.tp > 1 and layout.sequence_parallel:
        numbers = training.tokens * training.spec.hidden_size
        gathered = float(numbers * training.recipe.element)
    return MicrobatchBytes(
        layer=sum(activations.layer(training).values()),
        embedding=sum(activations.embedding(training).values()),
        head=sum(activations.head(training).values()) - logits,
        logits=logits,
        loss=activations.loss(training),
        backward=recomputed(training) + activations.layer_gradients(training),
        gathered=gathered,
    )


@checked
def of_microbatches(
    one: MicrobatchBytes, flying: MicrobatchesInFlight, layers: float, *, first: bool, last: bool
) -> dict[str, float]:
    """Count the bytes on a rank at its stage's peak that depend on the microbatches, by part.

    layers: of each chunk. first, last: whether the stage is the first, or the last, which alone has
    logits. Of the buffers that backward needs, only the largest exists.
    """
    activations = flying.all * layers * one.layer
    if first:
        activations += flying.of_first * one.embedding
    if last:
        activations += flying.of_last * one.head
    return {
        "activations": activations,
        "logits": flying.of_last * one.logits if last else 0.0,
        "buffers": one.gathered + _at_work(one, last),
    }


def _at_work(one: MicrobatchBytes, last: bool) -> float:
    return max(one.loss, one.backward) if last else one.backward


def _of_microbatches(training: Training, stage: int, one: MicrobatchBytes) -> dict[str, float]:
    flying = training.in_flight(stage)
    layers = training.layers_of(stage) / training.chunks
    last = stage == training.layout.pp - 1
    return of_microbatches(one, flying, layers, first=stage == 0, last=last)


@checked
def kept(training: Training, stage: int = 0) -> dict[str, float]:
    """Count the bytes of activations of all microbatches in flight.

    The logits have an entry of their own, because only the last stage has them.
    """
    parts = _of_microbatches(training, stage, microbatch_bytes(training))
    return {part: parts[part] for part in ("activations", "logits")}


@checked
def buffers(training: Training, stage: int = 0) -> dict[str, float]:
    """Count the bytes of temporary buffers, by purpose.

    Of those that backward needs, only the largest exists at the peak.
    """
    one = microbatch_bytes(training)
    largest = _at_work(one, stage == training.layout.pp - 1)
    return {
        "backward of a layer" if largest == one.backward else "loss": largest,
        "sequence parallelism": one.gathered,
        **messages(training, stage),
    }


@checked
def recomputed(training: Training) -> float:
    """Count the bytes that a layer holds beyond what it kept while it is recomputed."""
    if training.layer_kinds:  # of the kind that holds the most
        return max(recomputed(kind) for _, kind in training.layer_kinds)
    needed = sum(activations.whole_layer(training).values())
    return needed - sum(activations.layer(training).values())


@checked
def messages(training: Training, stage: int = 0) -> dict[str, float]:
    """Count the buckets of data parallelism, and what ZeRO-2 and -3 hold whole at the peak.

    As in torch's fully_shard, the next layer is gathered while one computes, and what is outside
    the layers stays whole from forward to the end of backward, unless the program gathers embedding
    and head again; so does the head's gradient, which is the first to be computed.
    https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
    """
    layout = training.layout
    recipe = training.recipe
    if layout.replicas == 1:
        return {}
    parts = shards.parameters(training.spec, layout, stage, training.chunks)
    layer = shards.layer_parameters(training.spec, layout)
    held = sum(parts.values())
    if layout.zero < CUT_FROM["gradients"]:
        return {"buckets": 0.0 if training.program.bucket_views else recipe.parameters * held}
    rest = held - layer * shards.sparse_layers(training.spec, layout, stage, training.chunks)
    head = 0
    if stage == layout.pp - 1:
        head = parts["head"] or parts["token embedding"]  # a tied head has no parameters
    ends = shards.embedding_and_head(training.spec, layout, stage, training.chunks)
    largest, pair = shards.largest(training.spec, layout)
    whole = pair + rest
    if training.program.regathers_ends:  # two units of the program, and what is in none
        whole = max(pair, largest + max(ends)) + rest - sum(ends)
    gathered = layout.zero >= CUT_FROM["parameters"]
    return {
        "gradients of head and layer": 0.0
        if training.keeps_whole(stage)
        else min(recipe.gradients, recipe.element) * (head + largest),
        "gathered layers": gathered * min(recipe.parameters, recipe.element) * whole,
    }
