"""Published steps on long sequences, with what a GPU held: twice the ranks, twice the text.

Liang et al. 2024, Table 5 (https://arxiv.org/abs/2410.06511), in
https://github.com/pytorch/torchtitan/blob/main/benchmarks/llama3_h100_202412_torchtitan.md Table 2.
Llama 3 405B at 131,072 tokens with cp 16 is the third row of `h100.llama_3`.

They are no table of `steps`: these H100 have another memory, draw 500 of 700 W, and gather keys.
Assumed: the H100's own rates of products, and 16 bytes of states for each parameter.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlab.arguments import Count, Positive, checked
from shardlab.sharding.layout import Layout

from ..facts import models
from ..program import EVERYTHING, Program
from ..units import GB, TB, GiB
from .layouts import PublishedStep, Setting, row

TABLE = "torchtitan, 8 H100, long sequences"
GPUS = 8
TORCHTITAN = Program(
    name="torchtitan, 2024",
    data_overlap=EVERYTHING,
    source="https://arxiv.org/abs/2410.06511 (FSDP2; keys are gathered, torch's default)",
)
# cp, tokens of a sequence, tokens/s of one GPU, GiB of the fullest one
ROWS = (
    (1, 32_768, 3890, 83.9),
    (2, 65_536, 2540, 84.2),
    (4, 131_072, 1071, 84.0),
    (8, 262_144, 548, 84.5),
)


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
    """Yield the rows: one sequence for each replica, every layer recomputed, products in 8 bits."""
    setting = Setting(table=TABLE, node="DGX H100", program=TORCHTITAN, precision="fp8")
    spec = models.published("Llama 3 8B").spec
    for cp, length, rate, gib in ROWS:
        layout = Layout(dp=GPUS // cp, cp=cp, zero=3)
        made = row(
            setting,
            f"cp {cp}, sequences of {length:,}",
            replace(spec, context_length=length),
            layout,
            batch=layout.dp,
            seconds=layout.dp * length / (GPUS * rate),
            recomputation="full",
        )
        node = made.run.cluster.node
        chip = replace(node.chip, memory=96 * GB, memory_bandwidth=2.4 * TB, power=500)
        cluster = replace(made.run.cluster, node=replace(node, chip=chip))
        step = replace(made, run=replace(made.run, cluster=cluster))
        yield LongStep(step=step, tokens_per_second=rate, nbytes=gib * GiB)


LONG_STEPS: tuple[LongStep, ...] = tuple(_torchtitan())
