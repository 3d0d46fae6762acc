"""A step that somebody published with its whole layout: its measured and its predicted duration."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardlab.files.arguments import Count, Positive, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from .. import step
from ..facts import models
from ..facts.network import Cluster, Node
from ..program import Program
from ..training import Training


@dataclass(frozen=True, kw_only=True)
@checked
class PublishedStep:
    """One row of a published table."""

    table: str
    name: str
    run: step.Run
    seconds: Positive  # of one step, measured

    @cached_property
    def predicted(self) -> step.Step:
        """The prediction of the same step."""
        return step.step(self.run)

    @property
    def error(self) -> float:
        """How much longer the prediction is, as a share: -0.05 is 5 % too short."""
        return self.predicted.seconds / self.seconds - 1


@dataclass(frozen=True, kw_only=True)
@checked
class Setting:
    """What the rows of a table have in common."""

    table: str
    node: Node
    program: Program
    precision: str | None = None


@dataclass(frozen=True, kw_only=True)
@checked
class LayoutRow:
    """How a run was cut, as its table says; GPUs that are not named are replicas."""

    model: str
    gpus: Count
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    chunks: Count = 1
    sequence: Count | None = None  # tokens; None: what the model was made for
    batch: Count  # sequences of one step, on all GPUs together
    microbatch: Count = 1

    @property
    def name(self) -> str:
        """The model and the number of GPUs."""
        return f"{self.model}, {self.gpus:,} GPUs"

    @property
    def spec(self) -> TransformerSpec:
        """The model's shapes."""
        return models.published(self.model).spec

    @property
    def layout(self) -> Layout:
        """The layout without ZeRO."""
        dp = self.gpus // (self.tp * self.pp * self.cp)
        return Layout(dp=dp, tp=self.tp, pp=self.pp, cp=self.cp)

    def step(
        self, setting: Setting, seconds: Positive, *, layout: Layout, **options: Any
    ) -> PublishedStep:
        """Make the step that took `seconds`; options: of `Training`, and `name`.

        A row with chunks is interleaved.
        """
        name = options.pop("name", self.name)
        training = Training(
            spec=options.pop("spec", None) or self.spec,
            layout=layout,
            microbatch=self.microbatch,
            num_microbatches=self.batch // (layout.dp * self.microbatch),
            sequence=self.sequence,
            schedule="interleaved" if self.chunks > 1 else "1F1B",
            chunks=self.chunks,
            program=setting.program,
            **options,
        )
        cluster = Cluster(node=setting.node, num_nodes=-(-layout.ranks // setting.node.gpus))
        run = step.Run(training=training, cluster=cluster, precision=setting.precision)
        return PublishedStep(table=setting.table, name=name, run=run, seconds=seconds)
