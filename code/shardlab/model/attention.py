"""Latent attention, as plain data: its sizes and its parameters."""

from dataclasses import dataclass

from shardlab.files.arguments import Count, checked


@dataclass(frozen=True, kw_only=True)
@checked
class Indexer:
    """What chooses the tokens that a token attends to, in every layer: its sizes.

    Each head scores all earlier tokens with one key that the heads share, and a token attends to
    the `chosen` ones with the highest weighted sums: DeepSeek-V3.2
    (https://arxiv.org/abs/2512.02556, section 2.1).
    """

    num_heads: Count
    head_size: Count
    chosen: Count

    @property
    def query_size(self) -> int:
        """Numbers of one token's queries, of all heads."""
        return self.num_heads * self.head_size

    @property
    def narrow_size(self) -> int:
        """Numbers of one token's key, and its weights of the heads."""
        return self.head_size + self.num_heads


@dataclass(frozen=True, kw_only=True)
@checked
class LatentAttention:
    """Multi-head latent attention: queries, keys and values pass a narrow layer with a norm.

    DeepSeek-AI 2024, section 2.1 (https://arxiv.org/abs/2405.04434). Part of each query and key is
    rotated by its position; all heads share the rotated part of the key, which is computed directly
    from the input.
    """

    num_heads: Count
    query_rank: Count | None  # None: queries are computed directly from the input
    kv_rank: Count
    plain_size: Count  # of a head's query and key, the part without positions
    rotary_size: Count
    value_size: Count
    indexer: Indexer | None = None  # None: a token attends to all earlier ones

    def __post_init__(self) -> None:
        if self.indexer and not self.query_rank:
            raise ValueError("an indexer reads the narrow layer of queries; give a query_rank")

    def parameters(self, hidden_size: Count) -> int:
        """Count one layer's parameters, including its norms."""
        return self.matrices(hidden_size) + self.norms

    def matrices(self, hidden_size: Count) -> int:
        """Count one layer's parameters that multiply: into narrow layers, and from there."""
        queries = hidden_size * self.num_heads * self.query_size
        if self.query_rank:
            queries = self.query_rank * (self.num_heads * self.query_size + self.index_size)
        keys_and_values = self.kv_rank * self.num_heads * (self.plain_size + self.value_size)
        ends = self.narrow_size + self.num_heads * self.value_size
        return queries + keys_and_values + ends * hidden_size

    @property
    def norms(self) -> int:
        """One layer's parameters of norms: of the narrow layers, and a shift beside an index."""
        index = 2 * self.indexer.head_size if self.indexer else 0
        return (self.query_rank or 0) + self.kv_rank + index

    @property
    def narrow_size(self) -> int:
        """Numbers of a token in the narrow layers: of queries, keys and values, and an indexer."""
        index = self.indexer.narrow_size if self.indexer else 0
        return (self.query_rank or 0) + self.kv_rank + self.rotary_size + index

    @property
    def index_size(self) -> int:
        """Numbers of a token's queries for the indexer, 0 without one."""
        return self.indexer.query_size if self.indexer else 0

    @property
    def query_size(self) -> int:
        """Numbers of one head's query, and of its key."""
        return self.plain_size + self.rotary_size
