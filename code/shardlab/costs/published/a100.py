"""Steps published with their layouts on A100s: Megatron-LM in 2021 and in 2022."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from shardlab.files.arguments import Positive, checked

from ..compute import flops
from ..facts import nodes
from ..programs import DEEPSPEED_2021, MEGATRON_2021, MEGATRON_2022
from .layouts import LayoutRow, PublishedStep, Setting
from .rows import rows

TEN = "Megatron 2021, ten sizes"
MORE = "Megatron 2021, more GPUs"
ZERO = "Megatron 2021, ZeRO-3"
FULL = "Korthikanti 2022, all layers again"
SELECTIVE = "Korthikanti 2022, selective"


@dataclass(frozen=True, kw_only=True)
@checked
class MegatronRow(LayoutRow):
    """A row of Megatron-LM's tables of 2021."""

    table: str
    rate: Positive  # FLOP/s of one GPU, with recomputation
    hfu: Positive | None = None  # a share, as printed
    source: str


@dataclass(frozen=True, kw_only=True)
@checked
class TwoWays(LayoutRow):
    """A row that was timed with both ways to recompute."""

    full: Positive  # seconds of a step
    selective: Positive
    mfu: Positive  # a share, as printed, of the selective way
    hfu: Positive
    source: str


IN_2021 = rows("megatron_2021", MegatronRow)
IN_2022 = rows("korthikanti_2022", TwoWays)
_STORED: dict[str, Any] = {"attention": "stored", "dropout": True}


def megatron_2021() -> Iterator[PublishedStep]:
    """Yield 22 rows; seconds follow from FLOP/s by the paper's own count, equation 3."""
    for row in IN_2021:
        counted = flops.hardware_flops(row.spec, batch=row.batch, sequence=2048)
        sharded = row.table == ZERO
        program = DEEPSPEED_2021 if sharded else MEGATRON_2021
        yield row.step(
            Setting(table=row.table, node=nodes.node("DGX A100"), program=program),
            counted / (row.gpus * row.rate),
            layout=replace(row.layout, zero=3 if sharded else 0),
            recomputation="full",
            **_STORED,
        )


def korthikanti_2022() -> Iterator[PublishedStep]:
    """Yield four sizes, each with full and with selective recomputation."""
    full = Setting(table=FULL, node=nodes.node("DGX A100"), program=MEGATRON_2022)
    selective = replace(full, table=SELECTIVE)
    for row in IN_2022:
        yield row.step(full, row.full, layout=row.layout, recomputation="full", **_STORED)
        layout = replace(row.layout, sequence_parallel=True)
        options = {"layout": layout, "recomputation": "selective", **_STORED}
        yield row.step(selective, row.selective, **options)
