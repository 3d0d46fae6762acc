"""Published trainings: their speed, the utilisation they claim, and ours from the same numbers.

Model FLOPs count all pairs of tokens, as the papers do (Chowdhery et al. 2022, appendix B,
https://arxiv.org/abs/2204.02311).
"""

from dataclasses import dataclass

from shardlab.arguments import Count, Positive, checked

from ..compute import flops
from ..facts import models
from ..facts.chips import chip
from ..units import TFLOP


@dataclass(frozen=True, kw_only=True)
@checked
class PublishedRun:
    """One row of a published table."""

    name: str
    accelerator: str
    num_chips: Count | None  # None: not published
    peak: Positive  # FLOP/s of one accelerator
    tokens_per_second: Positive  # of one accelerator
    model_flops: Positive  # for each token
    hardware_flops: Positive | None = None  # with what was recomputed; None: not published
    claimed_mfu: float | None = None  # a share, as printed
    claimed_hfu: float | None = None
    source: str

    @property
    def mfu(self) -> float:
        """Model FLOPs as a share of the peak."""
        return self.model_flops * self.tokens_per_second / self.peak

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs as a share of the peak."""
        return (
            None
            if self.hardware_flops is None
            else self.hardware_flops * self.tokens_per_second / self.peak
        )


_A100, _H100, _TPU = chip("A100 SXM 80 GB").name, chip("H100 SXM 80 GB").name, "TPU v4"
# Chowdhery et al., appendix B.
_PEAK = {_A100: chip(_A100).peak_flops, _H100: chip(_H100).peak_flops, _TPU: 275e12}
_SC21 = "Narayanan et al. 2021, Table 1 (https://arxiv.org/abs/2104.04473)"
_KORTHIKANTI = "Korthikanti et al. 2022, Tables 3 and 5 (https://arxiv.org/abs/2205.05198)"
_PALM = "Chowdhery et al. 2022, section 4.1 and appendix B (https://arxiv.org/abs/2204.02311)"
_LLAMA1 = "Touvron et al. 2023, Table 15 (https://arxiv.org/abs/2302.13971)"
_LLAMA2 = "Touvron et al. 2023, Table 2 (https://arxiv.org/abs/2307.09288)"
_LLAMA3 = "Llama Team 2024, Table 4 (https://arxiv.org/abs/2407.21783)"
_CARD = "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/MODEL_CARD.md (at least 15e12 tokens)"


def _per_token(model: str, sequence: int, pairs: str = "full") -> float:
    spec = models.published(model).spec
    return flops.model_flops(spec, batch=1, sequence=sequence, pairs=pairs) / sequence


def _megatron(model: str, gpus: int, rate: float, share: float) -> PublishedRun:
    """Make a row from the paper's hardware FLOP/s of one GPU (in 10^12), by its equation 3."""
    spec = models.published(model).spec
    hardware = flops.hardware_flops(spec, batch=1, sequence=2048) / 2048
    return PublishedRun(
        name=model,
        accelerator=_A100,
        num_chips=gpus,
        peak=_PEAK[_A100],
        tokens_per_second=rate * TFLOP / hardware,
        model_flops=_per_token(model, 2048),
        hardware_flops=hardware,
        claimed_hfu=share,
        source=_SC21,
    )


def _korthikanti(
    model: str, gpus: int, batch: int, seconds: float, mfu: float, hfu: float
) -> PublishedRun:
    """Make a row from the paper's seconds of one iteration.

    With sequence parallelism and selective recomputation.
    """
    spec = models.published(model).spec
    return PublishedRun(
        name=f"{model}, selective",
        accelerator=_A100,
        num_chips=gpus,
        peak=_PEAK[_A100],
        tokens_per_second=batch * 2048 / seconds / gpus,
        model_flops=_per_token(model, 2048),
        hardware_flops=flops.korthikanti_hardware_flops(spec, batch=1, sequence=2048) / 2048,
        claimed_mfu=mfu,
        claimed_hfu=hfu,
        source=_KORTHIKANTI,
    )


def _palm(
    name: str, chips: int, accelerator: str, rate: float, per_token: float, mfu: float
) -> PublishedRun:
    """Make a row from the paper's tokens per second of all accelerators."""
    return PublishedRun(
        name=name,
        accelerator=accelerator,
        num_chips=chips,
        peak=_PEAK[accelerator],
        tokens_per_second=rate / chips,
        model_flops=per_token,
        claimed_mfu=mfu,
        source=_PALM,
    )


def _gpu_hours(
    model: str, tokens: float, hours: float, gpu: str, sequence: int, source: str
) -> PublishedRun:
    """Make a row from the authors' hours of all GPUs together, which include every interruption."""
    return PublishedRun(
        name=model,
        accelerator=gpu,
        num_chips=None,
        peak=_PEAK[gpu],
        tokens_per_second=tokens / (hours * 3600),
        model_flops=_per_token(model.replace("3.1", "3"), sequence),
        source=source,
    )


def _llama3(gpus: int, sequence: int, rate: float, mfu: float) -> PublishedRun:
    """Make a row from the paper's model FLOP/s of one GPU (in 10^12) in one stage; k is 1,024.

    They count the pairs that a causal mask leaves, as for `h100.llama_3`.
    """
    per_token = _per_token("Llama 3 405B", sequence, "causal")
    return PublishedRun(
        name=f"Llama 3 405B, {gpus // 1024}k GPUs, {sequence // 1024}k",
        accelerator=_H100,
        num_chips=gpus,
        peak=_PEAK[_H100],
        tokens_per_second=rate * TFLOP / per_token,
        model_flops=per_token,
        claimed_mfu=mfu,
        source=_LLAMA3,
    )


_PALM_540B = flops.palm_per_token(540.35e9, num_layers=118, attention_size=48 * 256, sequence=2048)
_MT_NLG = flops.palm_per_token(530e9, num_layers=105, attention_size=128 * 160, sequence=2048)

RUNS: dict[str, PublishedRun] = {
    run.name: run
    for run in (
        _megatron("Megatron 1.7B", 32, 137, 0.44),
        _megatron("Megatron 3.6B", 64, 138, 0.44),
        _megatron("Megatron 7.5B", 128, 142, 0.46),
        _megatron("Megatron 18.4B", 256, 135, 0.43),
        _megatron("Megatron 39.1B", 512, 138, 0.44),
        _megatron("Megatron 76.1B", 1024, 140, 0.45),
        _megatron("Megatron 145.6B", 1536, 148, 0.47),
        _megatron("Megatron 310.1B", 1920, 155, 0.50),
        _megatron("Megatron 529.6B", 2520, 163, 0.52),
        _megatron("Megatron 1008B", 3072, 163, 0.52),
        _korthikanti("Megatron 22B", 8, 4, 1.10, 0.415, 0.437),
        _korthikanti("Megatron 175B", 64, 64, 13.75, 0.514, 0.528),
        _korthikanti("Megatron 529.6B", 280, 280, 37.83, 0.560, 0.570),
        _korthikanti("Megatron 1008B", 512, 512, 71.49, 0.563, 0.570),
        _palm("PaLM 540B", 6144, _TPU, 238.3e3, _PALM_540B, 0.462),
        _palm("MT-NLG 530B", 2240, _A100, 65.43e3, _MT_NLG, 0.302),
        _gpu_hours("Llama 1 7B", 1.0e12, 82_432, _A100, 2048, _LLAMA1),
        _gpu_hours("Llama 1 13B", 1.0e12, 135_168, _A100, 2048, _LLAMA1),
        _gpu_hours("Llama 1 33B", 1.4e12, 530_432, _A100, 2048, _LLAMA1),
        _gpu_hours("Llama 1 65B", 1.4e12, 1_022_362, _A100, 2048, _LLAMA1),
        _gpu_hours("Llama 2 7B", 2e12, 184_320, _A100, 4096, _LLAMA2),
        _gpu_hours("Llama 2 13B", 2e12, 368_640, _A100, 4096, _LLAMA2),
        _gpu_hours("Llama 2 70B", 2e12, 1_720_320, _A100, 4096, _LLAMA2),
        _gpu_hours("Llama 3.1 8B", 15e12, 1.46e6, _H100, 8192, _CARD),
        _gpu_hours("Llama 3.1 70B", 15e12, 7.0e6, _H100, 8192, _CARD),
        _gpu_hours("Llama 3.1 405B", 15.6e12, 30.84e6, _H100, 8192, _CARD),
        _llama3(8192, 8192, 430, 0.43),
        _llama3(16384, 8192, 400, 0.41),
        _llama3(16384, 131072, 380, 0.38),
    )
}


@checked
def run(name: str) -> PublishedRun:
    """Return the published run called `name`. Errors: ValueError that lists the known names."""
    if name not in RUNS:
        raise ValueError(f"no published run is named {name!r}; known: {', '.join(RUNS)}")
    return RUNS[name]
