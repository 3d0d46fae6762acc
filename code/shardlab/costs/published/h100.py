"""Steps published with their layouts on H100s: NVIDIA's recipes, Llama 3, Megatron-LM."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlab.arguments import Count, Positive, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from ..compute import flops
from ..facts import models
from ..facts.recipes import RECIPES
from ..programs import LLAMA_2024, NEMO_2024
from ..units import TFLOP
from .layouts import PublishedStep, Setting, row

LLAMA = "Llama 3 405B"
MEGATRON = "Megatron-LM, H100, 70B"
BF16 = "NVIDIA 2024, H100, bf16"
FP8 = "NVIDIA 2024, H100, fp8"
NEMO = "NeMo 24.12, H100, fp8"


@dataclass(frozen=True, kw_only=True)
@checked
class PublishedDegrees:
    """How a run was cut; its other GPUs are replicas."""

    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    chunks: Count = 1

    def layout(self, gpus: Count) -> Layout:
        """Cut optimizer states over the replicas, and sequences over tp."""
        dp = gpus // (self.tp * self.pp * self.cp)
        return Layout(
            dp=dp,
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            zero=int(dp * self.cp > 1),
            sequence_parallel=self.tp > 1,
        )


@dataclass(frozen=True, kw_only=True)
@checked
class NemoRow:
    """One row of NeMo's table."""

    name: str
    spec: TransformerSpec
    sequence: Count = 2048
    degrees: PublishedDegrees
    gpus: Count
    batch: Count
    microbatch: Count = 1
    rate: Positive  # tokens/s of one GPU


# Degrees, tokens of a sequence, sequences for each GPU; GPUs -> seconds of one step in 16 bits, and
# with the layers' matrices in 8.
RECIPES_OF_NVIDIA = {
    "Llama 3 8B": (
        (PublishedDegrees(cp=2), 8192, 16),
        {
            8: (12.91, 9.67),
            16: (13.00, 9.73),
            32: (13.05, 9.75),
            64: (13.08, 9.80),
            128: (13.10, 9.82),
        },
    ),
    "Llama 3 70B": (
        (PublishedDegrees(tp=4, pp=4, cp=2, chunks=5), 8192, 2),
        {64: (14.72, 11.01), 128: (14.73, 10.93), 256: (14.8, 11.16), 512: (14.89, 11.18)}
        | {1024: (14.92, 11.28), 2048: (14.98, 11.39)},
    ),
    "Llama 3 405B": (
        (PublishedDegrees(tp=8, pp=9, cp=2, chunks=7), 8192, 252 / 576),
        {576: (17.20, 11.24), 1152: (17.52, 11.31), 2304: (17.62, 12.35)},
    ),
    "Megatron 175B": (
        (PublishedDegrees(tp=4, pp=8, chunks=12), 2048, 2),
        {
            128: (8.309, 5.626),
            256: (8.408, 5.725),
            512: (8.42, 5.774),
            1024: (8.453, 5.82),
            2048: (8.49, 5.96),
        },
    ),
}


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
TABLE_OF_NEMO: tuple[NemoRow, ...] = (
    NemoRow(
        name="GPT3-5B",
        spec=_gpt(24, 4096, 32),
        degrees=PublishedDegrees(),
        gpus=64,
        batch=2048,
        microbatch=4,
        rate=23_406,
    ),
    NemoRow(
        name="GPT3-20B",
        spec=_gpt(44, 6144, 48),
        degrees=PublishedDegrees(tp=2),
        gpus=64,
        batch=256,
        microbatch=2,
        rate=5851,
    ),
    NemoRow(
        name="GPT3-175B",
        spec=models.published("Megatron 175B").spec,
        degrees=PublishedDegrees(tp=4, pp=8, chunks=6),
        gpus=128,
        batch=256,
        rate=716,
    ),
    NemoRow(
        name="GPT3-175B",
        spec=models.published("Megatron 175B").spec,
        degrees=PublishedDegrees(tp=4, pp=8, chunks=6),
        gpus=512,
        batch=2048,
        microbatch=2,
        rate=825,
    ),
    NemoRow(
        name="Llama 2 7B",
        spec=models.published("Llama 2 7B").spec,
        sequence=4096,
        degrees=PublishedDegrees(),
        gpus=8,
        batch=128,
        rate=16_934,
    ),
    NemoRow(
        name="Llama 2 13B",
        spec=models.published("Llama 2 13B").spec,
        sequence=4096,
        degrees=PublishedDegrees(pp=4, chunks=10),
        gpus=16,
        batch=128,
        rate=8715,
    ),
    NemoRow(
        name="Llama 2 70B",
        spec=models.published("Llama 2 70B").spec,
        sequence=4096,
        degrees=PublishedDegrees(tp=4, pp=4, chunks=20),
        gpus=64,
        batch=128,
        rate=1728,
    ),
    NemoRow(
        name="Llama 3 8B",
        spec=models.published("Llama 3 8B").spec,
        sequence=8192,
        degrees=PublishedDegrees(cp=2),
        gpus=8,
        batch=128,
        rate=12_273,
    ),
    NemoRow(
        name="Llama 3 70B",
        spec=models.published("Llama 3 70B").spec,
        sequence=8192,
        degrees=PublishedDegrees(tp=4, pp=4, cp=2, chunks=5),
        gpus=64,
        batch=128,
        rate=1524,
    ),
)


def nvidia_2024() -> Iterator[PublishedStep]:
    """Yield the weak scaling of four models, in 16 bits and in 8."""
    settings = (
        Setting(table=BF16, node="DGX H100", program=NEMO_2024),
        Setting(table=FP8, node="DGX H100", program=NEMO_2024, precision="fp8"),
    )
    for name, ((degrees, sequence, per_gpu), timed) in RECIPES_OF_NVIDIA.items():
        for gpus, both in timed.items():
            for setting, seconds in zip(settings, both, strict=True):
                yield row(
                    setting,
                    f"{name}, {gpus:,} GPUs",
                    models.published(name).spec,
                    degrees.layout(gpus),
                    batch=round(per_gpu * gpus),
                    seconds=seconds,
                    sequence=sequence,
                    chunks=degrees.chunks,
                )


def nemo_2024() -> Iterator[PublishedStep]:
    """Yield the dense models of NeMo's table."""
    setting = Setting(table=NEMO, node="DGX H100", program=NEMO_2024, precision="fp8")
    for each in TABLE_OF_NEMO:
        yield row(
            setting,
            f"{each.name}, {each.gpus:,} GPUs",
            each.spec,
            each.degrees.layout(each.gpus),
            batch=each.batch,
            seconds=each.batch * each.sequence / (each.rate * each.gpus),
            microbatch=each.microbatch,
            sequence=each.sequence,
            chunks=each.degrees.chunks,
        )


def llama_3() -> Iterator[PublishedStep]:
    """Yield three stages of its training: GPUs, cp, tokens, sequences, 10^12 FLOP/s of one GPU."""
    spec = models.published("Llama 3 405B").spec
    setting = Setting(table=LLAMA, node="DGX H100", program=LLAMA_2024)
    stages = (
        (8192, 1, 8192, 2048, 430),
        (16384, 1, 8192, 2048, 400),
        (16384, 16, 131_072, 128, 380),
    )
    for gpus, cp, sequence, batch, rate in stages:
        counted = flops.model_flops(spec, batch=batch, sequence=sequence, pairs="causal")
        yield row(
            setting,
            f"{gpus:,} GPUs, sequences of {sequence:,}",
            spec,
            PublishedDegrees(tp=8, pp=16, cp=cp, chunks=8).layout(gpus),
            batch=batch,
            seconds=counted / (gpus * rate * TFLOP),
            sequence=sequence,
            recipe=RECIPES["mixed, fp32 gradients"],
            chunks=8,
        )


def megatron_h100() -> Iterator[PublishedStep]:
    """Yield the one row whose columns are all quoted in text."""
    spec = replace(_gpt(84, 8192, 64, vocabulary=131_072, context=4096), tied_head=False)
    counted = flops.model_flops(spec, batch=384, sequence=4096)
    yield row(
        Setting(table=MEGATRON, node="DGX H100", program=NEMO_2024),
        "70B, 768 GPUs",
        spec,
        PublishedDegrees(tp=8, pp=2, chunks=6).layout(768),
        batch=384,
        seconds=counted / (768 * 420.5 * TFLOP),
        recipe=RECIPES["mixed, fp32 gradients"],
        chunks=6,
    )
