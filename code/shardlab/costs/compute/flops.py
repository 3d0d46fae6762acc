"""FLOPs of one training step, part by part: the matrix products, all but a few percent of the work.

A product of [m, k] and [k, n] takes 2*m*k*n FLOPs, a multiplication and an addition each. The
backward pass takes twice the forward's: one product for the gradient of the input, one for that of
the weight. Source: Narayanan et al. 2021, appendix (https://arxiv.org/abs/2104.04473). As there,
norms, activations, softmax and the optimizer are left out.

"Model FLOPs" count nothing twice. "Hardware FLOPs" add what is recomputed to save memory (Chowdhery
et al. 2022, section 4.1, https://arxiv.org/abs/2204.02311).
"""

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec

from ..facts import models

PAIRS = ("full", "causal")
RECOMPUTATIONS = {
    "none": "every activation is kept",
    "selective": "attention's scores are recomputed",
    "full": "every layer's forward is recomputed",
}


@checked
def forward(
    spec: TransformerSpec, *, batch: Count, sequence: Count, pairs: str = "full"
) -> dict[str, int]:
    """Count the FLOPs of the forward pass of `batch` sequences of `sequence` tokens.

    pairs: "full" counts every pair of tokens, as papers on utilisation do
    (Chowdhery et al. 2022, appendix B, https://arxiv.org/abs/2204.02311); "causal"
    counts the pairs that a causal mask leaves, about half.

    Errors: ValueError for no tokens, more than the context, or unknown pairs.
    """
    tokens = spec.tokens(batch, sequence)
    counted = batch * _count(sequence, pairs)  # queries by keys, then scores by values
    return {
        "projections": 2 * tokens * _projections(spec),
        "scores": 2 * counted * spec.num_attention * 2 * spec.attention_size,
        "feed-forward": 2 * tokens * spec.hidden_size * _widths(spec),
        "head": 2 * tokens * spec.hidden_size * spec.vocab_size,
    } | _states(spec, tokens)


@checked
def backward(
    spec: TransformerSpec, *, batch: Count, sequence: Count, pairs: str = "full"
) -> dict[str, int]:
    """Count the FLOPs of the backward pass: twice the forward's, part by part."""
    counts = forward(spec, batch=batch, sequence=sequence, pairs=pairs)
    return {part: 2 * count for part, count in counts.items()}


@checked
def recomputed(
    spec: TransformerSpec,
    *,
    batch: Count,
    sequence: Count,
    pairs: str = "full",
    recomputation: str = "full",
) -> dict[str, int]:
    """Count the FLOPs of the forward that backward runs again, by part; see RECOMPUTATIONS.

    The head is never recomputed: its input is the last activation to be kept and the first to be
    used (Narayanan et al. 2021, equation 3, counts it once). For "selective", Korthikanti et al.
    2022 (equation 8) print three times as much: see `korthikanti_hardware_flops`. Errors:
    ValueError for an unknown recomputation.
    """
    if recomputation not in RECOMPUTATIONS:
        raise ValueError(
            f"unknown recomputation {recomputation!r}; known: {', '.join(RECOMPUTATIONS)}"
        )
    parts = {
        "none": (),
        "selective": ("scores",),
        "full": ("projections", "scores", "states", "feed-forward"),
    }[recomputation]
    counts = forward(spec, batch=batch, sequence=sequence, pairs=pairs)
    return {part: count for part, count in counts.items() if part in parts}


@checked
def training_step(
    spec: TransformerSpec,
    *,
    batch: Count,
    sequence: Count,
    pairs: str = "full",
    recomputation: str = "none",
) -> dict[str, dict[str, int]]:
    """Count the FLOPs of forward, backward and recomputation, each by part."""
    return {
        "forward": forward(spec, batch=batch, sequence=sequence, pairs=pairs),
        "backward": backward(spec, batch=batch, sequence=sequence, pairs=pairs),
        "recomputed": recomputed(
            spec, batch=batch, sequence=sequence, pairs=pairs, recomputation=recomputation
        ),
    }


@checked
def model_flops(
    spec: TransformerSpec, *, batch: Count, sequence: Count, pairs: str = "full"
) -> int:
    """Count the model FLOPs of one step: three times the forward's."""
    return 3 * sum(forward(spec, batch=batch, sequence=sequence, pairs=pairs).values())


@checked
def hardware_flops(
    spec: TransformerSpec,
    *,
    batch: Count,
    sequence: Count,
    pairs: str = "full",
    recomputation: str = "full",
) -> int:
    """Count the FLOPs of one step, recomputation included."""
    parts = training_step(
        spec, batch=batch, sequence=sequence, pairs=pairs, recomputation=recomputation
    )
    return sum(sum(part.values()) for part in parts.values())


@checked
def korthikanti_hardware_flops(spec: TransformerSpec, *, batch: Count, sequence: Count) -> int:
    """Count hardware FLOPs with selective recomputation as in Korthikanti et al. 2022, equation 8.

    To the s/6h of the model FLOPs the paper adds s/6h: all score products of a step once more,
    forward and backward. The method recomputes their forward only, a third of that (s/18h). The
    paper's Table 5 follows the equation (https://arxiv.org/abs/2205.05198).
    """
    parts = training_step(spec, batch=batch, sequence=sequence)
    scores = parts["forward"]["scores"] + parts["backward"]["scores"]
    return model_flops(spec, batch=batch, sequence=sequence) + scores


@checked
def six_n_d(num_parameters: float, tokens: float) -> float:
    """Apply the rule of thumb: 6 FLOPs for each parameter and token.

    It leaves out the scores, too little for long sequences, and counts an embedding that is only
    looked up, too much where the head is not tied. Source: Kaplan et al. 2020,
    https://arxiv.org/abs/2001.08361
    """
    return 6 * num_parameters * tokens


@checked
def six_n_d_error(spec: TransformerSpec, *, sequence: Count) -> float:
    """Return the rule of thumb's error as a share of the exact count: -0.03 is 3 % too little."""
    exact = model_flops(spec, batch=1, sequence=sequence)
    return six_n_d(models.num_parameters(spec), sequence) / exact - 1


@checked
def palm_per_token(
    num_parameters: float, *, num_layers: int = 0, attention_size: int = 0, sequence: int = 0
) -> float:
    """Count the model FLOPs of one token by PaLM's formula, 6N + 12 L H Q T; without the sizes, 6N.

    attention_size: heads times numbers per head (H Q). Source: Chowdhery et al. 2022, appendix B.
    """
    return 6 * num_parameters + 12 * num_layers * attention_size * sequence


def _count(sequence: int, pairs: str) -> int:
    """Count the pairs of tokens whose scores a head computes."""
    if pairs not in PAIRS:
        raise ValueError(f"unknown pairs {pairs!r}; known: {', '.join(PAIRS)}")
    return sequence * sequence if pairs == "full" else sequence * (sequence + 1) // 2


def _projections(spec: TransformerSpec) -> int:
    """Count the weights of all layers' matrices around attention, or around states."""
    recurrent = spec.recurrent
    states = spec.num_recurrent * recurrent.matrices(spec.hidden_size) if recurrent else 0
    return spec.num_attention * models.attention_matrices(spec) + states


def _states(spec: TransformerSpec, tokens: int) -> dict[str, int]:
    """Count what layers do that keep states instead of keys: it grows with the tokens alone."""
    recurrent = spec.recurrent
    return {"states": tokens * spec.num_recurrent * recurrent.flops} if recurrent else {}


def _widths(spec: TransformerSpec) -> int:
    """Sum the widths of the feed-forward matrices that a token meets, over all layers."""
    experts = spec.experts
    if not experts:
        return spec.num_blocks * (2 + spec.has_gate) * spec.ffn
    chosen = experts.per_token * experts.expert_size + experts.shared_size
    routed = (2 + spec.has_gate) * chosen
    routed += experts.num_experts + experts.shared_gate  # the router, and a weight of shared ones
    dense = (2 + spec.dense.has_gate) * spec.ffn
    return (spec.num_blocks - spec.num_dense) * routed + spec.num_dense * dense
