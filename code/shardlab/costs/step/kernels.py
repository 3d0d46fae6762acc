"""How close to its peak a GPU gets, operation by operation: matrix products and memory traffic.

A product is cut into tiles, one for each multiprocessor at a time. The last wave of tiles may leave
most multiprocessors idle, and a tile that hangs over the edge of the matrix is computed whole.
NVIDIA calls that tile and wave quantization:
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html

There are few constants, the same for every model and layout:

    BEST        measured by others: FLOP/s of the fastest product found in a search over shapes
    ORDINARY    calibrated once, on the single layer timed by Korthikanti et al. 2022 (Table 4)
    MOVED       chosen among three round numbers with whole steps in view
    FLASH       a round number inside published measurements
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

from shardlab.arguments import Count, Positive, checked

from ..compute.roofline import ELEMENT
from ..facts.hardware import Chip
from ..units import TFLOP

# Rows and columns of the result: the largest tile of NVIDIA's guide, and its most efficient.
TILE = 128, 256
# The share of BEST that ordinary shapes reach, among other kernels, on a warm GPU that is the
# slowest of its group. It follows from the four timings of that layer alone, and reproduces them
# to 0.1 % on average.
ORDINARY = 0.90
# The share of the memory's rate that kernels reach: chosen among 0.7, 0.8 and 0.9 with whole
# published steps in view.
MOVED = 0.8
# The share of the peak that FlashAttention reaches, counting the pairs of tokens that a causal mask
# leaves. Assumed for all chips: Shah et al. 2024, Figure 5 (https://arxiv.org/abs/2407.08608) print
# 0.32 to 0.54 for cuDNN's forward on the H100 with heads of 128, sequences of 512 to 16k; Dao 2023
# (https://arxiv.org/abs/2307.08691) gives 0.50 to 0.73 of the A100's.
FLASH = 0.5

_BOOK = "https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md"
_SEARCHED = f"a search over shapes: {_BOOK} (Maximum Achievable Matmul FLOPS)"
_SAME_CHIP = "taken from the A100 SXM 80 GB, which is the same chip"


@dataclass(frozen=True, kw_only=True)
@checked
class BestMatmul:
    """The fastest matrix product measured on one chip."""

    multiprocessors: Count
    best: dict[str, Positive]  # precision -> FLOP/s
    source: str


def _at(multiprocessors: int, source: str = _SEARCHED, **tflops: float) -> BestMatmul:
    best = {precision: rate * TFLOP for precision, rate in tflops.items()}
    best["fp16"] = best["bf16"]
    return BestMatmul(multiprocessors=multiprocessors, best=best, source=source)


BEST: dict[str, BestMatmul] = {
    "A100 SXM 40 GB": _at(108, f"{_SAME_CHIP}; {_SEARCHED}", bf16=271.2),
    "A100 SXM 80 GB": _at(108, bf16=271.2),
    "A100 PCIe 80 GB": _at(108, bf16=252.9),
    "H100 SXM 80 GB": _at(132, bf16=794.5, fp8=1402.6),
    "H200 SXM 141 GB": _at(
        132, _SEARCHED + " (bf16: the same as the H100)", bf16=794.5, fp8=1453.4
    ),
    "B200 SXM 180 GB": _at(148, bf16=1745.0, fp8=3432.5),
    "GB200 186 GB": _at(148, bf16=1822.0, fp8=3615.6),
}
# For a chip that is not in BEST: 0.80 of its peak, as the H100's 794.5 of 989.4, and no waves.
UNSEARCHED = 0.80


@checked
def best_flops(chip: Chip, precision: str | None = None) -> float:
    """Return the FLOP/s of the chip's fastest product.

    precision: of its inputs; None: the chip's training precision.
    """
    name = precision or chip.precision
    measured = BEST.get(chip.name)
    if measured and name in measured.best:
        return measured.best[name]
    return UNSEARCHED * chip.peak(name)


@checked
def filled(m: Count, n: Count, chip: Chip, count: Count = 1) -> float:
    """Return the useful share of the tiles' work, for `count` products of size [m, n].

    Below 1 where tiles hang over the edge, or where the last wave is not full. Tiles lie upright
    or across, whichever is better.
    """
    multiprocessors = _multiprocessors(chip)
    return max(_filled(m, n, a, b, multiprocessors, count) for a, b in (TILE, TILE[::-1]))


def _filled(m: int, n: int, a: int, b: int, multiprocessors: int, count: int) -> float:
    tiles = count * ceil(m / a) * ceil(n / b)
    computed = tiles
    if multiprocessors > 1:
        computed = ceil(tiles / multiprocessors) * multiprocessors
    return count * m * n / (computed * a * b)


def _multiprocessors(chip: Chip) -> int:
    return BEST[chip.name].multiprocessors if chip.name in BEST else 1


@checked
@cache
def matmul_seconds(
    m: Count, k: Count, n: Count, chip: Chip, *,
    precision: str | None = None, count: Count = 1, written: float = 2,
) -> float:  # fmt: skip
    """Time [m, k] times [k, n], `count` times at once.

    The tiles of a wave compute together and then write together, which nothing hides:
    FLOPs at the rate that ordinary shapes reach, or reading the inputs if that takes
    longer, plus `written` bytes for each number of the result. Too slow for small
    products, for which libraries have smaller tiles. Errors: ValueError for a precision
    that the chip does not have.
    """
    rate = ORDINARY * best_flops(chip, precision) * filled(m, n, chip, count)
    computing = 2 * count * m * k * n / rate
    read = ELEMENT[precision or chip.precision] * count * (m * k + k * n)
    writing = moved_seconds(written * count * m * n, chip)
    return max(computing, moved_seconds(read, chip)) + writing


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
def flash_seconds(pairs: float, width: float, chip: Chip) -> float:
    """Time the forward of attention in one kernel.

    pairs: pairs of tokens that the mask leaves. width: numbers of all heads on the rank.
    """
    return 4 * pairs * width / (FLASH * chip.peak_flops)
