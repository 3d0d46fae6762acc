"""Published steps, table by table, and the errors of their predictions.

The constants of `kernels` are the same for all tables, some by kind of chip: none is fitted to one
of these, but one was chosen among three values with whole steps in view. What a program does by
itself is in its engine. Where a source leaves something open, TABLES says what is assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from shardlab.files.arguments import checked

from ..compute import flops
from . import a100, fsdp, h100
from .layouts import PublishedStep
from .rows import rows


@dataclass(frozen=True, kw_only=True)
@checked
class StepTable:
    """Where a table stands, and what it leaves open that we had to assume."""

    table: str
    source: str
    note: str = ""


TABLES: dict[str, str] = {
    each.table: "; ".join(filter(None, (each.source, each.note)))
    for each in rows("step_tables", StepTable)
}
STEPS: tuple[PublishedStep, ...] = (
    *a100.megatron_2021(),
    *a100.korthikanti_2022(),
    *h100.nvidia_2024(),
    *h100.nemo_2024(),
    *h100.llama_3(),
    *h100.megatron_h100(),
    *fsdp.torchtitan(),
)


@checked
def of_table(table: str) -> list[PublishedStep]:
    """List the rows of a table. Errors: ValueError that lists the known tables."""
    if table not in TABLES:
        raise ValueError(
            f"no table of published steps is called {table!r}; known: {', '.join(TABLES)}"
        )
    return [row for row in STEPS if row.table == table]


@checked
@cache
def hindsight_error(table: str) -> float:
    """Return the error that the best constant FLOP/s, chosen in hindsight, leaves on a table.

    FLOP/s count what is recomputed.
    """
    rates = [_measured_rate(row) for row in of_table(table)]
    return min(_spread(rates, one) for one in rates)


def _spread(rates: Sequence[float], one: float) -> float:
    return fmean(abs(rate / one - 1) for rate in rates)


def _measured_rate(row: PublishedStep) -> float:
    """Return the measured FLOP/s of one GPU."""
    training = row.run.training
    counted = flops.hardware_flops(
        training.spec,
        batch=row.run.batch,
        sequence=training.tokens_per_sequence,
        recomputation=training.recomputation,
    )
    return counted / (row.seconds * training.layout.ranks)
