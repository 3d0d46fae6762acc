"""TransformerSpec: the sizes that define a decoder-only transformer, for model and costs."""

from dataclasses import dataclass

from shardlab.arguments import Count, checked

STYLES = ("gpt2", "llama")
SIZES = (
    "vocab_size",
    "context_length",
    "hidden_size",
    "num_layers",
    "num_heads",
    "kv_heads",
    "ffn",
)


@dataclass(frozen=True, kw_only=True)
@checked
class TransformerSpec:
    """One decoder-only transformer, as plain numbers.

    style "gpt2":  learned positions, LayerNorm with bias, GELU, biases, tied head
                   (Radford et al. 2019)
    style "llama": rotary positions, RMSNorm, SwiGLU, no biases, untied head
                   (Touvron et al. 2023)
    """

    vocab_size: Count
    context_length: Count
    hidden_size: Count
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count | None = None  # None: one key/value head for each query head
    ffn_size: Count | None = None  # None: 4 * hidden_size
    style: str = "gpt2"
    tied_head: bool | None = None  # None: tied for "gpt2", untied for "llama"

    def __post_init__(self) -> None:
        if self.style not in STYLES:
            raise ValueError(f"unknown style {self.style!r}; known: {', '.join(STYLES)}")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide hidden_size={self.hidden_size}; "
                f"use {_nearest_divisor(self.hidden_size, self.num_heads)} heads"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(
                f"{self.kv_heads} key/value heads do not divide {self.num_heads} heads; "
                f"use {_nearest_divisor(self.num_heads, self.kv_heads)} key/value heads"
            )
        if self.style == "llama" and self.head_size % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, but the head size {self.head_size} "
                f"({self.hidden_size} / {self.num_heads}) is odd; make hidden_size / num_heads even"
            )

    def tokens(self, batch: Count, sequence: Count) -> int:
        """Count the tokens of `batch` sequences of length `sequence`.

        Errors: ValueError for a sequence longer than the context.
        """
        if sequence > self.context_length:
            raise ValueError(
                f"a sequence of {sequence} tokens does not fit "
                f"context_length={self.context_length}; "
                f"use at most {self.context_length}, or a spec with a longer context"
            )
        return batch * sequence

    @property
    def kv_heads(self) -> int:
        """Key/value heads: fewer than heads in grouped-query attention (Ainslie et al. 2023)."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn(self) -> int:
        """The width of the feed-forward block's hidden layer."""
        return 4 * self.hidden_size if self.ffn_size is None else self.ffn_size

    @property
    def tied(self) -> bool:
        """Whether the output head is the token embedding, used a second time."""
        return self.style == "gpt2" if self.tied_head is None else self.tied_head

    @property
    def head_size(self) -> int:
        """The width of one head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_size(self) -> int:
        """The width of one token's keys, and of its values: kv_heads * head_size."""
        return self.kv_heads * self.head_size


def _nearest_divisor(total: int, wanted: int) -> int:
    divisors = [d for d in range(1, total + 1) if total % d == 0]
    return min(divisors, key=lambda d: abs(d - wanted))
