"""Published sweeps, which vary one choice and keep all else: they test how layouts are *ranked*."""

from dataclasses import dataclass
from itertools import combinations, groupby

from shardlab.files.arguments import Count, checked

from .rows import rows
from .steps import PublishedStep


@dataclass(frozen=True, kw_only=True)
@checked
class SweepStep(PublishedStep):
    """A bar of a figure."""

    varied: str

    @property
    def name(self) -> str:
        """Its layout."""
        dp = self.layout.dp
        return f"tp {self.tp}, pp {self.pp}, dp {dp}, microbatch {self.microbatch}"


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


SWEEPS: tuple[Sweep, ...] = tuple(
    Sweep(figure=figure, varied=varied, batch=batch, rows=tuple(group))
    for (figure, varied, batch), group in groupby(
        rows("sweeps_2021", SweepStep), lambda row: (row.table, row.varied, row.batch)
    )
)
