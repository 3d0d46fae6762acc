"""FLOPs of one training step, part by part: the matrix products, which are all but a few percent of the work.

A product of [m, k] and [k, n] takes 2*m*k*n FLOPs, a multiplication and an addition each. The backward pass
takes twice the forward's: one product for the gradient of the input, one for that of the weight. Source:
Narayanan et al. 2021, appendix (https://arxiv.org/abs/2104.04473). Norms, activations, softmax and the
optimizer are left out, as there.

"Model FLOPs" compute nothing twice. "Hardware FLOPs" add what is recomputed to save memory (Chowdhery et al. 2022,
section 4.1, https://arxiv.org/abs/2204.02311).
"""

from shardlab.spec import TransformerSpec

from ..facts import models

ATTENTIONS = ("full", "causal")
RECOMPUTATIONS = {
    "none": "every activation is kept",
    "selective": "scores are computed twice",
    "full": "every layer's forward is computed twice",
}


def forward(spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "full") -> dict[str, int]:
    """FLOPs of the forward pass of `batch` sequences of `sequence` tokens.

    attention: "full" counts every pair of tokens, as papers on utilisation do (Chowdhery et al. 2022,
    appendix B, https://arxiv.org/abs/2204.02311); "causal" counts the pairs a token may look at, about
    half.
    Errors: ValueError for no tokens, more than the context, or another attention.
    """
    if attention not in ATTENTIONS:
        raise ValueError(f"unknown attention {attention!r}; known: {', '.join(ATTENTIONS)}")
    tokens, h = spec.tokens(batch, sequence), spec.hidden_size
    pairs = sequence * sequence if attention == "full" else sequence * (sequence + 1) // 2
    matrices = 2 if spec.style == "gpt2" else 3  # SwiGLU has a gate
    return {
        "projections": spec.num_layers * 2 * tokens * (2 * h * h + 2 * h * spec.kv_size),
        "scores": spec.num_layers * 2 * batch * pairs * 2 * h,  # queries by keys, then scores by values
        "feed-forward": spec.num_layers * 2 * tokens * matrices * h * spec.ffn,
        "head": 2 * tokens * h * spec.vocab_size,
    }


def backward(spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "full") -> dict[str, int]:
    """FLOPs of the backward pass: twice the forward, part by part."""
    ahead = forward(spec, batch=batch, sequence=sequence, attention=attention)
    return {part: 2 * count for part, count in ahead.items()}


def recomputed(
    spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "full", recomputation: str = "full"
) -> dict[str, int]:
    """FLOPs of the forward that backward computes once more, by part; see RECOMPUTATIONS.

    The head is never recomputed: its input is the last thing kept and the first thing used (Narayanan et al. 2021,
    equation 3, counts it once). For "selective", Korthikanti et al. 2022 (equation 8) print three times as much: see
    `korthikanti_hardware_flops`.
    Errors: ValueError for another recomputation.
    """
    if recomputation not in RECOMPUTATIONS:
        raise ValueError(f"unknown recomputation {recomputation!r}; known: {', '.join(RECOMPUTATIONS)}")
    again = {"none": (), "selective": ("scores",), "full": ("projections", "scores", "feed-forward")}[recomputation]
    ahead = forward(spec, batch=batch, sequence=sequence, attention=attention)
    return {part: count for part, count in ahead.items() if part in again}


def training_step(
    spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "full", recomputation: str = "none"
) -> dict[str, dict[str, int]]:
    """FLOPs of forward, backward and what is recomputed between them, each by part."""
    return {
        "forward": forward(spec, batch=batch, sequence=sequence, attention=attention),
        "backward": backward(spec, batch=batch, sequence=sequence, attention=attention),
        "recomputed": recomputed(
            spec, batch=batch, sequence=sequence, attention=attention, recomputation=recomputation
        ),
    }


def model_flops(spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "full") -> int:
    """Of one step, nothing computed twice: three times the forward."""
    return 3 * sum(forward(spec, batch=batch, sequence=sequence, attention=attention).values())


def hardware_flops(
    spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "full", recomputation: str = "full"
) -> int:
    """Of one step, with what is recomputed."""
    parts = training_step(spec, batch=batch, sequence=sequence, attention=attention, recomputation=recomputation)
    return sum(sum(part.values()) for part in parts.values())


def korthikanti_hardware_flops(spec: TransformerSpec, *, batch: int, sequence: int) -> int:
    """Hardware FLOPs with selective recomputation as printed in Korthikanti et al. 2022, equation 8.

    The paper adds s/6h to the s/6h of its model FLOPs: all of attention's score products of a step once more, forward
    and backward. What the method recomputes is their forward, a third of that (s/18h). Its Table 5 follows the
    equation (https://arxiv.org/abs/2205.05198).
    """
    parts = training_step(spec, batch=batch, sequence=sequence)
    return model_flops(spec, batch=batch, sequence=sequence) + parts["forward"]["scores"] + parts["backward"]["scores"]


def six_n_d(num_parameters: float, tokens: float) -> float:
    """The rule of thumb: 6 FLOPs for each parameter and token.

    It leaves out the scores (too little for long sequences) and counts an embedding that only looks up (too
    much where the head is not tied). Source: Kaplan et al. 2020, https://arxiv.org/abs/2001.08361
    """
    return 6 * num_parameters * tokens


def six_n_d_error(spec: TransformerSpec, *, sequence: int, attention: str = "full") -> float:
    """How far the rule of thumb is from the exact count, as a share of it: -0.03 is 3 % too little."""
    exact = model_flops(spec, batch=1, sequence=sequence, attention=attention)
    return six_n_d(models.num_parameters(spec), sequence) / exact - 1


def palm_per_token(
    num_parameters: float, *, num_layers: int = 0, attention_size: int = 0, sequence: int = 0
) -> float:
    """Model FLOPs of one token by PaLM's formula, 6N + 12 L H Q T; without the sizes, 6N.

    attention_size: heads * numbers per head (H Q). Source: Chowdhery et al. 2022, appendix B.
    """
    return 6 * num_parameters + 12 * num_layers * attention_size * sequence
