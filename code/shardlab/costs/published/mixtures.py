"""Trainings of mixtures of experts: their layouts, their speed, and our FLOPs for their tokens.

Model FLOPs count the pairs of tokens that a causal mask leaves, as these publishers do.
"""

from shardlab.arguments import checked
from shardlab.sharding.layout import Layout

from ..expert_parallel import flops
from ..facts import mixtures
from ..facts.chips import chip
from ..units import TFLOP
from .runs import PublishedRun

SEQUENCE = 4096  # tokens; DeepSeek-V2: section 3.1.2, DeepSeek-V3: section 4.2
_V2 = "DeepSeek-AI 2024, sections 3.1.3 and 3.2.3 (https://arxiv.org/abs/2405.04434)"
_V3 = "DeepSeek-AI 2024, section 1 (https://arxiv.org/abs/2412.19437)"
_V3_TABLE = "Zhao et al. 2025, Table 4 (https://arxiv.org/abs/2505.09343)"
_BRIDGE = (
    "https://docs.nvidia.com/nemo/megatron-bridge/latest/performance-summary.html (25.11; tokens "
    "are forced to be spread evenly over the experts)"
)
_H800 = chip("H100 SXM 80 GB")  # the same arithmetic, see `facts.hardware`

# Model -> its layout in training: no tensor parallelism anywhere. Where the number of GPUs is not
# printed, dp is the least that ep needs.
LAYOUTS: dict[str, Layout] = {
    "DeepSeek-V2": Layout(dp=8, pp=16, ep=8, zero=1),  # section 3.1.3
    "DeepSeek-V3": Layout(dp=128, pp=16, ep=64, zero=1),  # sections 3.1 and 3.2, on 2,048 GPUs
    "Kimi K2": Layout(dp=16, pp=16, ep=16, zero=1),  # section 2.4.2; 256 GPUs, or multiples
}


def _per_token(model: str) -> float:
    spec = mixtures.published(model).spec
    return 3 * sum(flops(spec, sequence=SEQUENCE).values())


def _hours(model: str, hours: float, source: str) -> PublishedRun:
    """Make a row from the H800 hours of a trillion tokens."""
    return PublishedRun(
        name=f"{model}, hours",
        accelerator="H800",
        num_chips=None,
        peak=_H800.peak_flops,
        tokens_per_second=1e12 / (hours * 3600),
        model_flops=_per_token(model),
        source=source,
    )


def _bridge(model: str, name: str, gpus: int, ep: int, rate: float, tflops: float) -> PublishedRun:
    """Make a row from tokens per second and model FLOP/s of one GPU (in 10^12)."""
    peak = chip(name).peak_flops
    return PublishedRun(
        name=f"{model}, {gpus} {name.split()[0]}, ep={ep}",
        accelerator=name,
        num_chips=gpus,
        peak=peak,
        tokens_per_second=rate,
        model_flops=_per_token(model),
        claimed_mfu=tflops * TFLOP / peak,
        source=_BRIDGE,
    )


_GB300, _GB200, _H100 = "GB300 279 GB", "GB200 186 GB", "H100 SXM 80 GB"
RUNS: dict[str, PublishedRun] = {
    run.name: run
    for run in (
        _hours("DeepSeek-V2", 172_800, _V2),
        _hours("DeepSeek-V3", 180_000, _V3),
        PublishedRun(
            name="DeepSeek-V3, 2048 H800, ep=64",
            accelerator="H800",
            num_chips=2048,
            peak=_H800.peak_flops,
            tokens_per_second=272.80e9 / 86_400 / 2048,
            model_flops=_per_token("DeepSeek-V3"),
            claimed_mfu=0.3894,
            source=_V3_TABLE,
        ),
        _bridge("DeepSeek-V3", _GB300, 256, 32, 3848, 961),
        _bridge("DeepSeek-V3", _GB200, 256, 64, 3139, 782),
        _bridge("Qwen3-235B-A22B", _GB300, 256, 16, 6131, 907),
        _bridge("Qwen3-235B-A22B", _GB200, 256, 32, 4916, 728),
        _bridge("Qwen3-235B-A22B", _H100, 256, 32, 1575, 233),
        _bridge("Qwen3-30B-A3B", _GB300, 8, 8, 28934, 666),
        _bridge("Qwen3-30B-A3B", _GB200, 8, 8, 23766, 547),
        _bridge("Qwen3-30B-A3B", _H100, 16, 8, 5275, 121),
    )
}


@checked
def run(name: str) -> PublishedRun:
    """Return the published run called `name`. Errors: ValueError that lists the known names."""
    if name not in RUNS:
        raise ValueError(f"no published run is named {name!r}; known: {', '.join(RUNS)}")
    return RUNS[name]
