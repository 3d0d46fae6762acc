"""FLOPs of one training step, part by part: the matrix products, which are all but a few percent of the work.

A product of [m, k] and [k, n] takes 2*m*k*n FLOPs, a multiplication and an addition each. The backward pass
takes twice the forward's: one product for the gradient of the input, one for that of the weight. Source:
Narayanan et al. 2021, appendix (https://arxiv.org/abs/2104.04473). Norms, activations, softmax and the
optimizer are left out, as there.
"""

from shardlab.spec import TransformerSpec

ATTENTIONS = ("full", "causal")


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


def training_step(
    spec: TransformerSpec, *, batch: int, sequence: int, attention: str = "full"
) -> dict[str, dict[str, int]]:
    """FLOPs of forward and backward, by part. Model FLOPs: nothing is computed twice."""
    return {
        "forward": forward(spec, batch=batch, sequence=sequence, attention=attention),
        "backward": backward(spec, batch=batch, sequence=sequence, attention=attention),
    }


def six_n_d(num_parameters: float, tokens: float) -> float:
    """The rule of thumb: 6 FLOPs for each parameter and token.

    It leaves out the scores (too little for long sequences) and counts an embedding that only looks up (too
    much where the head is not tied). Source: Kaplan et al. 2020, https://arxiv.org/abs/2001.08361
    """
    return 6 * num_parameters * tokens
