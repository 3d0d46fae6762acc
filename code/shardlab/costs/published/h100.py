"""Steps published with their layouts on H100s: NVIDIA's recipes in 16 and 8 bits, Llama 3, a row of Megatron-LM's."""

from collections.abc import Iterator
from typing import NamedTuple

from shardlab.layout import Layout
from shardlab.spec import TransformerSpec

from ..compute import flops
from ..facts import models
from ..facts.recipes import RECIPES
from ..step.engines import LLAMA_2024, NEMO_2024
from ..units import TFLOP
from .layouts import PublishedStep, Setting, row

LLAMA, MEGATRON = "Llama 3 405B", "Megatron-LM, H100, 70B"
BF16, FP8, NEMO = "NVIDIA 2024, H100, bf16", "NVIDIA 2024, H100, fp8", "NeMo 24.12, H100, fp8"


class Cut(NamedTuple):
    """How a run was cut; the rest of its GPUs are replicas."""

    tp: int
    pp: int
    cp: int
    chunks: int


# Cut, sequence, sequences for each GPU; GPUs -> seconds of one step in 16 bits, and with the layers' matrices in 8.
RECIPES_OF_NVIDIA = {
    "Llama 3 8B": (
        (Cut(1, 1, 2, 1), 8192, 16),
        {8: (12.91, 9.67), 16: (13.00, 9.73), 32: (13.05, 9.75), 64: (13.08, 9.80), 128: (13.10, 9.82)},
    ),
    "Llama 3 70B": (
        (Cut(4, 4, 2, 5), 8192, 2),
        {64: (14.72, 11.01), 128: (14.73, 10.93), 256: (14.8, 11.16), 512: (14.89, 11.18)}
        | {1024: (14.92, 11.28), 2048: (14.98, 11.39)},
    ),
    "Llama 3 405B": (
        (Cut(8, 9, 2, 7), 8192, 252 / 576),
        {576: (17.20, 11.24), 1152: (17.52, 11.31), 2304: (17.62, 12.35)},
    ),
    "Megatron 175B": (
        (Cut(4, 8, 1, 12), 2048, 2),
        {128: (8.309, 5.626), 256: (8.408, 5.725), 512: (8.42, 5.774), 1024: (8.453, 5.82), 2048: (8.49, 5.96)},
    ),
}


def _gpt(layers: int, width: int, heads: int, vocabulary: int = 51_200, context: int = 2048) -> TransformerSpec:
    return TransformerSpec(
        vocab_size=vocabulary, context_length=context, hidden_size=width, num_layers=layers, num_heads=heads
    )


# GPT3-5B and GPT3-20B: sizes with which the table's FLOP/s follow from its tokens/s (32.7 and 128.2 GFLOP a token).
# Model, tokens of a sequence, cut, GPUs, batch, microbatch, tokens/s of one GPU.
TABLE_OF_NEMO: tuple[tuple[str, TransformerSpec, int, Cut, int, int, int, float], ...] = (
    ("GPT3-5B", _gpt(24, 4096, 32), 2048, Cut(1, 1, 1, 1), 64, 2048, 4, 23_406),
    ("GPT3-20B", _gpt(44, 6144, 48), 2048, Cut(2, 1, 1, 1), 64, 256, 2, 5851),
    ("GPT3-175B", models.published("Megatron 175B").spec, 2048, Cut(4, 8, 1, 6), 128, 256, 1, 716),
    ("GPT3-175B", models.published("Megatron 175B").spec, 2048, Cut(4, 8, 1, 6), 512, 2048, 2, 825),
    ("Llama 2 7B", models.published("Llama 2 7B").spec, 4096, Cut(1, 1, 1, 1), 8, 128, 1, 16_934),
    ("Llama 2 13B", models.published("Llama 2 13B").spec, 4096, Cut(1, 4, 1, 10), 16, 128, 1, 8715),
    ("Llama 2 70B", models.published("Llama 2 70B").spec, 4096, Cut(4, 4, 1, 20), 64, 128, 1, 1728),
    ("Llama 3 8B", models.published("Llama 3 8B").spec, 8192, Cut(1, 1, 2, 1), 8, 128, 1, 12_273),
    ("Llama 3 70B", models.published("Llama 3 70B").spec, 8192, Cut(4, 4, 2, 5), 64, 128, 1, 1524),
)


def nvidia_2024() -> Iterator[PublishedStep]:
    """Weak scaling of four models, in 16 bits and in 8."""
    settings = (
        Setting(table=BF16, node="DGX H100", engine=NEMO_2024),
        Setting(table=FP8, node="DGX H100", engine=NEMO_2024, precision="fp8"),
    )
    for name, ((cut, sequence, per_gpu), timed) in RECIPES_OF_NVIDIA.items():
        for gpus, both in timed.items():
            for setting, seconds in zip(settings, both, strict=True):
                yield row(
                    setting,
                    f"{name}, {gpus:,} GPUs",
                    models.published(name).spec,
                    _layout(cut, gpus),
                    batch=round(per_gpu * gpus),
                    seconds=seconds,
                    sequence=sequence,
                    chunks=cut.chunks,
                )


def nemo_2024() -> Iterator[PublishedStep]:
    """Dense models of NeMo's table."""
    setting = Setting(table=NEMO, node="DGX H100", engine=NEMO_2024, precision="fp8")
    for name, spec, sequence, cut, gpus, batch, microbatch, rate in TABLE_OF_NEMO:
        yield row(
            setting,
            f"{name}, {gpus:,} GPUs",
            spec,
            _layout(cut, gpus),
            batch=batch,
            seconds=batch * sequence / (rate * gpus),
            microbatch=microbatch,
            sequence=sequence,
            chunks=cut.chunks,
        )


def llama_3() -> Iterator[PublishedStep]:
    """Three stages of its training: GPUs, cp, tokens of a sequence, sequences, 10^12 FLOP/s of one GPU."""
    spec, setting = models.published("Llama 3 405B").spec, Setting(table=LLAMA, node="DGX H100", engine=LLAMA_2024)
    stages = ((8192, 1, 8192, 2048, 430), (16384, 1, 8192, 2048, 400), (16384, 16, 131_072, 128, 380))
    for gpus, cp, sequence, batch, rate in stages:
        counted = flops.model_flops(spec, batch=batch, sequence=sequence, attention="causal")
        yield row(
            setting,
            f"{gpus:,} GPUs, sequences of {sequence:,}",
            spec,
            _layout(Cut(8, 16, cp, 8), gpus),
            batch=batch,
            seconds=counted / (gpus * rate * TFLOP),
            sequence=sequence,
            recipe=RECIPES["mixed, fp32 gradients"],
            chunks=8,
        )


def megatron_h100() -> Iterator[PublishedStep]:
    """The one row of which all columns are quoted in text."""
    spec = _gpt(84, 8192, 64, vocabulary=131_072, context=4096)
    counted = flops.model_flops(spec, batch=384, sequence=4096)
    yield row(
        Setting(table=MEGATRON, node="DGX H100", engine=NEMO_2024),
        "70B, 768 GPUs",
        spec,
        _layout(Cut(8, 2, 1, 6), 768),
        batch=384,
        seconds=counted / (768 * 420.5 * TFLOP),
        chunks=6,
    )


def _layout(cut: Cut, gpus: int) -> Layout:
    """With optimizer states cut over the replicas, and sequences over tp."""
    dp = gpus // (cut.tp * cut.pp * cut.cp)
    zero = int(dp * cut.cp > 1)
    return Layout(dp=dp, tp=cut.tp, pp=cut.pp, cp=cut.cp, zero=zero, sequence_parallel=cut.tp > 1)
