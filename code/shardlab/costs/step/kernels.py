"""What share of its peak a GPU reaches, operation by operation: products of matrices, and what waits for memory.

A product is cut into tiles, one for each multiprocessor at a time; the last wave of tiles may leave most of them idle,
and a tile that hangs over the edge of the matrix is computed whole. NVIDIA calls that tile and wave quantization:
https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html

The constants, few and the same for every model and layout:

    BEST            measured by others: FLOP/s of the best product that a search over shapes found on each chip
    ORDINARY        calibrated once, on the one layer that Korthikanti et al. 2022 timed by itself (Table 4)
    MOVED           chosen among three round numbers with whole steps in view
    FLASH           a round number inside published measurements
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

from ..compute.roofline import ELEMENT
from ..facts.hardware import Chip
from ..units import TFLOP

TILE = 128, 256  # numbers of the result; the largest tile of NVIDIA's guide, and its most efficient
# The share of BEST that ordinary shapes reach, amid other kernels, on a GPU that is warm, the slowest of its group.
# It follows from the four timings of that layer alone, which it meets to 0.1 % on average.
ORDINARY = 0.90
# The share of the memory's rate that kernels reach: chosen among 0.7, 0.8 and 0.9 with whole published steps in view.
MOVED = 0.8
# The share of the peak that FlashAttention reaches, of the pairs of tokens that a causal mask leaves. Assumed for all:
# Shah et al. 2024, Figure 5 (https://arxiv.org/abs/2407.08608) print 0.32 to 0.54 for cuDNN's forward on the H100 with
# heads of 128, sequences of 512 to 16k; Dao 2023 (https://arxiv.org/abs/2307.08691) gives 0.50 to 0.73 of the A100's.
FLASH = 0.5

_BOOK = "https://github.com/stas00/ml-engineering/blob/master/compute/accelerator/README.md"
_SEARCHED = f"a search over shapes: {_BOOK} (Maximum Achievable Matmul FLOPS)"
_LIKE = "taken to be that of the {}: same chip"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What products of matrices reach on one chip."""

    multiprocessors: int
    best: dict[str, float]  # precision -> FLOP/s
    source: str


def _at(multiprocessors: int, source: str = _SEARCHED, **tflops: float) -> Measured:
    best = {precision: rate * TFLOP for precision, rate in tflops.items()}
    return Measured(multiprocessors=multiprocessors, best={**best, "fp16": best["bf16"]}, source=source)


BEST: dict[str, Measured] = {
    "A100 SXM 40 GB": _at(108, _LIKE.format("A100 SXM 80 GB") + "; " + _SEARCHED, bf16=271.2),
    "A100 SXM 80 GB": _at(108, bf16=271.2),
    "A100 PCIe 80 GB": _at(108, bf16=252.9),
    "H100 SXM 80 GB": _at(132, bf16=794.5, fp8=1402.6),
    "H200 SXM 141 GB": _at(132, _SEARCHED + " (bf16: the same as the H100)", bf16=794.5, fp8=1453.4),
    "B200 SXM 180 GB": _at(148, bf16=1745.0, fp8=3432.5),
    "GB200 186 GB": _at(148, bf16=1822.0, fp8=3615.6),
}
# For a chip that nobody searched: 0.80 of its peak, as the H100's 794.5 of 989.4, and tiles without waves.
UNSEARCHED = 0.80


def best_flops(chip: Chip, precision: str | None = None) -> float:
    """FLOP/s of the best product of that precision; None: what models are trained in."""
    name = precision or chip.precision
    measured = BEST.get(chip.name)
    return measured.best[name] if measured and name in measured.best else UNSEARCHED * chip.peak(name)


def filled(m: int, n: int, chip: Chip, count: int = 1) -> float:
    """The share of the tiles' work that is wanted, of `count` products of size [m, n], tiles laid the better way.

    Below 1 where tiles hang over the edge, and where the last wave is not full.
    """
    return max(_filled(m, n, a, b, _multiprocessors(chip), count) for a, b in (TILE, TILE[::-1]))


def _filled(m: int, n: int, a: int, b: int, multiprocessors: int, count: int) -> float:
    tiles = count * ceil(m / a) * ceil(n / b)
    computed = ceil(tiles / multiprocessors) * multiprocessors if multiprocessors > 1 else tiles
    return count * m * n / (computed * a * b)


def _multiprocessors(chip: Chip) -> int:
    return BEST[chip.name].multiprocessors if chip.name in BEST else 1


@cache
def matmul_seconds(
    m: int, k: int, n: int, chip: Chip, *,
    precision: str | None = None, count: int = 1, written: float = 2,
) -> float:  # fmt: skip
    """[m, k] times [k, n], `count` times at once.

    The tiles of a wave compute together and then write their results together, which
    nothing hides: FLOPs at the rate that ordinary shapes reach, plus `written` bytes
    for each number of the result; or all that must be moved, if that takes longer. Too
    slow for small products, for which libraries have smaller tiles. Errors: ValueError
    for an empty product, or a precision the chip does not have.
    """
    if min(m, k, n, count) < 1:
        shapes = f"{count} products of [{m}, {k}] and [{k}, {n}]"
        raise ValueError(f"{shapes} are empty; use sizes of at least 1")
    rate = ORDINARY * best_flops(chip, precision) * filled(m, n, chip, count)
    computing = 2 * count * m * k * n / rate
    read = ELEMENT[precision or chip.precision] * count * (m * k + k * n)
    writing = moved_seconds(written * count * m * n, chip)
    return max(computing, moved_seconds(read, chip)) + writing


def share_of_peak(m: int, k: int, n: int, chip: Chip, precision: str | None = None) -> float:
    """What the product reaches, of the peak that its maker prints."""
    peak = chip.peak(precision or chip.precision)
    return 2 * m * k * n / (matmul_seconds(m, k, n, chip, precision=precision) * peak)


def moved_seconds(nbytes: float, chip: Chip) -> float:
    """What only reads and writes: norms, activation functions, additions, the optimizer's step."""
    return nbytes / (MOVED * chip.memory_bandwidth)


def flash_seconds(pairs: float, width: float, chip: Chip) -> float:
    """Forward of attention in one kernel. pairs: of tokens that the mask leaves; width: numbers of all heads here."""
    return 4 * pairs * width / (FLASH * chip.peak_flops)
