"""The roofline: what bounds an operation, the chip's arithmetic or its memory.

Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785. The arithmetic intensity of an
operation is its FLOPs divided by the bytes it moves; a chip attains min(peak, intensity *
bandwidth). Bytes are counted as if every operand crossed the memory bus once, which is the minimum,
so times are lower bounds. Left out: caches larger than the operands, and products too small to fill
the chip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shardlab.files.arguments import Count, Positive, checked
from shardlab.model.spec import TransformerSpec

from ..facts.hardware import Chip
from . import flops

ELEMENT = {"fp8": 1, "fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}  # bytes of one number
# FLOPs for each number. An order of magnitude is enough: memory bounds these operations on every
# chip.
NORM, ACTIVATION, ADD = 8, 8, 1


@dataclass(frozen=True, kw_only=True)
@checked
class Work:
    """One operation: its arithmetic, and the bytes it must move between the chip and its memory."""

    name: str
    flops: float
    nbytes: Positive
    vector: bool = False  # computed by the ordinary fp32 cores, not by the matrix units

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/byte."""
        return self.flops / self.nbytes


@checked
def ridge(chip: Chip, precision: str | None = None) -> float:
    """Return the intensity, FLOP/byte, above which arithmetic is the bound.

    precision: None for the chip's training precision.
    """
    return chip.peak(precision or chip.precision) / chip.memory_bandwidth


@checked
def attainable(intensity: float, chip: Chip, precision: str | None = None) -> float:
    """Return the FLOP/s of an operation of the given intensity, FLOP/byte."""
    (rate,) = roof(
        [intensity], peak=chip.peak(precision or chip.precision), bandwidth=chip.memory_bandwidth
    )
    return rate


@checked
def roof(intensities: Sequence[float], *, peak: Positive, bandwidth: Positive) -> list[float]:
    """Return the attainable FLOP/s at each intensity. peak: FLOP/s; bandwidth: bytes/s."""
    return [min(peak, intensity * bandwidth) for intensity in intensities]


@checked
def seconds(work: Work, chip: Chip, precision: str | None = None) -> float:
    """Return the least seconds an operation takes: the longer of its arithmetic and its traffic."""
    peak = chip.peak("fp32" if work.vector else precision or chip.precision)
    return max(work.flops / peak, work.nbytes / chip.memory_bandwidth)


@checked
def bound(work: Work, chip: Chip, precision: str | None = None) -> Literal["arithmetic", "memory"]:
    """Name the bound of an operation."""
    peak = chip.peak("fp32" if work.vector else precision or chip.precision)
    return "arithmetic" if work.flops / peak >= work.nbytes / chip.memory_bandwidth else "memory"


@checked
def matmul(m: Count, k: Count, n: Count, *, element: Count = 2, name: str = "") -> Work:
    """Multiply [m, k] by [k, n]: 2*m*k*n FLOPs; three matrices move."""
    nbytes = element * (m * k + k * n + m * n)
    return Work(name=name or f"[{m}, {k}] x [{k}, {n}]", flops=2 * m * k * n, nbytes=nbytes)


@checked
def elementwise(
    numbers: Count, *, inputs: int, arithmetic: float, element: Count = 2, name: str = ""
) -> Work:
    """Read `inputs` tensors and write one, with `arithmetic` FLOPs for each number written."""
    moved = element * (inputs + 1) * numbers
    return Work(name=name or "elementwise", flops=arithmetic * numbers, nbytes=moved, vector=True)


@checked
def norm(tokens: Count, hidden_size: Count, *, name: str = "norm") -> Work:
    """Apply LayerNorm or RMSNorm: every number is read and written once.

    Weights are not counted.
    """
    return elementwise(tokens * hidden_size, inputs=1, arithmetic=NORM, name=name)


@checked
def attention(spec: TransformerSpec, *, batch: Count, sequence: Count) -> Work:
    """Compute one layer's causal attention in one operation that keeps the scores on the chip.

    FlashAttention, Dao et al. 2022, https://arxiv.org/abs/2205.14135.
    """
    if not spec.num_attention:
        raise ValueError("no layer of this model has attention; ask for a model that has some")
    counts = flops.forward(spec, batch=batch, sequence=sequence, pairs="causal")
    numbers = spec.tokens(batch, sequence) * (2 * spec.attention_size + 2 * spec.kv_size)
    work = counts["scores"] / spec.num_attention
    return Work(name="attention", flops=work, nbytes=2 * numbers)


@checked
def layer(spec: TransformerSpec, *, batch: Count, sequence: Count) -> list[Work]:
    """List the operations of one layer's forward pass in 16 bits, without rotary positions."""
    t = spec.tokens(batch, sequence)
    h = spec.hidden_size
    width = spec.attention_size
    entering = width + 2 * spec.kv_size
    f = spec.ffn
    gated = spec.has_gate

    def add(name: str) -> Work:
        return elementwise(t * h, inputs=2, arithmetic=ADD, name=name)

    def norms(wanted: bool, size: int, name: str) -> list[Work]:
        return [norm(t, size, name=name)] if wanted else []

    return [
        norm(t, h, name="attention norm"),
        matmul(t, h, entering, name="queries, keys, values"),
        *norms(spec.query_norms, entering - spec.kv_size, "norms of queries and keys"),
        attention(spec, batch=batch, sequence=sequence),
        matmul(t, width, h, name="attention output"),
        *norms(spec.post_norms, h, "norm after attention"),
        add("first residual"),
        norm(t, h, name="feed-forward norm"),
        matmul(t, h, 2 * f if gated else f, name="gate and up" if gated else "up"),
        elementwise(t * f, inputs=2 if gated else 1, arithmetic=ACTIVATION, name="activation"),
        matmul(t, f, h, name="down"),
        *norms(spec.post_norms, h, "norm after feed-forward"),
        add("second residual"),
    ]


@checked
def least_rows(k: Count, n: Count, chip: Chip, precision: str | None = None) -> int | None:
    """Return the fewest rows m with which arithmetic bounds [m, k] times [k, n].

    None if no m suffices.

    2mkn / e(mk + kn + mn) reaches the ridge r at m = r e k n / (2kn - r e (k + n)), for numbers of
    e bytes.
    """
    scaled = ridge(chip, precision) * ELEMENT[precision or chip.precision]
    slack = 2 * k * n - scaled * (k + n)
    return None if slack <= 0 else int(-(-scaled * k * n // slack))
