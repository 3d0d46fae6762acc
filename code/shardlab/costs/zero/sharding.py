"""What ZeRO's stages send and hold on each rank, over flat buffers with their padding, as `ranks.zero` has them.

Rajbhandari et al. 2020, section 7 (https://arxiv.org/abs/1910.02054): an all-reduce is a reduce-scatter and an
all-gather, so to cut the optimizer or the gradients costs no byte more; to cut the parameters, half as much again.
"""

from dataclasses import replace
from math import ceil

from shardlab.layout import stages

from .. import memory
from ..memory import shards
from ..training import Training

WHOLE_AT_A_TIME = 2  # layers: one computes while the next one is gathered, or its gradients fill while others leave


def buffers(training: Training, stage: int = 0) -> list[int]:
    """Numbers in each flat buffer of a rank of the pipeline stage, without padding: its layers, and what is in none."""
    spec, layout = training.spec, training.layout
    layer, count = shards.layer_parameters(spec, layout), len(stages(spec.num_layers, layout.pp)[stage])
    rest = sum(shards.parameters(spec, layout, stage).values()) - count * layer
    return [layer] * count + [rest] * (rest > 0)


def padded(numel: int, ranks: int) -> int:
    """The length of a buffer that so many ranks share equally."""
    return ranks * ceil(numel / ranks)


def padding(training: Training, stage: int = 0) -> int:
    """Numbers that belong to no parameter, in all buffers together: fewer than ranks for each."""
    replicas = training.layout.replicas
    return sum(padded(numel, replicas) - numel for numel in buffers(training, stage))


def states(training: Training, stage: int = 0) -> dict[str, float]:
    """Bytes of parameters, gradients and optimizer states on a rank: those of `memory`, and their share of padding.

    Parameters lie in padded buffers even where they are whole; gradients only where they are cut.
    """
    recipe, layout = training.recipe, training.layout
    more = memory.model_states(padding(training, stage), recipe, dp=layout.replicas, zero=layout.zero)
    if layout.zero < memory.CUT_FROM["gradients"]:
        more["gradients"] = 0.0
    return {part: nbytes + more[part] for part, nbytes in memory.states(training, stage).items()}


def pieces(ranks: int, stage: int) -> list[dict[str, tuple[float, float]]]:
    """For each rank, part of the states -> where what it holds begins and ends, as shares of the whole part."""
    return [
        {
            part: (rank / ranks, (rank + 1) / ranks) if stage >= first else (0.0, 1.0)
            for part, first in memory.CUT_FROM.items()
        }
        for rank in range(ranks)
    ]


def sent_bytes(training: Training, stage: int = 0, *, hold: bool = False) -> dict[str, float]:
    """Bytes that a rank sends to its replicas in one step, and as many that it receives, by what they are for.

    hold: gradients stay whole on each rank until the last microbatch (`no_sync`), which stages 0 and 1 always do; at
    stages 2 and 3 every microbatch cuts its own otherwise. Around rings, or from each rank to each other.
    """
    recipe, zero, n = training.recipe, training.layout.zero, training.layout.replicas
    every = [padded(numel, n) for numel in buffers(training, stage)]
    share, total = (n - 1) / n, sum(every)
    if zero == 0:
        held = sum(buffers(training, stage))
        return {"average gradients": 2 * share * recipe.gradients * held}
    count = training.num_microbatches
    cut = share * recipe.gradients * total * (1 if hold or zero < memory.CUT_FROM["gradients"] else count)
    if zero < memory.CUT_FROM["parameters"]:
        return {"cut gradients": cut, "gather after the step": share * recipe.parameters * total}
    layers = padded(shards.layer_parameters(training.spec, training.layout), n)
    again = layers * len(stages(training.spec.num_layers, training.layout.pp)[stage])
    return {
        "gather in forward": count * share * recipe.parameters * total,
        "gather in backward": count * share * recipe.parameters * again,
        "cut gradients": cut,
    }


def ratio(training: Training, *, hold: bool = False) -> float:
    """What a rank sends against plain data parallelism: 1, 1 and up to 1.5 for stages 1, 2 and 3 of one microbatch.

    Less than 1.5, because what is in no layer stays whole from forward to backward.
    """
    plain = replace(training, layout=replace(training.layout, zero=0))
    return sum(sent_bytes(training, hold=hold).values()) / sum(sent_bytes(plain).values())


def whole_for_a_moment(training: Training, stage: int = 0) -> dict[str, float]:
    """Bytes of what is whole at most at a time: gathered parameters (stage 3), gradients on their way (2 and 3).

    Two layers, and what is in none: as `ranks.zero` and torch's fully_shard have it.
    """
    recipe, layout = training.recipe, training.layout
    count = len(stages(training.spec.num_layers, layout.pp)[stage])
    every = [padded(numel, layout.replicas) for numel in buffers(training, stage)]
    numbers = sum(every[:count][:WHOLE_AT_A_TIME]) + sum(every[count:])
    return {
        part: getattr(recipe, part) * numbers if layout.zero >= memory.CUT_FROM[part] else 0.0
        for part in ("parameters", "gradients")
    }


def tokens_to_hide(training: Training, flops_per_byte: float) -> float:
    """Tokens of a microbatch on each rank from which computing can hide what stage 3 sends, on many ranks.

    flops_per_byte: FLOP/s reached over bytes/s reached. Forward takes 2 P T FLOPs and gathers e P bytes; backward
    takes twice as many, and sends e + g: the larger demand of the two. Every microbatch pays anew, whereas plain data
    parallelism sends once in a step.
    """
    recipe = training.recipe
    return flops_per_byte * max(recipe.parameters / 2, (recipe.parameters + recipe.gradients) / 4)


def tokens_to_tie(training: Training) -> float:
    """Tokens of all ranks of a group together at which tensor parallelism would send as much for a layer as stage 3.

    Stage 3 sends the layer's P weights twice and its gradients once, (2 e + g) P bytes; tensor parallelism sends four
    all-reduces of activations, 8 e T h bytes (Narayanan et al. 2021, section 3.2, https://arxiv.org/abs/2104.04473);
    both times (n - 1)/n. With fewer tokens than this stage 3 sends more. For GPT in 16 bits: 4.5 h.
    """
    spec, recipe = training.spec, training.recipe
    weights = shards.layer_parameters(spec, replace(training.layout, tp=1, sequence_parallel=False))
    return (2 * recipe.parameters + recipe.gradients) * weights / (8 * recipe.element * spec.hidden_size)
