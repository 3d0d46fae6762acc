"""Latent attention, as plain data: its sizes and its parameters."""

from dataclasses import dataclass

from shardlab.arguments import Count, checked


@dataclass(frozen=True, kw_only=True)
@checked
class LatentAttention:
    """Multi-head latent attention: queries, keys and values pass a narrow layer with a norm.

    DeepSeek-AI 2024, section 2.1 (https://arxiv.org/abs/2405.04434). Part of each query and key is
    rotated by its position; all heads share the rotated part of the key, which is computed directly
    from the input.
    """

    num_heads: Count
    query_rank: Count
    kv_rank: Count
    plain_size: Count  # of a head's query and key, the part without positions
    rotary_size: Count
    value_size: Count

    def parameters(self, hidden_size: Count) -> int:
        """Count one layer's parameters, including the two norms of the narrow layers."""
        queries = (hidden_size + 1) * self.query_rank
        queries += self.query_rank * self.num_heads * (self.plain_size + self.rotary_size)
        keys_and_values = hidden_size * (self.kv_rank + self.rotary_size) + self.kv_rank
        keys_and_values += self.kv_rank * self.num_heads * (self.plain_size + self.value_size)
        return queries + keys_and_values + self.num_heads * self.value_size * hidden_size

    @property
    def narrow_size(self) -> int:
        """Numbers of a token in the narrow layers: of queries, of keys and values, rotated ones."""
        return self.query_rank + self.kv_rank + self.rotary_size

    @property
    def query_size(self) -> int:
        """Numbers of one head's query, and of its key."""
        return self.plain_size + self.rotary_size
