"""Published steps, table by table, and the errors of their predictions.

The constants of `kernels` are the same for every row and table: none is fitted to a table, but one
of them was chosen among three values with whole steps in view. What a program does by itself is in
its engine. Where a source leaves something open, TABLES says what is assumed.
"""

from collections.abc import Sequence
from functools import cache
from statistics import fmean

from shardlab.arguments import checked

from ..compute import flops
from . import a100, fsdp, h100
from .layouts import PublishedStep

_SC21 = "Narayanan et al. 2021, {} (https://arxiv.org/abs/2104.04473)"
_KORTHIKANTI = "Korthikanti et al. 2022, Tables 3 and 5 (https://arxiv.org/abs/2205.05198)"
_RECIPES = (
    "https://github.com/NVIDIA/dgxc-benchmarking: llama3.1/README_8b.md, README_70b.md, README_405b.md and "
    "nemo_megatron/README_175b.md (NeMo 24.09)"
)
_NEMO = (
    "https://docs.nvidia.com/nemo-framework/user-guide/24.12/nemotoolkit/performance/"
    "performance_summary.html"
)
_TITAN = "https://github.com/pytorch/torchtitan/blob/{}/benchmarks/"
_OPEN = "assumed: nothing recomputed, optimizer states cut"


# Table -> its source, and what it leaves open that we had to assume.
TABLES: dict[str, str] = {
    a100.TEN: _SC21.format("Table 1")
    + "; microbatches and chunks: "
    + "https://github.com/NVIDIA/Megatron-LM/blob/v3.0/examples/sc21/run_table_1.sh",
    a100.MORE: _SC21.format("Table 2, PTD-P") + "; assumed: 1F1B, tp = 8",
    a100.ZERO: _SC21.format("Table 2, ZeRO-3")
    + "; assumed: every tensor of a layer is gathered and scattered by itself and nothing hides "
    "it, which was chosen with these rows in view",
    a100.FULL: _KORTHIKANTI + ", full recomputation",
    a100.SELECTIVE: _KORTHIKANTI + ", present work",
    h100.BF16: f"{_RECIPES}; {_OPEN}",
    h100.FP8: f"{_RECIPES}; {_OPEN}, fp8 in the layers only",
    h100.NEMO: f"{_NEMO}; {_OPEN}, fp8 in the layers only",
    h100.LLAMA: (
        "Llama Team 2024, Table 4 and section 3.3.2 (https://arxiv.org/abs/2407.21783); "
        "assumed: microbatches of one sequence, gradients scattered once a step; their FLOP/s "
        "count the pairs that a causal mask leaves (if all pairs, the third row would have taken "
        "40 % longer)"
    ),
    h100.MEGATRON: (
        "README of https://github.com/NVIDIA/Megatron-LM (its table is an image); this row as "
        "quoted in https://github.com/NVIDIA/Megatron-LM/issues/1031 and "
        "https://github.com/NVIDIA/Megatron-LM/issues/1571; "
        "assumed: microbatches of one sequence, 6 chunks of 7 layers, nothing recomputed, "
        "gradients in fp32, as is that program's rule with bf16"
    ),
    fsdp.H100: (
        f"{_TITAN.format('31a17bfdb70bab6f62a13d21816a5339b911d6e3')}"
        "llama3_h100_202412_torchtitan.md, Tables 1 and 3; their chips have a limit of 500 W: "
        "assumed that the rate of products falls in proportion"
    ),
    fsdp.A100: (
        "https://github.com/pytorch/torchtitan/blob/041336434916bdc0f88c1f89fda176fd3c2092e4/docs/"
        "performance.md; assumed: not compiled, eight cards of 200 Gb/s"
    ),
    fsdp.H200: (
        f"{_TITAN.format('1af29373a02c4beb237c2de02793931ce53b48d8')}"
        "llama3-8b_h200_202506_trainy-whitefiber.md"
    ),
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
def mean_error(table: str) -> float:
    """Average the absolute errors of a table's rows, as a share."""
    return fmean(abs(row.error) for row in of_table(table))


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
