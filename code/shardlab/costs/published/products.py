"""Published products of matrices, by shape: what `compute.kernels` says of tiles, and is held to.

None of them is a step. On the H100, for the constants TILES and START of `kernels`: the table with
which the XLA compiler estimates products in 16 bits, xla/service/gpu/model/
matmul_interpolator_data.h in https://github.com/tensorflow/tensorflow/tree/372d578b/third_party/xla.
Kept back, on A100 and H100: layers that the Vidur simulator timed
(https://github.com/microsoft/vidur/tree/main/data/profiling/compute, medians of `mlp.csv`),
Llama 2's 70B cut by tp, and its 7B.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from shardlab.arguments import Count, Positive, checked

from ..compute import kernels
from ..facts.chips import Chip, chip
from ..units import TFLOP


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


SIZES = 256, 512, 1024, 2048, 4096
# inputs -> TFLOP/s; a line for each number of rows, a column for each number of columns, of SIZES
XLA = {
    256: """
6.5 11.5 22.7 41.8 78.0
11.5 21.6 43.5 79.3 134.2
22.0 42.9 82.0 139.5 209.7
43.6 83.9 141.6 213.0 299.3
82.2 142.5 216.5 304.0 392.2
""",
    512: """
11.5 22.0 41.8 78.2 138.1
21.8 40.7 80.5 143.4 236.3
40.9 82.2 145.6 237.6 338.9
77.3 142.8 238.4 345.5 450.4
137.2 238.8 343.7 447.0 543.1
""",
    1024: """
19.5 39.1 72.5 138.1 225.2
39.3 71.2 138.7 232.6 373.3
68.3 141.3 236.3 373.3 490.3
135.8 235.9 373.3 493.9 594.2
217.2 370.8 488.1 593.2 677.4
""",
    2048: """
31.1 62.4 119.0 215.8 324.6
60.1 114.7 216.5 342.4 522.2
113.2 220.0 350.0 524.3 634.2
216.1 347.7 523.3 632.0 715.4
304.7 521.7 632.0 716.1 738.7
""",
    4096: """
84.3 91.7 172.3 285.9 412.0
91.1 174.5 309.6 430.5 644.1
169.7 298.9 470.1 653.5 738.5
307.5 451.2 653.1 738.0 753.6
376.2 650.0 738.5 758.4 783.3
""",
}
# chip -> tokens and tp of the 70B, or "7B"; ms of queries, keys and values; of attention's output;
# of gate and up; of down
VIDUR = {
    "A100 SXM 80 GB": """
4096 1  2.872 2.377 15.94 8.0635
3840 1  2.918 2.1985 15.2195 7.431
3584 1  2.679 2.192 14.2005 7.0805
4096 2  1.411 1.276 7.97 4.0055
3840 2  1.426 1.22 7.5765 3.6565
3584 2  1.3985 1.137 7.027 3.5995
4096 4  0.6845 0.716 3.835 1.981
3840 4  0.702 0.69 3.703 1.833
3584 4  0.701 0.649 3.471 1.829
4096 8  0.348 0.296 1.931 1.0475
3840 8  0.365 0.299 1.855 1.061
3584 8  0.332 0.273 1.79 0.972
4096 7B  1.911 0.611 3.3655 1.604
3840 7B  1.794 0.544 3.176 1.457
3584 7B  1.6605 0.538 2.957 1.445
""",
    "H100 SXM 80 GB": """
4096 1  0.9825 0.7885 5.6685 2.647
3840 1  0.949 0.7645 5.22 2.5955
3584 1  0.873 0.706 5.019 2.355
4096 2  0.5635 0.396 2.6725 1.266
3840 2  0.46 0.369 2.483 1.252
3584 2  0.477 0.364 2.4215 1.155
4096 8  0.148 0.092 0.631 0.295
3840 8  0.147 0.09 0.607 0.267
3584 8  0.1255 0.085 0.544 0.251
""",
}


def _xla() -> Iterator[Product]:
    h100 = chip("H100 SXM 80 GB")
    for k, text in XLA.items():
        lines = [line.split() for line in text.strip().split("\n")]
        for m, rates in zip(SIZES, lines, strict=True):
            for n, rate in zip(SIZES, rates, strict=True):
                seconds = 2 * m * k * n / (float(rate) * TFLOP)
                yield Product(chip=h100, m=m, k=k, n=n, seconds=seconds)


def _vidur(name: str) -> Iterator[Product]:
    on = chip(name)
    for line in VIDUR[name].strip().split("\n"):
        tokens, cut, *times = line.split()
        tp = 1 if cut == "7B" else int(cut)
        width, keys, ffn = (4096, 4096, 11_008) if cut == "7B" else (8192, 1024, 28_672)
        shapes = (
            (width, (width + 2 * keys) // tp),
            (width // tp, width),
            (width, 2 * ffn // tp),
            (ffn // tp, width),
        )
        for (k, n), time in zip(shapes, times, strict=True):
            yield Product(chip=on, m=int(tokens), k=k, n=n, seconds=float(time) / 1000)


ON_H100 = tuple(_xla())
KEPT_ON_A100, KEPT_ON_H100 = (tuple(_vidur(name)) for name in VIDUR)


@checked
def spread(products: Sequence[Product]) -> float:
    """Average the errors that remain when one factor for all products is taken out, as a share.

    Products that a benchmark times by themselves are faster than those within a step
    (`kernels.ORDINARY`), all by about the same factor.
    """
    ratios = [1 + each.error for each in products]
    mean = fmean(ratios)
    return fmean(abs(ratio / mean - 1) for ratio in ratios)
