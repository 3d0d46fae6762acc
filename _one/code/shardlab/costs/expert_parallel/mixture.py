"""Whole mixtures: FLOPs of a token, what a rank holds with expert parallelism, and GPU hours.

Expert parallelism takes its ranks from data parallelism. Of dp ranks, ep neighbours hold different
experts and dp / ep ranks hold the same ones ("expert data parallel" in Megatron-LM); everything
else has replicas on all dp ranks. ZeRO cuts each part over its own replicas.
"""

from shardlab.arguments import Count, Positive, Share, checked, within
from shardlab.layout import Layout, divisors, listed, stages

from ..facts import mixtures
from ..facts.mixtures import SWIGLU, MixtureSpec
from ..facts.recipes import MIXED, Recipe
from ..memory import model_states

ATTENTIONS = {"full": 1.0, "causal": 0.5}  # share of the pairs of tokens that count


@checked
def flops(spec: MixtureSpec, *, sequence: Count, attention: str = "causal") -> dict[str, float]:
    """Count the FLOPs of one token's forward by part, averaged over a sequence.

    Two for each parameter that a token uses, and two for each number of a pair of tokens. The
    embedding is looked up, and norms are left out, as in `compute.flops`; backward takes twice as
    many. attention: "full" counts every pair of tokens, "causal" half of them.
    Errors: ValueError for an unknown attention.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"unknown attention {attention!r}; known: {listed(ATTENTIONS)}")
    used = mixtures.active_parameters(spec)
    pairs = ATTENTIONS[attention] * sequence * spec.attention.pair_size
    parts = {part: 2.0 * n for part, n in used.items() if part not in ("token embedding", "norms")}
    return {**parts, "scores": 2 * spec.num_layers * pairs}


@checked
def gpu_hours(
    spec: MixtureSpec,
    *,
    tokens: Positive,
    peak: Positive,
    utilisation: Share = 0.4,
    sequence: Count = 4096,
    attention: str = "causal",
) -> float:
    """Predict the hours of all GPUs together to train on `tokens`.

    peak: FLOP/s of one GPU; utilisation: the share of it that model FLOPs reach, MFU.
    """
    per_token = 3 * sum(flops(spec, sequence=sequence, attention=attention).values())
    return tokens * per_token / (peak * utilisation) / 3600


@checked
def held(spec: MixtureSpec, layout: Layout, stage: int = 0) -> dict[str, float]:
    """Count the parameters on a rank of a pipeline stage: its routed experts, and the rest.

    Dense layers are taken to come first, the embedding is on the first stage, the head on the last.
    Errors: ValueError for a layout that does not suit the model, or a stage that does not exist.
    """
    _check(spec, layout)
    within("stage", stage, layout.pp)
    layers = stages(spec.num_layers, layout.pp)[stage]
    sparse = sum(layer >= spec.num_dense_layers for layer in layers)
    dense = len(layers) - sparse
    h = spec.hidden_size
    expert = SWIGLU * h * spec.expert_size
    rest = len(layers) * (spec.attention.parameters(h) + 2 * h)
    rest += dense * SWIGLU * h * spec.dense_size
    rest += sparse * (spec.num_experts * (h + spec.router_bias) + spec.num_shared_experts * expert)
    rest += (stage == 0) * spec.vocab_size * h
    rest += (stage == layout.pp - 1) * (spec.vocab_size + 1) * h
    return {"routed experts": sparse * expert * spec.num_experts / layout.ep, "rest": float(rest)}


@checked
def states(
    spec: MixtureSpec, layout: Layout, recipe: Recipe = MIXED, stage: int = 0
) -> dict[str, float]:
    """Count the bytes of parameters, gradients and optimizer states on a rank of the stage.

    ZeRO cuts experts over dp / ep ranks, the rest over dp, and both over cp as well.
    """
    parts = held(spec, layout, stage)
    replicas = {"routed experts": layout.replicas // layout.ep, "rest": layout.replicas}
    found = [
        model_states(parts[part], recipe, dp=count, zero=layout.zero)
        for part, count in replicas.items()
    ]
    return {state: sum(each[state] for each in found) for state in found[0]}


def _check(spec: MixtureSpec, layout: Layout) -> None:
    if layout.tp > 1:
        raise ValueError(f"tp={layout.tp} would cut the experts of a published mixture; use tp=1")
    if layout.pp > spec.num_layers:
        raise ValueError(
            f"{spec.num_layers} layers leave some of pp={layout.pp} stages empty; "
            f"use pp = {spec.num_layers} or less"
        )
    if spec.num_experts % layout.ep:
        raise ValueError(
            f"{spec.num_experts} experts do not split over ep={layout.ep} ranks; "
            f"use ep = {listed(divisors(spec.num_experts))}"
        )
