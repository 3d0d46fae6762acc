"""Steps of mixtures that publishers timed, and what `step` predicts for their layouts.

Nothing is fitted to these rows. All have tp = 1, so that their layouts are ours. What no row tells
is not in the prediction: recomputation, and how the rows' programs hide their messages.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.files.arguments import Count, Positive, checked

from .. import step
from ..compute import flops
from ..facts import hardware, mixtures, nodes, recipes
from ..facts.network import Cluster, Node
from ..programs import DEEPSEEK_2024, NEMO_2024
from ..training import Training
from ..units import HOUR
from .mixtures import MixtureRow
from .rows import rows

SEQUENCE = 4096  # tokens


@dataclass(frozen=True, kw_only=True)
@checked
class MixtureStep:
    """A published step of a mixture."""

    name: str
    run: step.Run
    tokens_per_second: Positive  # of one GPU, measured
    source: str

    @cached_property
    def predicted(self) -> step.Step:
        """The step as `step` predicts it."""
        return step.step(self.run)

    @property
    def measured(self) -> float:
        """Seconds of a step."""
        return self.run.tokens / (self.tokens_per_second * self.run.training.layout.ranks)

    @property
    def error(self) -> float:
        """How much longer the step is predicted than it was measured, as a share."""
        return self.predicted.seconds / self.measured - 1


def _h800(source: str) -> Node:
    """A DGX H100 with fewer NVLinks, as DeepSeek describes its servers."""
    node = nodes.node("DGX H100")
    link = hardware.link("NVLink 4 (H800)")
    wires = tuple(
        replace(wire, link=link) if wire.link.kind == "NVLink" else wire for wire in node.wires
    )
    return replace(node, name="8 x H800", wires=wires, source=source)


@dataclass(frozen=True, kw_only=True)
@checked
class _MixtureStepRow(MixtureRow):
    """A row of the table: one of its three speeds is printed."""

    node: str
    batch: Count
    microbatch: Count
    chunks: Count
    precision: str | None = None
    tokens_per_second: Positive | None = None  # of one GPU
    rate: Positive | None = None  # model FLOP/s of one GPU, every pair of tokens counted
    hours: Positive | None = None  # of one GPU, for 10^12 tokens
    source: str

    @property
    def run(self) -> step.Run:
        """The training, on a machine that it fills."""
        layout = self.layout
        on = _h800(self.source) if self.node == "8 x H800" else nodes.node(self.node)
        training = Training(
            spec=replace(mixtures.published(self.model).spec, context_length=SEQUENCE),
            layout=layout,
            recipe=recipes.recipe("mixed, fp32 gradients"),
            microbatch=self.microbatch,
            num_microbatches=self.batch // (layout.dp * self.microbatch),
            schedule="interleaved" if self.chunks > 1 else "1F1B",
            chunks=self.chunks,
            program=DEEPSEEK_2024 if on.name == "8 x H800" else NEMO_2024,
        )
        cluster = Cluster(node=on, num_nodes=layout.ranks // on.gpus)
        return step.Run(training=training, cluster=cluster, precision=self.precision)

    @property
    def speed(self) -> float:
        """Tokens per second of one GPU."""
        if self.hours:
            return 1e12 / (self.hours * HOUR)
        if self.rate:
            spec = self.run.training.spec
            return SEQUENCE * self.rate / flops.model_flops(spec, batch=1, sequence=SEQUENCE)
        return self.tokens_per_second or 0.0


def _steps() -> Iterator[MixtureStep]:
    for row in rows("mixture_steps", _MixtureStepRow):
        chip = row.run.cluster.node.name.split()[-1]
        yield MixtureStep(
            name=f"{row.model}, {row.layout.ranks} {chip}",
            run=row.run,
            tokens_per_second=row.speed,
            source=row.source,
        )


STEPS: dict[str, MixtureStep] = {step.name: step for step in _steps()}
