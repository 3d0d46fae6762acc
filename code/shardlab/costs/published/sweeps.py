"""Published sweeps, which vary one choice and keep all else: they test how layouts are *ranked*.

Narayanan et al. 2021, Figures 13 to 16 (https://arxiv.org/abs/2104.04473): 64 A100s, all layers
recomputed. The rates are read from the figures, to about 3 TFLOP/s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from shardlab.arguments import Count, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from ..compute import flops
from ..programs import MEGATRON_2021
from ..units import TFLOP
from .layouts import PublishedStep, Setting, row

GPUS, LENGTH = 64, 2048
Choice = tuple[int, int, int]  # tp, pp, microbatch


def _gpt(width: int, heads: int) -> TransformerSpec:
    return TransformerSpec(
        vocab_size=51_200, context_length=LENGTH, hidden_size=width, num_layers=32, num_heads=heads
    )


_PIPELINE_OR_TENSOR: list[Choice] = [(32, 2, 1), (16, 4, 1), (8, 8, 1), (4, 16, 1), (2, 32, 1)]
_PIPELINE_OR_DATA: list[Choice] = [(1, pp, 1) for pp in (2, 4, 8, 16, 32)]
_TENSOR_OR_DATA: list[Choice] = [(tp, 1, 1) for tp in (2, 4, 8, 16, 32)]
_MICROBATCHES: list[Choice] = [(8, 8, size) for size in (1, 2, 4, 8)]
Rates = dict[int, tuple[int, ...]]  # batch -> TFLOP/s of one GPU, for each choice
# figure -> what is varied, the model, the choices, the rates
FIGURES: dict[str, tuple[str, TransformerSpec, list[Choice], Rates]] = {
    "Figure 13": ("tp against pp", _gpt(20_480, 128), _PIPELINE_OR_TENSOR, {
        32: (103, 134, 140, 111, 91), 128: (107, 146, 165, 162, 148),
    }),
    "Figure 14": ("pp against dp", _gpt(3840, 32), _PIPELINE_OR_DATA, {
        32: (62, 56, 53, 49, 43), 512: (148, 141, 129, 114, 90),
    }),
    "Figure 15": ("tp against dp", _gpt(3840, 32), _TENSOR_OR_DATA, {
        32: (56, 54, 55, 36, 22), 128: (103, 88, 70, 40, 22), 512: (127, 104, 75, 40, 22),
    }),
    "Figure 16": ("microbatch", _gpt(15_360, 128), _MICROBATCHES, {
        128: (156, 159, 139, 120), 512: (162, 171, 160, 154),
    }),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
@checked
class Sweep:
    """The same model, batch and GPUs, with one choice varied."""

    figure: str
    varied: str
    batch: Count
    rows: tuple[PublishedStep, ...]

    def __post_init__(self) -> None:
        if len(self.rows) < 2:  # noqa: PLR2004
            raise ValueError(f"rows={self.rows} must be at least 2, to be compared")

    @property
    def best(self) -> PublishedStep:
        """The row that was measured fastest."""
        return min(self.rows, key=lambda row: row.seconds)

    @property
    def chosen(self) -> PublishedStep:
        """The row that the prediction would choose."""
        return min(self.rows, key=lambda row: row.predicted.seconds)

    @property
    def regret(self) -> float:
        """How much longer the chosen row was measured to take than the best, as a share."""
        return self.chosen.seconds / self.best.seconds - 1

    @property
    def agreement(self) -> float:
        """Kendall's tau: 1 if every pair of rows is ordered as measured, -1 if none is."""
        pairs = list(combinations(self.rows, 2))
        alike = 0
        for a, b in pairs:
            predicted = a.predicted.seconds - b.predicted.seconds
            alike += (a.seconds - b.seconds) * predicted > 0
        return 2 * alike / len(pairs) - 1


def _sweeps() -> Iterator[Sweep]:
    for figure, (varied, spec, choices, batches) in FIGURES.items():
        for batch, rates in batches.items():
            rows = tuple(_rows(figure, spec, choices, batch, rates))
            yield Sweep(figure=figure, varied=varied, batch=batch, rows=rows)


def _rows(
    figure: str,
    spec: TransformerSpec,
    choices: Sequence[Choice],
    batch: int,
    rates: Sequence[float],
) -> Iterator[PublishedStep]:
    counted = flops.hardware_flops(spec, batch=batch, sequence=LENGTH, recomputation="full")
    setting = Setting(table=figure, node="DGX A100", program=MEGATRON_2021)
    for (tp, pp, size), rate in zip(choices, rates, strict=True):
        layout = Layout(tp=tp, pp=pp, dp=GPUS // (tp * pp))
        yield row(
            setting, f"tp {tp}, pp {pp}, dp {layout.dp}, microbatch {size}", spec, layout,
            batch=batch, seconds=counted / (GPUS * rate * TFLOP), microbatch=size,
            recomputation="full", attention="stored", dropout=True,
        )  # fmt: skip


SWEEPS: tuple[Sweep, ...] = tuple(_sweeps())
