"""Published steps, table by table: how far the predictions are off.

The constants of `kernels` are the same for all: nothing is fitted to a table, but one of them was chosen among three
values with whole steps in view. Where a source leaves something open, the table says what is assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from ..compute import flops
from . import a100, h100
from .layouts import PublishedStep

_SC21 = "Narayanan et al. 2021, {} (https://arxiv.org/abs/2104.04473)"
_KORTHIKANTI = "Korthikanti et al. 2022, Tables 3 and 5 (https://arxiv.org/abs/2205.05198)"
_RECIPES = (
    "https://github.com/NVIDIA/dgxc-benchmarking: llama3.1/README_8b.md, README_70b.md, README_405b.md and "
    "nemo_megatron/README_175b.md (NeMo 24.09)"
)
_OPEN = "nothing recomputed, optimizer states cut"


@dataclass(frozen=True, kw_only=True)
class Table:
    """Where a table stands, and what it leaves open that we had to assume."""

    source: str
    assumed: str = ""


TABLES: dict[str, Table] = {
    a100.TEN: Table(
        source=_SC21.format("Table 1")
        + "; microbatches and chunks: https://github.com/NVIDIA/Megatron-LM/blob/v3.0/examples/sc21/run_table_1.sh",
    ),
    a100.MORE: Table(source=_SC21.format("Table 2, PTD-P"), assumed="1F1B, tp = 8"),
    a100.FULL: Table(source=_KORTHIKANTI + ", full recomputation"),
    a100.SELECTIVE: Table(source=_KORTHIKANTI + ", present work"),
    h100.BF16: Table(source=_RECIPES, assumed=_OPEN),
    h100.FP8: Table(source=_RECIPES, assumed=_OPEN + ", fp8 in the layers only"),
    h100.NEMO: Table(
        source="https://docs.nvidia.com/nemo-framework/user-guide/24.12/nemotoolkit/performance/performance_summary.html",
        assumed=_OPEN + ", fp8 in the layers only",
    ),
    h100.LLAMA: Table(
        source="Llama Team 2024, Table 4 and section 3.3.2 (https://arxiv.org/abs/2407.21783)",
        assumed="microbatches of one sequence, gradients scattered once a step; their FLOP/s count the pairs that a "
        "causal mask leaves (if all, the third row would have taken 40 % longer)",
    ),
    h100.MEGATRON: Table(
        source="README of https://github.com/NVIDIA/Megatron-LM (its table is an image); this row as quoted in "
        "https://github.com/NVIDIA/Megatron-LM/issues/1031 and https://github.com/NVIDIA/Megatron-LM/issues/1571",
        assumed="microbatches of one sequence, 6 chunks of 7 layers, nothing recomputed",
    ),
}
STEPS: tuple[PublishedStep, ...] = (
    *a100.megatron_2021(),
    *a100.korthikanti_2022(),
    *h100.nvidia_2024(),
    *h100.nemo_2024(),
    *h100.llama_3(),
    *h100.megatron_h100(),
)


def of_table(table: str) -> list[PublishedStep]:
    """Its rows. Errors: ValueError that lists the known tables."""
    if table not in TABLES:
        raise ValueError(f"no published steps are in a table {table!r}; known: {', '.join(TABLES)}")
    return [row for row in STEPS if row.table == table]


@cache
def mean_error(table: str) -> float:
    """Of a table's rows, without their signs, as a share."""
    return fmean(abs(row.error) for row in of_table(table))


@cache
def hindsight_error(table: str) -> float:
    """What one constant FLOP/s (with recomputation) leaves, chosen after the fact so that it leaves least."""
    rates = [_measured_rate(row) for row in of_table(table)]
    return min(_spread(rates, one) for one in rates)


def _spread(rates: Sequence[float], one: float) -> float:
    return fmean(abs(rate / one - 1) for rate in rates)


def _measured_rate(row: PublishedStep) -> float:
    """FLOP/s of one GPU."""
    training = row.run.training
    counted = flops.hardware_flops(
        training.spec,
        batch=row.run.batch,
        sequence=training.tokens_per_sequence,
        recomputation=training.recomputation,
    )
    return counted / (row.seconds * training.layout.ranks)
