"""Details: what changes a model's numbers and none of its sizes, as plain data.

`costs` reads none of it. The defaults are what this book's models compute with.
"""

from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, Share, checked

PAIRS = ("neighbours", "halves")


@dataclass(frozen=True, kw_only=True)
@checked
class RotaryScaling:
    """Llama 3.1's rule for a longer context: rotations that are slow turn `factor` times slower.

    A pair that turns fewer than `low` times in `original` tokens is slowed by the factor, one that
    turns more than `high` times is left, and those between them are interpolated.
    Source: apply_scaling in https://github.com/meta-llama/llama-models/blob/main/models/llama3/model.py
    """

    factor: Positive
    low: Positive
    high: Positive
    original: Count  # tokens of the context before

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}; exchange them")


@dataclass(frozen=True, kw_only=True)
@checked
class Details:
    """What a transformer computes beside its sizes."""

    # in every norm: https://github.com/openai/gpt-2/blob/master/src/model.py; Llama 3 has the same
    epsilon: Positive = 1e-5
    rotary_base: Positive = 500_000.0  # Llama 3, section 3.2 (RoFormer and Llama 1 have 10,000)
    # which numbers of a head turn together: 2i and 2i+1 (RoFormer), or i and i+e/2 (transformers)
    pairs: str = "neighbours"
    scaling: RotaryScaling | None = None
    turned: Share = 1.0  # the first share of a head, which positions turn
    exact_gelu: bool = False  # False: GELU approximated by tanh
    window: Count | None = None  # how many tokens a token attends to; None: all earlier ones

    def __post_init__(self) -> None:
        if self.pairs not in PAIRS:
            raise ValueError(f"unknown pairs={self.pairs!r}; known: {', '.join(PAIRS)}")

    def turned_size(self, head_size: Count) -> int:
        """Count the numbers of a head that positions turn. Errors: ValueError for an odd number."""
        size = int(head_size * self.turned)
        if size % 2 or not size:
            raise ValueError(
                f"turned={self.turned} of a head of {head_size} are {size} numbers, which are no "
                "pairs; use a share that gives an even number above 0"
            )
        return size


DETAILS = Details()
