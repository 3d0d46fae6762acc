"""LoRA: what is trained beside frozen matrices. Hu et al. 2022 (https://arxiv.org/abs/2106.09685)."""

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec


@checked
def parameters(spec: TransformerSpec, width: Count) -> int:
    """Count the numbers of the thin matrices beside all matrices of a dense model's layers.

    Beside a matrix from k to n numbers stand one from k to `width`, LoRA's rank, and one from there to n;
    queries, keys and values have their own. Errors: ValueError for a model with experts or layers of several
    kinds.
    """
    if spec.experts or spec.layer_kinds:
        raise ValueError("thin matrices are counted for models whose layers are alike and dense")
    hidden, block = spec.hidden_size, (1 + spec.has_gate) * (spec.hidden_size + spec.ffn)
    attention = 2 * (hidden + spec.attention_size) + 2 * (hidden + spec.kv_size)
    return width * spec.num_layers * (attention + block + spec.ffn + hidden)
