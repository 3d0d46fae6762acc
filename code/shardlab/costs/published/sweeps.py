"""Published sweeps, which vary one choice and keep all else: they test how layouts are *ranked*.

Narayanan et al. 2021, Figures 13 to 16 (https://arxiv.org/abs/2104.04473): 64 A100s, all layers
recomputed. The rates are read from the figures, to about 3 TFLOP/s.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, groupby

from shardlab.files.arguments import Count, Positive, checked
from shardlab.model.spec import TransformerSpec

from ..compute import flops
from ..facts import nodes
from ..programs import MEGATRON_2021
from .layouts import LayoutRow, PublishedStep, Setting
from .rows import rows

GPUS, LENGTH = 64, 2048


@dataclass(frozen=True, kw_only=True)
@checked
class SweepRow:
    """A bar of a figure."""

    figure: str
    varied: str
    hidden_size: Count
    num_heads: Count
    batch: Count
    tp: Count
    pp: Count
    microbatch: Count
    rate: Positive  # FLOP/s of one GPU


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
    found = groupby(rows("sweeps_2021", SweepRow), lambda row: (row.figure, row.varied, row.batch))
    for (figure, varied, batch), group in found:
        yield Sweep(figure=figure, varied=varied, batch=batch, rows=tuple(map(_step, group)))


def _step(row: SweepRow) -> PublishedStep:
    spec = TransformerSpec(
        vocab_size=51_200,
        context_length=LENGTH,
        hidden_size=row.hidden_size,
        num_layers=32,
        num_heads=row.num_heads,
    )
    counted = flops.hardware_flops(spec, batch=row.batch, sequence=LENGTH, recomputation="full")
    cut = LayoutRow(
        model=row.figure,
        gpus=GPUS,
        tp=row.tp,
        pp=row.pp,
        batch=row.batch,
        microbatch=row.microbatch,
    )
    return cut.step(
        Setting(table=row.figure, node=nodes.node("DGX A100"), program=MEGATRON_2021),
        counted / (GPUS * row.rate),
        name=f"tp {row.tp}, pp {row.pp}, dp {cut.layout.dp}, microbatch {row.microbatch}",
        spec=spec,
        layout=cut.layout,
        recomputation="full",
        attention="stored",
        dropout=True,
    )


SWEEPS: tuple[Sweep, ...] = tuple(_sweeps())
