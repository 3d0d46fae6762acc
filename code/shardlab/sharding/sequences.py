"""Which tokens each rank of context parallelism holds, and which of them attend to which.

Contiguous: rank r holds part r of n. Zig-zag: rank r holds parts r and 2n - 1 - r of 2n, so that
under a causal mask all ranks have the same work: Llama 3 (https://arxiv.org/abs/2407.21783),
section 3.3.2.

    contiguous   0 0 0 1 1 1 2 2 2      rank 2 sees six times as many pairs as rank 0, or nearly
    zig-zag      0 1 2 2 1 0
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from shardlab.files.arguments import Count, checked

from .deal import deal
from .layout import divisors, listed

PLACEMENTS = ("contiguous", "zig-zag")
Runs = tuple[range, ...]  # tokens that are neighbours in the sequence, run after run


class Tile(NamedTuple):
    """Queries and keys that are neighbours in the sequence, and meet in one matrix product."""

    queries: range  # places in the sequence
    keys: range
    row: int  # where the first query is among those of its rank
    column: int  # where the first key is among those of its rank
    masked: bool  # whether some keys stand behind some queries

    @property
    def pairs(self) -> int:
        """How many scores are computed."""
        return len(self.queries) * len(self.keys)

    @property
    def seen(self) -> int:
        """How many of them the mask leaves: half where queries and keys are the same tokens."""
        return self.pairs - self.masked * len(self.queries) * (len(self.queries) - 1) // 2


@checked
def place(length: int, ranks: Count, placement: str = "zig-zag") -> list[Runs]:
    """Deal the tokens of a sequence to ranks. See `deal` for a length that does not divide.

    Errors: ValueError for a length shorter than the ranks, and for an unknown placement.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"unknown placement {placement!r}; known: {', '.join(PLACEMENTS)}")
    if ranks > length:
        raise ValueError(
            f"{length} tokens leave some of cp={ranks} ranks without any; use cp = 1 to {length}"
        )
    if placement == "contiguous":
        return [(part,) for part in deal(length, ranks)]
    parts = list(deal(length, 2 * ranks))
    return [tuple(filter(None, (parts[rank], parts[-1 - rank]))) for rank in range(ranks)]


@checked
def documents(length: int, lengths: Sequence[Count] | None = None) -> Runs:
    """Find the tokens of each document in a sequence. lengths: None means one document.

    Errors: ValueError where the documents do not cover the sequence.
    """
    lengths = [length] if lengths is None else list(lengths)
    if sum(lengths) != length:
        raise ValueError(
            f"documents of {', '.join(map(str, lengths))} tokens have {sum(lengths)} tokens, and "
            f"the sequence has {length}; give documents of {length} tokens in all"
        )
    return tuple(
        range(stop - size, stop) for size, stop in zip(lengths, accumulate(lengths), strict=True)
    )


@checked
def tiles(
    queries: Runs, keys: Runs, texts: Runs, *, causal: bool = True, largest: Count | None = None
) -> list[Tile]:
    """List the tiles of queries and keys, without those that no query sees.

    Runs are those of `place`: two of them are the same, or have no token in common.

    texts: the documents; a query sees keys of its own one.
    causal: and only itself and those before it.
    largest: queries, and keys, that a tile may have; None: any number.
    """
    found, others = [], _pieces(keys, texts, largest)
    for row, mine in _pieces(queries, texts, largest):
        text = next(each for each in texts if mine.start in each)
        for column, theirs in others:
            if theirs.start in text and not (causal and theirs.start >= mine.stop):
                found.append(
                    Tile(mine, theirs, row, column, causal and theirs.stop - 1 > mine.start)
                )
    return found


def _pieces(runs: Runs, texts: Runs, largest: int | None) -> list[tuple[int, range]]:
    """Cut runs at ends of documents, and to size; with the place of each piece on its rank."""
    found, before = [], 0
    for run in runs:
        for text in texts:
            start, stop = max(run.start, text.start), min(run.stop, text.stop)
            for first in range(start, stop, largest or max(1, stop - start)):
                last = min(stop, first + (largest or stop - start))
                found.append((before + first - run.start, range(first, last)))
        before += len(run)
    return found


@checked
def copies(heads: Count, kv_heads: Count, ranks: Count) -> int:
    """How often Ulysses repeats key/value heads, so that its ranks divide them.

    Errors: ValueError where the ranks, or the key/value heads, do not divide the heads of queries.
    """
    if heads % kv_heads:
        raise ValueError(
            f"kv_heads={kv_heads} must divide heads={heads}; use {listed(divisors(heads))}"
        )
    if heads % ranks:
        raise ValueError(
            f"{heads} heads do not split over {ranks} ranks of Ulysses; "
            f"use {listed(divisors(heads))} ranks for it, and a ring for more"
        )
    return next(times for times in divisors(heads // kv_heads) if kv_heads * times % ranks == 0)


@checked
def count(runs: Runs) -> int:
    """Count the tokens of some runs."""
    return sum(map(len, runs))
