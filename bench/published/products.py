"""Published products of matrices, by shape: what `compute.kernels` says of tiles, and is held to.

None of them is a step. On the H100, for the constants TILES and START of `kernels`: the table with
which the XLA compiler estimates products in 16 bits (`xla_products.csv`). Kept back, on A100 and
H100: layers that the Vidur simulator timed, Llama 2's 70B cut by tp, and its 7B (`vidur.csv`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from shardlab.costs.compute import kernels
from shardlab.costs.facts.hardware import Chip, chip
from shardlab.costs.published.rows import rows
from shardlab.files.arguments import Count, Positive, checked

from . import FOLDER


@dataclass(frozen=True, kw_only=True)
@checked
class Product:
    """A product of [m, k] and [k, n] that somebody timed."""

    chip: Chip
    m: Count
    k: Count
    n: Count
    seconds: Positive

    @property
    def predicted(self) -> float:
        """Seconds, predicted."""
        return kernels.matmul_seconds(self.m, self.k, self.n, self.chip)

    @property
    def error(self) -> float:
        """How much longer the prediction is, as a share."""
        return self.predicted / self.seconds - 1


@dataclass(frozen=True, kw_only=True)
@checked
class XlaRow:
    """A product in 16 bits on an H100."""

    m: Count
    k: Count
    n: Count
    rate: Positive  # FLOP/s


@dataclass(frozen=True, kw_only=True)
@checked
class VidurRow:
    """The seconds of a layer's products in one of Llama 2's models."""

    chip: str
    model: str
    tp: Count
    tokens: Count
    qkv: Positive  # queries, keys and values
    output: Positive  # of attention
    gate_up: Positive
    down: Positive


def _xla() -> Iterator[Product]:
    h100 = chip("H100 SXM 80 GB")
    for row in rows("xla_products", XlaRow, FOLDER):
        seconds = 2 * row.m * row.k * row.n / row.rate
        yield Product(chip=h100, m=row.m, k=row.k, n=row.n, seconds=seconds)


def _vidur(name: str) -> Iterator[Product]:
    on = chip(name)
    for row in rows("vidur", VidurRow, FOLDER):
        if row.chip != name:
            continue
        width, keys, ffn = (4096, 4096, 11_008) if row.model == "7B" else (8192, 1024, 28_672)
        timed = (
            (width, (width + 2 * keys) // row.tp, row.qkv),
            (width // row.tp, width, row.output),
            (width, 2 * ffn // row.tp, row.gate_up),
            (ffn // row.tp, width, row.down),
        )
        for k, n, seconds in timed:
            yield Product(chip=on, m=row.tokens, k=k, n=n, seconds=seconds)


ON_H100 = tuple(_xla())
KEPT_ON_A100, KEPT_ON_H100 = tuple(_vidur("A100 SXM 80 GB")), tuple(_vidur("H100 SXM 80 GB"))


@checked
def spread(products: Sequence[Product]) -> float:
    """Average the errors that remain when one factor for all products is taken out, as a share.

    Products that a benchmark times by themselves are faster than those within a step
    (`kernels.ORDINARY`), all by about the same factor.
    """
    ratios = [1 + each.error for each in products]
    mean = fmean(ratios)
    return fmean(abs(ratio / mean - 1) for ratio in ratios)
