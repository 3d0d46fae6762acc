"""What ranks hold twice, counted by hand from the layout."""

from math import ceil

from shardlab.costs.facts import models


def held_again(spec, layout):
    """Count the parameters that all ranks of pp and tp together hold beyond the model's own.

    They are copies, or padding.
    """
    h = spec.hidden_size
    layers = spec.num_layers
    more = layout.tp - 1
    after_sum = len({"out", "ffn"} & set(spec.biases))
    norms = (spec.num_norms * layers + 1) * models.norm_parameters(spec)
    norms += layers * models.query_norm_parameters(spec) * spec.head_norms
    copied_heads = layout.tp * layout.kv_heads(spec) - spec.kv_heads
    inputs = 2 * (h + ("qkv" in spec.biases)) + spec.whole_norms
    vocabularies = 1 if spec.tied and layout.pp == 1 else 2
    padding = layout.tp * ceil(spec.vocab_size / layout.tp) - spec.vocab_size
    return {
        "tied head": spec.tied * (layout.pp > 1) * spec.vocab_size * h,
        "position embedding": more * models.learned_positions(spec) * h,
        "norms": more * norms,
        "biases after a sum": more * layers * after_sum * h,
        "key/value heads": layers * copied_heads * spec.head_size * inputs,
        "padding of the vocabulary": vocabularies * padding * h,
    }
