"""Published trainings: their speed, the utilisation they claim, and ours from the same numbers.

Model FLOPs count all pairs of tokens, as the papers do (Chowdhery et al. 2022, appendix B,
https://arxiv.org/abs/2204.02311).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from shardlab.files.arguments import Count, Positive, checked

from ..compute import flops
from ..facts import models
from ..facts.hardware import chip
from .rows import rows
from .steps import STEPS


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


PEAK = {  # FLOP/s
    **{name: chip(name).peak_flops for name in ("A100 SXM 80 GB", "H100 SXM 80 GB")},
    "TPU v4": 275e12,  # Chowdhery et al., appendix B
}


@dataclass(frozen=True, kw_only=True)
@checked
class HoursRow:
    """A training by the hours of all GPUs together, which include every interruption."""

    model: str
    accelerator: str
    tokens: Positive
    hours: Positive
    sequence: Count
    source: str


@dataclass(frozen=True, kw_only=True)
@checked
class PalmRow:
    """A model of Google's table."""

    name: str
    accelerator: str
    num_chips: Count
    tokens_per_second: Positive  # of all accelerators
    parameters: Positive
    num_layers: Count
    attention_size: Count  # heads times the size of one
    sequence: Count
    mfu: Positive
    source: str


def _per_token(model: str, sequence: int, pairs: str = "full") -> float:
    spec = models.published(model).spec
    return flops.model_flops(spec, batch=1, sequence=sequence, pairs=pairs) / sequence


def _steps_on(accelerator: str) -> Iterator[PublishedRun]:
    """Yield the published steps whose utilisation is printed, too.

    What is computed again is counted as the papers do, all layers by equation 3 of Megatron-LM. Of
    steps that recompute nothing, those of Llama 3, the pairs are those that a causal mask leaves; k
    is 1,024.
    """
    for row in STEPS:
        run = row.run
        if run.cluster.node.chip.name != accelerator or not (row.mfu or row.hfu):
            continue
        tokens = run.training.tokens_per_sequence
        name, count, pairs = {
            "full": (row.model, flops.hardware_flops, "full"),
            "selective": (f"{row.model}, selective", flops.korthikanti_hardware_flops, "full"),
            "none": (f"{row.model}, {row.gpus // 1024}k GPUs, {tokens // 1024}k", None, "causal"),
        }[row.recomputation]
        per_token = _per_token(row.model, tokens, pairs)
        hardware = count(run.training.spec, batch=1, sequence=tokens) / tokens if count else None
        yield PublishedRun(
            name=name,
            accelerator=accelerator,
            num_chips=row.gpus,
            peak=PEAK[accelerator],
            tokens_per_second=row.rate / (hardware or per_token)
            if row.rate
            else run.tokens / row.seconds / row.gpus,
            model_flops=per_token,
            hardware_flops=hardware,
            claimed_mfu=row.mfu,
            claimed_hfu=row.hfu,
            source=row.source,
        )


def _palm() -> Iterator[PublishedRun]:
    for row in rows("palm_2022", PalmRow):
        yield PublishedRun(
            name=row.name,
            accelerator=row.accelerator,
            num_chips=row.num_chips,
            peak=PEAK[row.accelerator],
            tokens_per_second=row.tokens_per_second / row.num_chips,
            model_flops=flops.palm_per_token(
                row.parameters,
                num_layers=row.num_layers,
                attention_size=row.attention_size,
                sequence=row.sequence,
            ),
            claimed_mfu=row.mfu,
            source=row.source,
        )


def _gpu_hours() -> Iterator[PublishedRun]:
    for row in rows("gpu_hours", HoursRow):
        yield PublishedRun(
            name=row.model,
            accelerator=row.accelerator,
            num_chips=None,
            peak=PEAK[row.accelerator],
            tokens_per_second=row.tokens / (row.hours * 3600),
            model_flops=_per_token(row.model.replace("3.1", "3"), row.sequence),
            source=row.source,
        )


RUNS: dict[str, PublishedRun] = {
    run.name: run
    for run in (
        *_steps_on("A100 SXM 80 GB"),
        *_palm(),
        *_gpu_hours(),
        *_steps_on("H100 SXM 80 GB"),
    )
}


@checked
def run(name: str) -> PublishedRun:
    """Return the published run called `name`. Errors: ValueError that lists the known names."""
    if name not in RUNS:
        raise ValueError(f"no published run is named {name!r}; known: {', '.join(RUNS)}")
    return RUNS[name]
