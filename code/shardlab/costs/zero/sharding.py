"""What ZeRO's stages send and hold on each rank, over flat padded buffers as `ranks.zero` has them.

Rajbhandari et al. 2020, section 7 (https://arxiv.org/abs/1910.02054): an all-reduce is a
reduce-scatter and an all-gather, so cutting the optimizer or the gradients costs no further byte;
cutting the parameters costs half as much again.
"""

from dataclasses import replace
from math import ceil

from shardlab.files.arguments import Count, checked, within

from .. import memory
from ..memory import shards
from ..training import Training

# Layers: one computes while the next is gathered, or while gradients of the one before are sent.
WHOLE_AT_A_TIME = 2


@checked
def buffers(training: Training, stage: int = 0) -> list[int]:
    """Count the numbers in each flat buffer of a rank of the pipeline stage, without padding.

    Each layer has one buffer; what is outside the layers shares one more. Errors: ValueError where
    layers differ, and where experts are dealt to ranks, so that they have replicas of their own.
    """
    spec = training.spec
    layout = training.layout
    within("stage", stage, layout.pp)
    if layout.ep > 1 or spec.num_dense:
        raise ValueError(
            f"ep={layout.ep} and num_dense={spec.num_dense}: buffers are counted for layers that "
            "are alike and have the same replicas; use ep=1 and num_dense=0, or memory.states"
        )
    layer = shards.layer_parameters(spec, layout)
    count = training.layers_of(stage)
    held = shards.parameters(spec, layout, stage, training.chunks)
    rest = sum(held.values()) - count * layer
    return [layer] * count + [rest] * (rest > 0)


@checked
def padded(numel: int, ranks: Count) -> int:
    """Return the length of a buffer of `numel` numbers that `ranks` ranks share equally."""
    return ranks * ceil(numel / ranks)


@checked
def padding(training: Training, stage: int = 0) -> int:
    """Count the numbers of padding in all buffers together: fewer than ranks for each."""
    replicas = training.layout.replicas
    return sum(padded(numel, replicas) - numel for numel in buffers(training, stage))


@checked
def states(training: Training, stage: int = 0) -> dict[str, float]:
    """Count the bytes of a rank's states: those of `memory`, and their share of padding.

    Parameters lie in padded buffers even where they are whole; gradients only where they are cut.
    """
    recipe = training.recipe
    layout = training.layout
    padded_numbers = padding(training, stage)
    more = memory.model_states(padded_numbers, recipe, dp=layout.replicas, zero=layout.zero)
    if layout.zero < memory.CUT_FROM["gradients"]:
        more["gradients"] = 0.0
    return {part: nbytes + more[part] for part, nbytes in memory.states(training, stage).items()}


@checked
def sent_bytes(training: Training, stage: int = 0, *, hold: bool = False) -> dict[str, float]:
    """Count the bytes that a rank sends to its replicas in one step, by purpose.

    It receives as many.

    hold: gradients stay whole on each rank until the last microbatch (`no_sync`), as stages 0 and 1
    always do; otherwise stages 2 and 3 cut those of every microbatch. Around rings, or from each
    rank to each other. Whether stage 3 gathers embedding and head once or twice for a microbatch is
    a choice of the program, `regathers_ends`, and a third gather of recomputed layers `regathers`.
    """
    recipe = training.recipe
    zero = training.layout.zero
    n = training.layout.replicas
    share = (n - 1) / n
    total = sum(padded(numel, n) for numel in buffers(training, stage))
    if zero == 0:
        held = sum(buffers(training, stage))
        return {"average gradients": 2 * share * recipe.gradients * held}
    count = training.num_microbatches
    sums = 1 if hold or zero < memory.CUT_FROM["gradients"] else count
    cut = share * recipe.gradients * total * sums
    if zero < memory.CUT_FROM["parameters"]:
        gathered = share * recipe.parameters * total
        return {"cut gradients": cut, "gather after the step": gathered}
    layer = padded(shards.layer_parameters(training.spec, training.layout), n)
    regathered = training.recomputed_share * training.program.regathers
    again = layer * training.layers_of(stage) * (1 + regathered)
    if training.program.regathers_ends:
        where = training.spec, training.layout, stage, training.chunks
        again += sum(shards.embedding_and_head(*where))
    return {
        "gather in forward": count * share * recipe.parameters * total,
        "gather in backward": count * share * recipe.parameters * again,
        "cut gradients": cut,
    }


@checked
def ratio(training: Training) -> float:
    """Return what a rank sends relative to plain data parallelism.

    1, 1 and up to 1.5 for stages 1, 2 and 3 with one microbatch. Less than 1.5, because what is
    outside the layers stays whole from forward to backward.
    """
    plain = replace(training, layout=replace(training.layout, zero=0))
    return sum(sent_bytes(training).values()) / sum(sent_bytes(plain).values())


@checked
def whole_for_a_moment(training: Training, stage: int = 0) -> dict[str, float]:
    """Count the most bytes that are whole at a time: parameters and gradients.

    Two layers, and what is outside the layers, as in `ranks.zero` and torch's fully_shard.
    Parameters at stage 3, gradients at stages 2 and 3.
    """
    recipe = training.recipe
    layout = training.layout
    every = [padded(numel, layout.replicas) for numel in buffers(training, stage)]
    count = training.layers_of(stage)
    numbers = sum(every[:count][:WHOLE_AT_A_TIME]) + sum(every[count:])
    return {
        part: getattr(recipe, part) * numbers if layout.zero >= memory.CUT_FROM[part] else 0.0
        for part in ("parameters", "gradients")
    }
