"""What it takes that ranks share each sequence: bytes, messages, memory and balance of one layer's attention.

Three ways to let every query see every key:

    gathered   every rank gathers all keys and values: Llama 3 (https://arxiv.org/abs/2407.21783), section 3.3.2
    ring       keys and values travel from rank to rank: Liu et al. 2023 (https://arxiv.org/abs/2310.01889)
    ulysses    parts of all heads are exchanged for whole sequences of some: Jacobs et al. 2023
               (https://arxiv.org/abs/2309.14509), section 3.2

A "block" is the keys, or the values, of one rank. All figures are those of one rank.
"""

from dataclasses import dataclass

from shardlab.layout import divisors, listed
from shardlab.spec import TransformerSpec

WAYS = ("gathered", "ring", "ulysses")


@dataclass(frozen=True, kw_only=True)
class Attention:
    """One layer's attention to sequences that ranks share, with the heads that one rank of tp has."""

    length: int  # tokens of a sequence, on all ranks together
    ranks: int  # of cp
    heads: int
    kv_heads: int
    head_size: int
    batch: int = 1  # sequences
    element: int = 2  # bytes of one number

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.length < self.ranks:
            raise ValueError(
                f"{self.length} tokens leave some of {self.ranks} ranks without any; use 1 to {self.length} ranks"
            )

    @property
    def block(self) -> float:
        """Bytes of one rank's keys; of a mean rank, where ranks do not divide the length."""
        return self.batch * self.kv_heads * self.head_size * self.element * self.length / self.ranks

    @property
    def queries(self) -> float:
        """Bytes of one rank's queries, and as many of its outputs."""
        return self.block * self.heads / self.kv_heads


def attention(
    spec: TransformerSpec, *, length: int, ranks: int, tp: int = 1, batch: int = 1, element: int = 2
) -> Attention:
    """Take the sizes from a model whose heads tp ranks share."""
    heads, kv_heads = spec.num_heads // tp, max(1, spec.kv_heads // tp)
    return Attention(
        length=length,
        ranks=ranks,
        heads=heads,
        kv_heads=kv_heads,
        head_size=spec.head_size,
        batch=batch,
        element=element,
    )


def sent_bytes(a: Attention, way: str) -> dict[str, float]:
    """Bytes that a rank sends in forward and in backward.

    gathered  an all-gather of two blocks, then a reduce-scatter of their gradients: 2(n - 1) blocks each
    ring      2(n - 1) blocks; in backward as many again, and as many of gradients
    ulysses   1/n of queries, keys, values and outputs to each other rank; in backward of their gradients. Keys and
              values are first repeated `copies` times where ranks do not divide their heads.
    Errors: ValueError for an unknown way, and for heads that Ulysses cannot share.
    """
    others = a.ranks - 1
    if way == "ulysses":
        exchanged = 2 * (a.queries + copies(a) * a.block) * others / a.ranks
        return {"forward": exchanged, "backward": exchanged}
    blocks = {"gathered": (2, 2), "ring": (2, 4)}
    forward, backward = _of(blocks, way)
    return {"forward": forward * others * a.block, "backward": backward * others * a.block}


def messages(a: Attention, way: str) -> dict[str, int]:
    """How many communications a rank takes part in: collectives, or messages sent round the ring.

    Keys and values travel in one message. Ulysses exchanges queries, keys with values, and outputs.
    """
    if a.ranks == 1:
        return {"forward": 0, "backward": 0}
    hops = a.ranks - 1
    counts = {"gathered": (1, 1), "ring": (hops, 2 * hops), "ulysses": (3, 3)}
    forward, backward = _of(counts, way)
    return {"forward": forward, "backward": backward}


def _of(table: dict[str, tuple[int, int]], way: str) -> tuple[int, int]:
    if way not in table:
        raise ValueError(f"unknown way {way!r}; known: {listed(WAYS)}")
    return table[way]


def copies(a: Attention) -> int:
    """How often Ulysses repeats keys and values, so that ranks divide their heads.

    Errors: ValueError where ranks do not divide the heads of queries.
    """
    if a.heads % a.ranks:
        raise ValueError(
            f"{a.heads} heads do not split over cp={a.ranks} in Ulysses; "
            f"use cp = {listed(divisors(a.heads))}, or another way"
        )
    return next(c for c in divisors(a.heads // a.kv_heads) if a.kv_heads * c % a.ranks == 0)
