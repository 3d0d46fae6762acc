"""Predict context parallelism: bytes, messages, memory and balance of one layer's attention.

Four strategies that let every query see every key:

    gathered   every rank gathers all keys and values: Llama 3 (https://arxiv.org/abs/2407.21783),
               section 3.3.2
    ring       keys and values travel from rank to rank: Liu et al. 2023
               (https://arxiv.org/abs/2310.01889)
    ulysses    parts of all heads are exchanged for whole sequences of some: Jacobs et al. 2023
               (https://arxiv.org/abs/2309.14509), section 3.2
    grid       Ulysses inside groups of ranks, a ring across them: Fang and Zhao 2024
               (https://arxiv.org/abs/2405.07719)

A "block" is the keys, or the values, of one rank. All quantities are per rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import sequences
from shardlab.sharding.layout import divisors, listed
from shardlab.sharding.sequences import Tile

STRATEGIES = ("gathered", "ring", "ulysses", "grid")


@dataclass(frozen=True, kw_only=True)
@checked
class SplitAttention:
    """One layer's attention over sequences that ranks share, with the heads of one rank of tp."""

    length: Count  # tokens of a sequence, on all ranks together
    ranks: Count  # of cp
    heads: Count
    kv_heads: Count
    head_size: Count  # where keys and values have different sizes, their mean
    batch: Count = 1  # sequences
    element: Count = 2  # bytes of one number

    def __post_init__(self) -> None:
        if self.length < self.ranks:
            raise ValueError(
                f"{self.length} tokens leave some of {self.ranks} ranks without any; "
                f"use 1 to {self.length} ranks"
            )

    @property
    def block(self) -> float:
        """Bytes of one rank's keys, half of keys and values.

        Where the number of ranks does not divide the length, this is the mean over all ranks.
        """
        numbers = self.batch * self.kv_heads * self.head_size * self.length / self.ranks
        return numbers * self.element

    @property
    def queries(self) -> float:
        """Bytes of one rank's queries, and as many of its outputs."""
        return self.batch * self.heads * self.head_size * self.element * self.length / self.ranks


@checked
def attention(
    spec: TransformerSpec,
    *,
    length: Count,
    ranks: Count,
    tp: Count = 1,
    batch: Count = 1,
    element: Count = 2,
) -> SplitAttention:
    """Take the sizes from a model whose heads `tp` ranks share.

    Latent attention sends keys and values of all its heads, as Megatron-LM does: otherwise each
    rank would have to expand every block that arrives.
    """
    return SplitAttention(
        length=length,
        ranks=ranks,
        heads=spec.num_heads // tp,
        kv_heads=max(1, spec.kv_heads // tp),
        head_size=spec.head_size,
        batch=batch,
        element=element,
    )


@checked
def sent_bytes(
    a: SplitAttention, strategy: str, *, ulysses: Count = 1, again: bool = False
) -> dict[str, float]:
    """Count the bytes that a rank sends in forward and in backward.

    gathered  an all-gather of two blocks, then a reduce-scatter of their gradients: 2(n - 1) blocks
              each. again: backward gathers once more, so that no layer keeps other ranks' keys
    ring      2(n - 1) blocks; in backward as many again, and as many of gradients
    ulysses   1/n of queries, keys, values and outputs to each other rank, in backward of their
              gradients. Keys and values are repeated first where the number of ranks does not
              divide their heads
    grid      both: `ulysses` ranks exchange heads, which turns their blocks into one of fewer heads

    Errors: ValueError for an unknown strategy, and for heads that Ulysses cannot share.
    """
    if strategy == "gathered":
        blocks = 2 * (a.ranks - 1) * a.block
        return {"forward": blocks, "backward": (1 + again) * blocks}
    width = _width(a, strategy, ulysses)
    block = sequences.copies(a.heads, a.kv_heads, width) * a.block
    exchanged = 2 * (a.queries + block) * (width - 1) / width
    travelling = 2 * (a.ranks // width - 1) * block
    return {"forward": exchanged + travelling, "backward": exchanged + 2 * travelling}


@checked
def messages(
    a: SplitAttention, strategy: str, *, ulysses: Count = 1, again: bool = False
) -> dict[str, int]:
    """Count the communications of `sent_bytes`: collectives, or messages round the ring.

    Keys and values travel in one message. Ulysses exchanges queries, keys with values, and outputs.
    """
    if strategy == "gathered":
        return {"forward": int(a.ranks > 1), "backward": (1 + again) * (a.ranks > 1)}
    width = _width(a, strategy, ulysses)
    exchanges, steps = 3 * (width > 1), a.ranks // width - 1
    return {"forward": exchanges + steps, "backward": exchanges + 2 * steps}


def _width(a: SplitAttention, strategy: str, ulysses: int) -> int:
    """Count the ranks that exchange heads."""
    widths = {"ring": 1, "ulysses": a.ranks, "grid": ulysses}
    if strategy not in widths:
        raise ValueError(f"unknown strategy {strategy!r}; known: {listed(STRATEGIES)}")
    if a.ranks % widths[strategy]:
        raise ValueError(
            f"cp={a.ranks} ranks do not split into groups of ulysses={ulysses}; "
            f"use ulysses = {listed(divisors(a.ranks))}"
        )
    return widths[strategy]


@checked
def resident(a: SplitAttention, strategy: str, *, ulysses: Count = 1) -> float:
    """Count the bytes of keys and values that a rank holds at most, in forward.

    Besides its own it holds those of all ranks if they are gathered, one exchanged block with
    Ulysses, and in a ring the block in use and the one in flight: three blocks, however many ranks.
    """
    if strategy == "gathered":
        return 2 * a.block * (1 + a.ranks)
    width = _width(a, strategy, ulysses)
    blocks = min(3, a.ranks // width)
    own = 0 if width == 1 else 1
    return 2 * a.block * (own + sequences.copies(a.heads, a.kv_heads, width) * blocks)


@checked
def pairs(
    length: Count,
    ranks: Count,
    placement: str,
    *,
    causal: bool = True,
    largest: Count | None = None,
) -> list[int]:
    """Count the pairs of a query and a key that each rank computes, in a ring or all gathered.

    Tiles that no query sees are left out; those on the diagonal are computed whole. largest: see
    `sequences.tiles`.
    """
    places = sequences.place(length, ranks, placement)
    text = sequences.documents(length)
    cut = partial(sequences.tiles, texts=text, causal=causal, largest=largest)
    return [sum(tile.pairs for keys in places for tile in cut(mine, keys)) for mine in places]


@checked
def flops(
    a: SplitAttention, placement: str, *, causal: bool = True, largest: Count | None = None
) -> list[dict[str, int]]:
    """Count each rank's FLOPs for queries by keys and scores by values; see `compute.flops`.

    Backward recomputes the scores, and then has four products: five where forward has two (Dao et
    al. 2022, appendix B, https://arxiv.org/abs/2205.14135).
    """
    product = 2 * a.batch * a.heads * a.head_size  # FLOPs for each pair
    counts = pairs(a.length, a.ranks, placement, causal=causal, largest=largest)
    return [{"forward": 2 * product * count, "backward": 5 * product * count} for count in counts]


@checked
def balance(length: Count, ranks: Count, placement: str) -> float:
    """Divide the work of the mean rank by that of the busiest, for which others wait: 1 is even.

    Only pairs that a causal mask leaves are counted. Contiguous ranks come close to n / (2n - 1);
    zig-zag ranks have the same work where 2n divides the length.
    """
    found = turns(length, ranks, placement)
    work = [sum(tile.seen for turn in each for tile in turn) for each in found]
    return sum(work) / ranks / max(work)


@checked
def turns(
    length: Count, ranks: Count, placement: str, documents: Sequence[Count] | None = None
) -> list[list[list[Tile]]]:
    """List the tiles of each rank in each turn of a causal ring: rank -> turn -> tiles.

    In turn t a rank has the block of the rank t places before it. documents: their lengths; None:
    one document.
    """
    places = sequences.place(length, ranks, placement)
    cut = partial(sequences.tiles, texts=sequences.documents(length, documents))
    return [
        [cut(mine, places[rank - turn]) for turn in range(ranks)]
        for rank, mine in enumerate(places)
    ]
