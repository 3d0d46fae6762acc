"""Steps published with their layouts on A100s: Megatron-LM in 2021 and in 2022."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardlab.arguments import Count, checked
from shardlab.sharding.layout import Layout

from ..compute import flops
from ..facts import models
from ..programs import DEEPSPEED_2021, MEGATRON_2021, MEGATRON_2022
from ..units import TFLOP
from .layouts import PublishedStep, Setting, row

TEN = "Megatron 2021, ten sizes"
MORE = "Megatron 2021, more GPUs"
ZERO = "Megatron 2021, ZeRO-3"
FULL = "Korthikanti 2022, all layers again"
SELECTIVE = "Korthikanti 2022, selective"


@dataclass(frozen=True, kw_only=True)
@checked
class Config:
    """The configuration of one published run."""

    gpus: Count
    tp: Count = 1
    pp: Count = 1
    chunks: Count = 1
    batch: Count  # sequences of one step, on all GPUs together
    microbatch: Count = 1


# 10^12 FLOP/s of one GPU, with recomputation: Narayanan et al. 2021, Table 1.
TEN_SIZES = {
    "Megatron 1.7B": (Config(gpus=32, batch=512, microbatch=16), 137),
    "Megatron 3.6B": (Config(gpus=64, tp=2, batch=512, microbatch=16), 138),
    "Megatron 7.5B": (Config(gpus=128, tp=4, batch=512, microbatch=16), 142),
    "Megatron 18.4B": (Config(gpus=256, tp=8, batch=1024, microbatch=8), 135),
    "Megatron 39.1B": (Config(gpus=512, tp=8, pp=2, batch=1536, microbatch=4), 138),
    "Megatron 76.1B": (Config(gpus=1024, tp=8, pp=4, chunks=3, batch=1792, microbatch=2), 140),
    "Megatron 145.6B": (Config(gpus=1536, tp=8, pp=8, chunks=2, batch=2304, microbatch=2), 148),
    "Megatron 310.1B": (Config(gpus=1920, tp=8, pp=16, chunks=2, batch=2160), 155),
    "Megatron 529.6B": (Config(gpus=2520, tp=8, pp=35, chunks=3, batch=2520), 163),
    "Megatron 1008B": (Config(gpus=3072, tp=8, pp=64, batch=3072), 163),
}
# The same, Table 2, PTD-P. The paper prints tp * pp = 96 and 280, and no schedule.
MORE_GPUS = (
    ("Megatron 175B", Config(gpus=384, tp=8, pp=12, batch=1536), 153),
    ("Megatron 175B", Config(gpus=768, tp=8, pp=12, batch=1536), 149),
    ("Megatron 175B", Config(gpus=1536, tp=8, pp=12, batch=1536), 141),
    ("Megatron 529.6B", Config(gpus=560, tp=8, pp=35, batch=2240), 171),
    ("Megatron 529.6B", Config(gpus=1120, tp=8, pp=35, batch=2240), 167),
    ("Megatron 529.6B", Config(gpus=2240, tp=8, pp=35, batch=2240), 159),
)
# The same, ZeRO-3 without model parallelism.
SHARDED = (
    ("Megatron 175B", Config(gpus=384, batch=1536, microbatch=4), 144),
    ("Megatron 175B", Config(gpus=768, batch=1536, microbatch=2), 88),
    ("Megatron 175B", Config(gpus=1536, batch=1536), 44),
    ("Megatron 529.6B", Config(gpus=640, batch=2560, microbatch=4), 138),
    ("Megatron 529.6B", Config(gpus=1120, batch=2240, microbatch=2), 98),
    ("Megatron 529.6B", Config(gpus=2240, batch=2240), 48),
)
# Seconds of one step with full recomputation, and of the present work: Korthikanti et al. 2022,
# Tables 3 and 5.
TWO_WAYS = {
    "Megatron 22B": (Config(gpus=8, tp=8, batch=4, microbatch=4), 1.42, 1.10),
    "Megatron 175B": (Config(gpus=64, tp=8, pp=8, chunks=3, batch=64), 18.13, 13.75),
    "Megatron 529.6B": (Config(gpus=280, tp=8, pp=35, chunks=3, batch=280), 49.05, 37.83),
    "Megatron 1008B": (Config(gpus=512, tp=8, pp=64, batch=512), 94.42, 71.49),
}


def megatron_2021() -> Iterator[PublishedStep]:
    """Yield 22 rows; seconds follow from FLOP/s by the paper's own count, equation 3."""
    rows = [(TEN, name, config, rate) for name, (config, rate) in TEN_SIZES.items()]
    rows += [(MORE, name, config, rate) for name, config, rate in MORE_GPUS]
    rows += [(ZERO, name, config, rate) for name, config, rate in SHARDED]
    for table, name, config, rate in rows:
        spec = models.published(name).spec
        counted = flops.hardware_flops(spec, batch=config.batch, sequence=2048)
        seconds = counted / (config.gpus * rate * TFLOP)
        program = DEEPSPEED_2021 if table == ZERO else MEGATRON_2021
        setting = Setting(table=table, node="DGX A100", program=program)
        zero = 3 if table == ZERO else 0
        yield _row(setting, name, config, seconds, recomputation="full", zero=zero)


def korthikanti_2022() -> Iterator[PublishedStep]:
    """Yield four sizes, each with full and with selective recomputation."""
    for name, (config, full, selective) in TWO_WAYS.items():
        setting = Setting(table=FULL, node="DGX A100", program=MEGATRON_2022)
        yield _row(setting, name, config, full, recomputation="full")
        setting = Setting(table=SELECTIVE, node="DGX A100", program=MEGATRON_2022)
        options = {"recomputation": "selective", "sequence_parallel": True}
        yield _row(setting, name, config, selective, **options)


def _row(
    setting: Setting, name: str, config: Config, seconds: float, **options: Any
) -> PublishedStep:
    layout = Layout(
        dp=config.gpus // (config.tp * config.pp),
        tp=config.tp,
        pp=config.pp,
        zero=options.pop("zero", 0),
        sequence_parallel=options.pop("sequence_parallel", False),
    )
    return row(
        setting,
        f"{name}, {config.gpus:,} GPUs",
        models.published(name).spec,
        layout,
        batch=config.batch,
        seconds=seconds,
        microbatch=config.microbatch,
        chunks=config.chunks,
        attention="stored",
        dropout=True,
        **options,
    )
