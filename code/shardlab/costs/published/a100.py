"""Steps published with their layouts on A100s: Megatron-LM in 2021 and in 2022."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from shardlab.layout import Layout

from ..compute import flops
from ..facts import models
from ..step.engines import MEGATRON_2021, MEGATRON_2022
from ..units import TFLOP
from .layouts import PublishedStep, Setting, row

TEN, MORE = "Megatron 2021, ten sizes", "Megatron 2021, more GPUs"
FULL, SELECTIVE = "Korthikanti 2022, all layers again", "Korthikanti 2022, selective"


class Cut(NamedTuple):
    """How a run was cut."""

    gpus: int
    tp: int
    pp: int
    chunks: int
    batch: int
    microbatch: int


# 10^12 FLOP/s of one GPU, with recomputation: Narayanan et al. 2021, Table 1.
TEN_SIZES = {
    "Megatron 1.7B": (Cut(32, 1, 1, 1, 512, 16), 137),
    "Megatron 3.6B": (Cut(64, 2, 1, 1, 512, 16), 138),
    "Megatron 7.5B": (Cut(128, 4, 1, 1, 512, 16), 142),
    "Megatron 18.4B": (Cut(256, 8, 1, 1, 1024, 8), 135),
    "Megatron 39.1B": (Cut(512, 8, 2, 1, 1536, 4), 138),
    "Megatron 76.1B": (Cut(1024, 8, 4, 3, 1792, 2), 140),
    "Megatron 145.6B": (Cut(1536, 8, 8, 2, 2304, 2), 148),
    "Megatron 310.1B": (Cut(1920, 8, 16, 2, 2160, 1), 155),
    "Megatron 529.6B": (Cut(2520, 8, 35, 3, 2520, 1), 163),
    "Megatron 1008B": (Cut(3072, 8, 64, 1, 3072, 1), 163),
}
# Likewise, Table 2, PTD-P. The paper prints tp * pp = 96 and 280, and no schedule.
MORE_GPUS = (
    ("Megatron 175B", Cut(384, 8, 12, 1, 1536, 1), 153),
    ("Megatron 175B", Cut(768, 8, 12, 1, 1536, 1), 149),
    ("Megatron 175B", Cut(1536, 8, 12, 1, 1536, 1), 141),
    ("Megatron 529.6B", Cut(560, 8, 35, 1, 2240, 1), 171),
    ("Megatron 529.6B", Cut(1120, 8, 35, 1, 2240, 1), 167),
    ("Megatron 529.6B", Cut(2240, 8, 35, 1, 2240, 1), 159),
)
# Seconds of one step with full recomputation, and of the present work: Korthikanti et al. 2022, Tables 3 and 5.
TWO_WAYS = {
    "Megatron 22B": (Cut(8, 8, 1, 1, 4, 4), 1.42, 1.10),
    "Megatron 175B": (Cut(64, 8, 8, 3, 64, 1), 18.13, 13.75),
    "Megatron 529.6B": (Cut(280, 8, 35, 3, 280, 1), 49.05, 37.83),
    "Megatron 1008B": (Cut(512, 8, 64, 1, 512, 1), 94.42, 71.49),
}


def megatron_2021() -> Iterator[PublishedStep]:
    """Sixteen rows; seconds from FLOP/s by the paper's own count, equation 3."""
    rows = [(TEN, name, cut, rate) for name, (cut, rate) in TEN_SIZES.items()]
    rows += [(MORE, name, cut, rate) for name, cut, rate in MORE_GPUS]
    for table, name, cut, rate in rows:
        counted = flops.hardware_flops(models.published(name).spec, batch=cut.batch, sequence=2048)
        setting = Setting(table=table, node="DGX A100", engine=MEGATRON_2021)
        yield _row(setting, name, cut, counted / (cut.gpus * rate * TFLOP), recomputation="full")


def korthikanti_2022() -> Iterator[PublishedStep]:
    """Four sizes, two ways."""
    for name, (cut, full, selective) in TWO_WAYS.items():
        setting = Setting(table=FULL, node="DGX A100", engine=MEGATRON_2022)
        yield _row(setting, name, cut, full, recomputation="full")
        setting = Setting(table=SELECTIVE, node="DGX A100", engine=MEGATRON_2022)
        yield _row(setting, name, cut, selective, recomputation="selective", sequence_parallel=True)


def _row(setting: Setting, name: str, cut: Cut, seconds: float, **options: Any) -> PublishedStep:
    shared = options.pop("sequence_parallel", False)
    return row(
        setting,
        f"{name}, {cut.gpus:,} GPUs",
        models.published(name).spec,
        Layout(dp=cut.gpus // (cut.tp * cut.pp), tp=cut.tp, pp=cut.pp, sequence_parallel=shared),
        batch=cut.batch,
        seconds=seconds,
        microbatch=cut.microbatch,
        chunks=cut.chunks,
        attention="stored",
        dropout=True,
        **options,
    )
