"""A step that somebody published with its whole layout: its measured and its predicted duration."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from shardlab.arguments import Count, Positive, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from .. import step
from ..facts import nodes
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
    node: str
    program: Program
    precision: str | None = None


@checked
def row(
    setting: Setting,
    name: str,
    spec: TransformerSpec,
    layout: Layout,
    *,
    batch: Count,
    seconds: Positive,
    **options: Any,
) -> PublishedStep:
    """Make a row. batch: sequences of one step on all ranks; options: of `Training`.

    A row with chunks is interleaved.
    """
    microbatch = options.pop("microbatch", 1)
    training = Training(
        spec=spec,
        layout=layout,
        microbatch=microbatch,
        num_microbatches=batch // (layout.dp * microbatch),
        schedule="interleaved" if options.get("chunks", 1) > 1 else "1F1B",
        program=setting.program,
        **options,
    )
    cluster = nodes.cluster(setting.node, -(-layout.ranks // nodes.node(setting.node).gpus))
    run = step.Run(training=training, cluster=cluster, precision=setting.precision)
    return PublishedStep(table=setting.table, name=name, run=run, seconds=seconds)
