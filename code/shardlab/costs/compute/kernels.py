"""How close to its peak a GPU gets, operation by operation: matrix products and memory traffic.

A product is cut into tiles, one for each multiprocessor at a time. The last wave of tiles may leave
most multiprocessors idle, and a tile that hangs over the edge of the matrix is computed whole.
NVIDIA calls that tile and wave quantization:
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html
Smaller tiles fill waves better and compute more slowly; a library takes what is faster. While one
wave computes, the one before it writes its results; nothing hides the writing of the last.

There are few constants, the same for every model and layout:

    BEST        measured by others: FLOP/s of the fastest product, `facts/products.csv`
    TILES       measured by others, on products of one wave each (bench/published/products.py)
    START       the same, on the smallest product
    ORDINARY    calibrated once, on the single layer timed by Korthikanti et al. 2022 (Table 4)
    AT_ITS_LIMIT  calibrated once, on one published step of an H100
    MOVED       chosen among three round numbers with whole steps in view
    attention   published curves, in `facts.attention`

What differs from program to program, such as its attention, is in `program.Kernels`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import NamedTuple

from shardlab.files.arguments import Count, Positive, Share, checked, unchecked

from ..facts import tables
from ..facts.attention import AttentionCurve, attention
from ..facts.hardware import Chip
from ..program import ORDINARY_KERNELS, Kernels
from ..units import us
from .roofline import ELEMENT

# Rows and columns of the result, upright or across -> rate beside that of the largest tile, on an
# H100. Each follows from the seconds that 2,048 more inputs add to a product of one wave.
TILES = {(128, 256): 1.0, (128, 128): 0.98, (64, 128): 0.81, (64, 64): 0.62}
# Seconds of a product before its tiles work: one of 256 x 256 x 256 takes 5.6 microseconds there.
START = 5 * us
# The share of BEST that ordinary shapes reach, among other kernels, on a warm GPU that is the
# slowest of its group. It follows from the four timings of that layer alone, and reproduces them
# to 0.3 % on average. Sixty products on one A100 by itself reach 7 % more (`products` of
# bench/published).
ORDINARY = 0.82
# The same on a chip whose power limit slows long work down, as on every NVIDIA chip since the H100.
# Vidur timed products of 70B alike on both chips (bench/published/vidur.csv): the H100 reaches
# 0.86 to 0.92 of BEST in those that take milliseconds and 0.94 to 1.03 in their eighths, the A100
# 0.85 to 0.89 and 0.85 to 0.92. It follows from NVIDIA's step of Llama 3 8B on 8 H100 in 16 bits,
# the published one that waits least for messages.
AT_ITS_LIMIT = 0.77
# The share of the memory's rate that kernels reach: chosen among 0.7, 0.8 and 0.9 with whole
# published steps in view.
MOVED = 0.8
FLASH_BACKWARD = 2.5  # FlashAttention's backward has five products, its forward has two


@dataclass(frozen=True, kw_only=True)
@checked
class BestMatmul:
    """The fastest matrix product measured on one chip: a row of `products.csv`."""

    name: str
    multiprocessors: Count
    best: Mapping[str, Positive]  # precision, "bf16" for both of 16 bits -> FLOP/s
    ordinary: Share = AT_ITS_LIMIT  # the share of `best` that ordinary shapes reach within a step
    ordinary_in_8_bits: Share | None = None  # None: the same
    # The share of `best` that full waves reach alone, on a cool chip with libraries of 2026; None:
    # not measured.
    alone: Positive | None = None
    doubt: str = ""  # about these shares, for those who plan with them
    source: str


BEST = {each.name: each for each in tables.rows("products", BestMatmul)}
# For a chip that is not in BEST: 0.80 of its peak, as the H100's 794.5 of 989.4, and no waves.
UNSEARCHED = 0.80


@checked
def best_flops(chip: Chip, precision: str | None = None) -> float:
    """Return the FLOP/s of the chip's fastest product.

    precision: of its inputs; None: the chip's training precision.
    """
    name = precision or chip.precision
    measured = BEST.get(chip.name)
    row = "bf16" if name == "fp16" else name
    if measured and row in measured.best:
        return measured.best[row]
    return UNSEARCHED * chip.peak(name)


@checked
def ordinary_flops(chip: Chip, precision: str | None = None) -> float:
    """Return the FLOP/s of products of ordinary shapes within a step, where their tiles fit."""
    share = AT_ITS_LIMIT
    if own := BEST.get(chip.name):
        eight_bits = (precision or chip.precision) == "fp8"
        share = (eight_bits and own.ordinary_in_8_bits) or own.ordinary
    return share * best_flops(chip, precision)


@checked
def alone_flops(chip: Chip) -> float:
    """Return the FLOP/s of large 16-bit products by themselves, on a cool chip, in a graph's replay.

    A step does not reach them: there a chip is warm, waits for the slowest of its group, and gives
    memory and multiprocessors to messages. Medians over shapes with full waves and the libraries of
    SGLang, TensorRT-LLM and vLLM:
    https://github.com/ai-dynamo/aiconfigurator/tree/095f58a51c4c/src/aiconfigurator/systems/data
    Errors: ValueError for a chip without such a table.
    """
    measured = BEST.get(chip.name)
    if measured is None or measured.alone is None:
        known = ", ".join(name for name, each in BEST.items() if each.alone)
        raise ValueError(f"no products of the {chip.name} were timed alone; known: {known}")
    return measured.alone * best_flops(chip, "bf16")


class Tiling(NamedTuple):
    """How one size of tiles covers a product."""

    share: float  # of full waves' rate, that of the largest tile
    waves: int


@checked
def tilings(m: Count, n: Count, chip: Chip, count: Count = 1) -> list[Tiling]:
    """Cover `count` products of size [m, n] with each of TILES, upright and across.

    A share is below 1 where tiles hang over the edge, where the last wave is not full, or where
    tiles are small.
    """
    multiprocessors = BEST[chip.name].multiprocessors if chip.name in BEST else 1
    found = []
    for (a, b), rate in TILES.items():
        for rows, columns in {(a, b), (b, a)}:
            waves = ceil(count * ceil(m / rows) * ceil(n / columns) / multiprocessors)
            computed = waves * multiprocessors * a * b
            found.append(Tiling(share=rate * count * m * n / computed, waves=waves))
    return found


_tilings = unchecked(tilings)


@checked
@cache
def matmul_seconds(
    m: Count, k: Count, n: Count, chip: Chip, *,
    precision: str | None = None, count: Count = 1, written: float = 2,
) -> float:  # fmt: skip
    """Time [m, k] times [k, n], `count` times at once.

    FLOPs at the rate that ordinary shapes reach, and what the last wave writes, `written` bytes
    for each number of the result; or all reading and writing, if that takes longer. Of all
    tilings, the fastest. Errors: ValueError for a precision that the chip does not have.
    """
    computing = 2 * count * m * k * n / ordinary_flops(chip, precision)
    read = ELEMENT[precision or chip.precision] * count * (m * k + k * n)
    writing = moved_seconds(written * count * m * n, chip)
    covered = _tilings(m, n, chip, count)
    fastest = min(computing / tiling.share + writing / tiling.waves for tiling in covered)
    return START + max(fastest, moved_seconds(read, chip) + writing)


@checked
def share_of_peak(m: Count, k: Count, n: Count, chip: Chip, precision: str | None = None) -> float:
    """Return the share of the maker's printed peak that a product reaches."""
    peak = chip.peak(precision or chip.precision)
    seconds = matmul_seconds(m, k, n, chip, precision=precision)
    return 2 * m * k * n / (seconds * peak)


@checked
def moved_seconds(nbytes: float, chip: Chip) -> float:
    """Time an operation that only moves bytes: norms, additions, the optimizer's update."""
    return nbytes / (MOVED * chip.memory_bandwidth)


@checked
def flash_seconds(
    pairs: float,
    rows: float,
    chip: Chip,
    *,
    heads: Positive,
    head_size: Count,
    kernels: Kernels = ORDINARY_KERNELS,
) -> tuple[float, float]:
    """Time forward and backward of attention in one kernel each.

    pairs: pairs of tokens that the mask leaves; rows: tokens that ask; heads: those of the rank.
    A row costs as much as some pairs more (`facts.attention`), so short sequences are slow.
    """
    kernel = attention(kernels.attention, chip)

    def seconds(curve: AttentionCurve) -> float:
        work = 4 * heads * head_size * (pairs + curve.keys * rows)
        return work / (curve.share(head_size) * chip.peak_flops)

    return seconds(kernel.forward), FLASH_BACKWARD * seconds(kernel.backward)
