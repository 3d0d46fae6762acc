"""Published steps on long sequences, with what a GPU held: twice the ranks, twice the text.

`torchtitan_long.csv` has its sources. Llama 3 405B at 131,072 tokens with cp 16 is the third row of
`h100.llama_3`.

They are no table of `steps`: these H100 have another memory, draw 500 of 700 W, and gather keys.
Assumed: the H100's own rates of products, and 16 bytes of states for each parameter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlab.files.arguments import Count, Positive, checked

from ..facts import nodes
from ..program import EVERYTHING, Program
from ..units import GB, TB
from .layouts import LayoutRow, PublishedStep, Setting
from .rows import rows

TABLE = "torchtitan, 8 H100, long sequences"
TORCHTITAN = Program(
    name="torchtitan, 2024",
    data_overlap=EVERYTHING,
    source="https://arxiv.org/abs/2410.06511 (FSDP2; keys are gathered, torch's default)",
)


@dataclass(frozen=True, kw_only=True)
@checked
class LongRow(LayoutRow):
    """A row of the table: one sequence for each replica."""

    tokens_per_second: Positive  # of one GPU
    nbytes: Positive  # on the fullest GPU


@dataclass(frozen=True, kw_only=True)
@checked
class LongStep:
    """A step with the memory that was measured beside it."""

    step: PublishedStep
    tokens_per_second: Positive  # of one GPU
    nbytes: Positive  # on the fullest GPU

    @property
    def cp(self) -> Count:
        """Ranks that share each sequence."""
        return self.step.run.training.layout.cp


def _torchtitan() -> Iterator[LongStep]:
    """Yield the rows: every layer recomputed, products in 8 bits."""
    node = nodes.node("DGX H100")
    chip = replace(node.chip, memory=96 * GB, memory_bandwidth=2.4 * TB, power=500)
    node = replace(node, chip=chip)
    setting = Setting(table=TABLE, node=node, program=TORCHTITAN, precision="fp8")
    for row in rows("torchtitan_long", LongRow):
        assert row.sequence is not None
        step = row.step(
            setting,
            row.batch * row.sequence / (row.gpus * row.tokens_per_second),
            name=f"cp {row.cp}, sequences of {row.sequence:,}",
            layout=replace(row.layout, zero=3),
            spec=replace(row.spec, context_length=row.sequence),
            recomputation="full",
        )
        yield LongStep(step=step, tokens_per_second=row.tokens_per_second, nbytes=row.nbytes)


LONG_STEPS: tuple[LongStep, ...] = tuple(_torchtitan())
