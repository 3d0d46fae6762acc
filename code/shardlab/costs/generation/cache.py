"""The cache: the keys and values that a generator keeps of every token that it has read or written.

Grouped queries keep fewer heads (Ainslie et al. 2023, https://arxiv.org/abs/2305.13245). Latent
attention keeps one narrow vector for all heads and the key's rotated part (DeepSeek-AI 2024, Table
1, https://arxiv.org/abs/2405.04434), which tp cannot cut. Left out: recurrent layers' states, and
windows beyond which a layer forgets.
"""

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import ONE_RANK, Layout


@checked
def token_bytes(spec: TransformerSpec, layout: Layout = ONE_RANK, element: Count = 2) -> int:
    """Count the bytes that a rank keeps of one token, over all layers with attention.

    2 K e numbers of `element` bytes for K key/value heads on the rank, each of e numbers; with
    latent attention the rank of keys and values, the rotated numbers, and an indexer's key. Errors:
    ValueError for a layout that does not suit the model, or cuts layers or texts.
    """
    layout.check(spec)
    if layout.pp * layout.cp > 1:
        raise ValueError(
            f"a generator with pp={layout.pp} or cp={layout.cp} is not counted; use tp, dp and ep"
        )
    latent = spec.latent
    if not latent:
        return element * spec.num_attention * 2 * layout.kv_heads(spec) * spec.head_size
    index = latent.indexer.head_size if latent.indexer else 0
    return element * spec.num_attention * (latent.kv_rank + latent.rotary_size + index)
