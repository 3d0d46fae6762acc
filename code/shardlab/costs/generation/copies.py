"""All copies of a generator write the texts of one step, until the longest has ended.

A step of decoding takes less time the fewer texts are left, but never less than reading the weights
takes: so empty slots cost time, if less than full ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil

from shardlab.files.arguments import Count, checked

from . import loop
from .decode import DecodingRank


@dataclass(frozen=True, kw_only=True)
@checked
class GeneratorCopies:
    """Copies of a generator, and the texts that they share evenly.

    Each token is counted as if its text held what texts hold on average over all tokens written.
    Errors: ValueError for no texts, and where none fits into a rank's memory.
    """

    decoding: DecodingRank  # a rank of a copy
    copies: Count
    prompt: Count  # tokens
    lengths: Sequence[Count]  # tokens of each answer, in the order in which they start

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError("lengths=() are no texts; give the tokens of at least one")
        if not self.decoding.largest_batch(self.context):
            raise ValueError(
                f"context={self.context} tokens do not fit beside {self.decoding.weights} bytes; "
                "use a larger tp, or ep for a mixture"
            )

    @property
    def gpus(self) -> int:
        """GPUs of all copies."""
        return self.copies * self.decoding.layout.ranks

    @property
    def context(self) -> int:
        """Tokens that a text holds when it gets one, on average: long texts get more of them."""
        written = sum(self.lengths)
        return self.prompt + sum(length**2 for length in self.lengths) // (2 * written)

    @property
    def groups(self) -> int:
        """Groups of ranks with texts of their own: those of dp in each copy."""
        return self.copies * self.decoding.layout.dp

    @cached_property
    def slots(self) -> int:
        """Texts that all copies write at the same time, at most as many as fit into memory."""
        most = self.decoding.largest_batch(self.context)
        return self.groups * min(most, ceil(len(self.lengths) / self.groups))

    def token(self, texts: Count) -> float:
        """Return the least seconds in which each of `texts` texts gets one more token."""
        return self.decoding.seconds(ceil(texts / self.groups), self.context)

    @property
    def generating(self) -> float:
        """GPU-seconds of the step's texts if every slot is always full."""
        return sum(self.lengths) * self.token(self.slots) / self.slots * self.gpus

    @cached_property
    def writing(self) -> list[tuple[float, float]]:
        """Seconds, and the share of slots that write from then on, if no slot waits for a text.

        The texts that are left are shared evenly among the groups of ranks.
        """
        ends = [step for step in loop.last_steps(self.lengths, self.slots) if step]
        token = cache(lambda batch: self.decoding.seconds(batch, self.context))
        curve, now, written = [], 0.0, 0
        for left, step in zip(range(len(ends), 0, -1), ends, strict=True):
            curve.append((now, left / self.slots))
            now += (step - written) * token(ceil(left / self.groups))
            written = step
        return [*curve, (now, 0.0)]

    @property
    def full(self) -> float:
        """The share of slots that are full until the last text has ended, as `EngineLoop` wants it."""
        return self.generating / (self.gpus * self.writing[-1][0])
