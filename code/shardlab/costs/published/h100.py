"""Steps published with their layouts on H100s: NVIDIA's recipes, Llama 3, Megatron-LM."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlab.files.arguments import Positive, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from ..compute import flops
from ..facts import models, nodes
from ..facts.recipes import RECIPES
from ..programs import LLAMA_2024, NEMO_2024
from .layouts import LayoutRow, PublishedStep, Setting
from .rows import rows

LLAMA = "Llama 3 405B"
MEGATRON = "Megatron-LM, H100, 70B"
BF16 = "NVIDIA 2024, H100, bf16"
FP8 = "NVIDIA 2024, H100, fp8"
NEMO = "NeMo 24.12, H100, fp8"


@dataclass(frozen=True, kw_only=True)
@checked
class InTwoPrecisions(LayoutRow):
    """Seconds of a step in 16 bits, and with the layers' matrices in 8."""

    bf16: Positive
    fp8: Positive


@dataclass(frozen=True, kw_only=True)
@checked
class NemoRow(LayoutRow):
    """One row of NeMo's table."""

    tokens_per_second: Positive  # of one GPU


@dataclass(frozen=True, kw_only=True)
@checked
class RateRow(LayoutRow):
    """A row that prints model FLOP/s of one GPU."""

    rate: Positive
    mfu: Positive | None = None  # a share, as printed
    source: str


def _gpt(
    layers: int, width: int, heads: int, vocabulary: int = 51_200, context: int = 2048
) -> TransformerSpec:
    return TransformerSpec(
        vocab_size=vocabulary,
        context_length=context,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
    )


# GPT3-5B and GPT3-20B: sizes with which the table's FLOP/s follow from its tokens/s (32.7 and 128.2
# GFLOP a token).
SHAPES = {
    "GPT3-5B": _gpt(24, 4096, 32),
    "GPT3-20B": _gpt(44, 6144, 48),
    "GPT3-175B": models.published("Megatron 175B").spec,
    "70B": replace(_gpt(84, 8192, 64, vocabulary=131_072, context=4096), tied_head=False),
}
TABLE_OF_NEMO = rows("nemo_2024", NemoRow)
STAGES_OF_LLAMA = rows("llama_3", RateRow)


def _cut(row: LayoutRow) -> Layout:
    """Cut optimizer states over the replicas, and sequences over tp."""
    layout = row.layout
    zero = int(layout.dp * layout.cp > 1)
    return replace(layout, zero=zero, sequence_parallel=layout.tp > 1)


def nvidia_2024() -> Iterator[PublishedStep]:
    """Yield the weak scaling of four models, in 16 bits and in 8."""
    bf16 = Setting(table=BF16, node=nodes.node("DGX H100"), program=NEMO_2024)
    fp8 = replace(bf16, table=FP8, precision="fp8")
    for row in rows("nvidia_2024", InTwoPrecisions):
        yield row.step(bf16, row.bf16, layout=_cut(row))
        yield row.step(fp8, row.fp8, layout=_cut(row))


def nemo_2024() -> Iterator[PublishedStep]:
    """Yield the dense models of NeMo's table."""
    node = nodes.node("DGX H100")
    setting = Setting(table=NEMO, node=node, program=NEMO_2024, precision="fp8")
    for row in TABLE_OF_NEMO:
        assert row.sequence is not None
        seconds = row.batch * row.sequence / (row.tokens_per_second * row.gpus)
        yield row.step(setting, seconds, layout=_cut(row), spec=SHAPES.get(row.model))


def llama_3() -> Iterator[PublishedStep]:
    """Yield three stages of its training."""
    setting = Setting(table=LLAMA, node=nodes.node("DGX H100"), program=LLAMA_2024)
    for row in STAGES_OF_LLAMA:
        yield _from_rate(row, setting, f"{row.gpus:,} GPUs, sequences of {row.sequence:,}")


def megatron_h100() -> Iterator[PublishedStep]:
    """Yield the one row whose columns are all quoted in text."""
    setting = Setting(table=MEGATRON, node=nodes.node("DGX H100"), program=NEMO_2024)
    for row in rows("megatron_h100", RateRow):
        yield _from_rate(row, setting, row.name)


def _from_rate(row: RateRow, setting: Setting, name: str) -> PublishedStep:
    spec = SHAPES.get(row.model) or row.spec
    sequence = row.sequence or spec.context_length
    pairs = "causal" if setting.table == LLAMA else "full"
    counted = flops.model_flops(spec, batch=row.batch, sequence=sequence, pairs=pairs)
    seconds = counted / (row.gpus * row.rate)
    recipe = RECIPES["mixed, fp32 gradients"]
    return row.step(setting, seconds, layout=_cut(row), spec=spec, recipe=recipe, name=name)
