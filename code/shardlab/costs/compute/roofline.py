"""The roofline: what bounds an operation, the chip's arithmetic or its memory.

Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785. An operation of so many FLOPs that moves so many
bytes has the arithmetic intensity FLOPs / bytes; a chip attains min(peak, intensity * bandwidth). Bytes are counted as
if every operand crossed the memory bus once: the least there can be, so times are lower bounds. Caches larger than the
operands, and products too small to fill the chip, are left out.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shardlab.spec import TransformerSpec

from ..facts.hardware import Chip
from . import flops

ELEMENT = {"fp8": 1, "fp16": 2, "bf16": 2, "tf32": 4, "fp32": 4}  # bytes of one number
# FLOPs for each number, an order of magnitude that decides nothing: these operations wait for memory on every chip.
NORM, ACTIVATION, SOFTMAX, ADD, ADAM = 8, 8, 5, 1, 14


@dataclass(frozen=True, kw_only=True)
class Work:
    """One operation: its arithmetic, and the bytes it must move between the chip and its memory."""

    name: str
    flops: float
    nbytes: float
    vector: bool = False  # computed by the ordinary fp32 cores, which the chip's matrix units do not help

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP/byte."""
        return self.flops / self.nbytes


def ridge(chip: Chip, precision: str | None = None) -> float:
    """The intensity, FLOP/byte, from which the chip's arithmetic is the bound; None: what models are trained in."""
    return chip.peak(precision or chip.precision) / chip.memory_bandwidth


def attainable(intensity: float, chip: Chip, precision: str | None = None) -> float:
    """FLOP/s of an operation of that intensity, FLOP/byte. Errors: ValueError for a negative one."""
    (rate,) = roof([intensity], peak=chip.peak(precision or chip.precision), bandwidth=chip.memory_bandwidth)
    return rate


def roof(intensities: Sequence[float], *, peak: float, bandwidth: float) -> list[float]:
    """What is attainable at each of these intensities, where peak (FLOP/s) and bandwidth (bytes/s) were measured."""
    if min(intensities) < 0:
        raise ValueError(f"an intensity of {min(intensities)} FLOP/byte does not exist; use at least 0")
    return [min(peak, intensity * bandwidth) for intensity in intensities]


def seconds(work: Work, chip: Chip, precision: str | None = None) -> float:
    """How long the operation takes at the least: the longer of its arithmetic and its traffic."""
    peak = chip.peak("fp32" if work.vector else precision or chip.precision)
    return max(work.flops / peak, work.nbytes / chip.memory_bandwidth)


def bound(work: Work, chip: Chip, precision: str | None = None) -> Literal["arithmetic", "memory"]:
    """What the operation waits for."""
    peak = chip.peak("fp32" if work.vector else precision or chip.precision)
    return "arithmetic" if work.flops / peak >= work.nbytes / chip.memory_bandwidth else "memory"


def matmul(m: int, k: int, n: int, *, element: int = 2, name: str = "") -> Work:
    """[m, k] times [k, n]: 2*m*k*n FLOPs; three matrices move. Errors: ValueError for an empty matrix."""
    if min(m, k, n) < 1:
        raise ValueError(f"a product of [{m}, {k}] and [{k}, {n}] is empty; use sizes of at least 1")
    nbytes = element * (m * k + k * n + m * n)
    return Work(name=name or f"[{m}, {k}] x [{k}, {n}]", flops=2 * m * k * n, nbytes=nbytes)


def elementwise(numbers: int, *, inputs: int, arithmetic: float, element: int = 2, name: str = "") -> Work:
    """`inputs` tensors in, one out, with so many FLOPs for each number of the output."""
    moved = element * (inputs + 1) * numbers
    return Work(name=name or "elementwise", flops=arithmetic * numbers, nbytes=moved, vector=True)


def norm(tokens: int, hidden_size: int, *, element: int = 2, name: str = "norm") -> Work:
    """LayerNorm or RMSNorm: reads and writes every number once; its weights are too few to count."""
    return elementwise(tokens * hidden_size, inputs=1, arithmetic=NORM, element=element, name=name)


def attention(
    spec: TransformerSpec, *, batch: int, sequence: int, fused: bool = True, element: int = 2, mask: str = "causal"
) -> list[Work]:
    """Queries by keys, softmax, scores by values, in one layer.

    fused: one operation that keeps the scores on the chip (FlashAttention, Dao et al. 2022,
    https://arxiv.org/abs/2205.14135). Without, the scores of every head are written twice and read twice, and all pairs
    are computed. mask: "causal" or "full", see `flops.forward`; not fused, the mask saves nothing.
    """
    tokens, h, kv = spec.tokens(batch, sequence), spec.hidden_size, spec.kv_size
    pairs = "full" if not fused else mask
    work = flops.forward(spec, batch=batch, sequence=sequence, attention=pairs)["scores"] / spec.num_layers
    if fused:
        return [Work(name="attention", flops=work, nbytes=element * tokens * (2 * h + 2 * kv))]
    scores = batch * spec.num_heads * sequence**2
    half = Work(name="", flops=work / 2, nbytes=element * (tokens * (h + kv) + scores))
    softmax = elementwise(scores, inputs=1, arithmetic=SOFTMAX, element=element, name="softmax")
    return [replace(half, name="queries x keys"), softmax, replace(half, name="scores x values")]


def update(num_parameters: float, traffic: float) -> Work:
    """One step of Adam. traffic: bytes for each parameter, for instance `recipes.MIXED.update_traffic`."""
    return Work(name="update", flops=ADAM * num_parameters, nbytes=traffic * num_parameters, vector=True)


def layer(
    spec: TransformerSpec, *, batch: int, sequence: int, fused: bool = True, element: int = 2, mask: str = "causal"
) -> list[Work]:
    """The forward pass of one layer, operation by operation, in the order in which they run."""
    t, h, kv, f = spec.tokens(batch, sequence), spec.hidden_size, spec.kv_size, spec.ffn
    gated = spec.style == "llama"

    def add(name: str) -> Work:
        return elementwise(t * h, inputs=2, arithmetic=ADD, element=element, name=name)

    return [
        norm(t, h, element=element, name="attention norm"),
        matmul(t, h, h + 2 * kv, element=element, name="queries, keys, values"),
        *attention(spec, batch=batch, sequence=sequence, fused=fused, element=element, mask=mask),
        matmul(t, h, h, element=element, name="attention output"),
        add("first residual"),
        norm(t, h, element=element, name="feed-forward norm"),
        matmul(t, h, 2 * f if gated else f, element=element, name="gate and up" if gated else "up"),
        elementwise(t * f, inputs=2 if gated else 1, arithmetic=ACTIVATION, element=element, name="activation"),
        matmul(t, f, h, element=element, name="down"),
        add("second residual"),
    ]


def least_rows(k: int, n: int, chip: Chip, precision: str | None = None) -> int | None:
    """The fewest rows m with which [m, k] times [k, n] is bound by arithmetic; None where no number is enough.

    2mkn / e(mk + kn + mn) reaches the ridge r at m = r e k n / (2kn - r e (k + n)), for numbers of e bytes.
    """
    scaled = ridge(chip, precision) * ELEMENT[precision or chip.precision]
    slack = 2 * k * n - scaled * (k + n)
    return None if slack <= 0 else int(-(-scaled * k * n // slack))
