"""Published steps: a row of a table is a whole run with its measured and its predicted duration.

The constants of `kernels` are the same for all tables, some by kind of chip: none is fitted to one
of these, but one was chosen among three values with whole steps in view. What a program does by
itself is in its engine. Where a source leaves something open, TABLES says what is assumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from statistics import fmean

from shardlab.files.arguments import Count, Positive, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from .. import programs, step
from ..compute import flops
from ..facts import hardware, machines, mixtures, nodes, recipes
from ..facts.network import Node
from ..program import EVERYTHING, Program
from ..training import Training
from ..units import GB, HOUR
from .rows import rows


def _h800() -> Node:
    """A DGX H100 with fewer NVLinks, as DeepSeek describes its servers."""
    node = nodes.node("DGX H100")
    link = hardware.link("NVLink 4 (H800)")
    wires = tuple(
        replace(wire, link=link) if wire.link.kind == "NVLink" else wire for wire in node.wires
    )
    source = "DeepSeek-AI 2024, sections 1, 3.1, 3.2 and 4.2 (https://arxiv.org/abs/2412.19437)"
    return replace(node, name="8 x H800", wires=wires, source=source)


def _machines() -> dict[str, Node]:
    """Name the machines that only rows of these tables have.

    Grand Teton has H100s of older memory and a limit of 500 W, to which its rate of products falls.
    """
    node = nodes.node("DGX H100")
    chip = replace(node.chip, memory=96 * GB, memory_bandwidth=2400 * GB, power=500)
    cool = replace(chip, name="H100 SXM 96 GB, 500 W")
    return {
        "8 x H800": _h800(),
        "DGX H100, 96 GB, 500 W": replace(node, chip=chip),
        "Grand Teton, 500 W": replace(node, name="Grand Teton, 500 W", chip=cool),
    }


MACHINES = _machines()
TITAN_2024 = Program(
    name="torchtitan, 2024",
    data_overlap=EVERYTHING,
    source="https://arxiv.org/abs/2410.06511 (FSDP2; keys are gathered, torch's default)",
)


@dataclass(frozen=True, kw_only=True)
@checked
class PublishedStep:
    """One row of a published table; GPUs that are in no group are replicas.

    One of four speeds is printed: `duration`, `tokens_per_second`, `rate` or `hours`.
    """

    table: str
    label: str | None = None  # None: the model and the number of GPUs
    model: str
    spec: TransformerSpec | None = None  # None: as `models` or `mixtures` list it
    context: Count | None = None  # tokens for which the model was changed; None: it was not
    node: str
    program: str
    precision: str | None = None
    gpus: Count
    tp: Count = 1
    pp: Count = 1
    cp: Count = 1
    ep: Count = 1
    zero: int = 0
    sequence_parallel: bool = False
    chunks: Count = 1  # above 1 the row is interleaved
    sequence: Count | None = None  # tokens; None: what the model was made for
    batch: Count  # sequences of one step, on all GPUs together
    microbatch: Count = 1
    recipe: str = recipes.MIXED.name
    recomputation: str = "none"
    attention: str = "flash"
    dropout: bool = False
    duration: Positive | None = None  # seconds of a step
    tokens_per_second: Positive | None = None  # of one GPU
    rate: Positive | None = None  # FLOP/s of one GPU
    counted: str = "full"  # what the rate counts: "hardware" FLOPs, or the pairs of model FLOPs
    hours: Positive | None = None  # of one GPU, for 10^12 tokens
    mfu: Positive | None = None  # shares of the peak, as printed
    hfu: Positive | None = None
    nbytes: Positive | None = None  # on the fullest GPU
    source: str

    def __post_init__(self) -> None:
        speeds = {each: getattr(self, each) for each in SPEEDS}
        if sum(each is not None for each in speeds.values()) != 1:
            given = ", ".join(f"{name}={value}" for name, value in speeds.items())
            raise ValueError(f"{given}: give the one that is printed")

    @property
    def name(self) -> str:
        """A short description of what was timed."""
        return self.label or f"{self.model}, {self.gpus:,} GPUs"

    @property
    def layout(self) -> Layout:
        """How the run was cut."""
        return Layout(
            dp=self.gpus // (self.tp * self.pp * self.cp),
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            ep=self.ep,
            zero=self.zero,
            sequence_parallel=self.sequence_parallel,
        )

    @cached_property
    def run(self) -> step.Run:
        """The training, on as many nodes as it needs."""
        layout = self.layout
        training = Training(
            spec=_spec(self),
            layout=layout,
            recipe=recipes.recipe(self.recipe),
            precision=self.precision,
            microbatch=self.microbatch,
            num_microbatches=self.batch // (layout.dp * self.microbatch),
            sequence=self.sequence,
            attention=self.attention,
            recomputation=self.recomputation,
            schedule="interleaved" if self.chunks > 1 else "1F1B",
            chunks=self.chunks,
            dropout=self.dropout,
            program=_program(self.program),
        )
        node = MACHINES[self.node] if self.node in MACHINES else nodes.node(self.node)
        cluster = machines.with_gpus(node, layout.ranks)
        return step.Run(training=training, cluster=cluster)

    @property
    def flops(self) -> int:
        """FLOPs of one step, of which the rate is printed."""
        spec, tokens = self.run.training.spec, self.run.training.tokens_per_sequence
        if self.counted == "hardware":
            return flops.hardware_flops(
                spec, batch=self.batch, sequence=tokens, recomputation=self.recomputation
            )
        return flops.model_flops(spec, batch=self.batch, sequence=tokens, pairs=self.counted)

    @cached_property
    def seconds(self) -> float:
        """Seconds of one step, measured."""
        if self.duration:
            return self.duration
        if self.rate:
            return self.flops / (self.gpus * self.rate)
        speed = 1e12 / (self.hours * HOUR) if self.hours else self.tokens_per_second
        assert speed is not None
        return self.run.tokens / (speed * self.gpus)

    @cached_property
    def predicted(self) -> step.Step:
        """The prediction of the same step."""
        return step.step(self.run)

    @property
    def error(self) -> float:
        """How much longer the prediction is, as a share: -0.05 is 5 % too short."""
        return self.predicted.seconds / self.seconds - 1


SPEEDS = ("duration", "tokens_per_second", "rate", "hours")


def _spec(row: PublishedStep) -> TransformerSpec:
    spec = row.spec or mixtures.spec_of(row.model)
    return replace(spec, context_length=row.context) if row.context else spec


def _program(name: str) -> Program:
    return TITAN_2024 if name == TITAN_2024.name else programs.program(name)


@dataclass(frozen=True, kw_only=True)
@checked
class StepTable:
    """Where a table stands, and what it leaves open that we had to assume."""

    table: str
    source: str
    note: str = ""


TABLES: dict[str, str] = {
    each.table: "; ".join(filter(None, (each.source, each.note)))
    for each in rows("step_tables", StepTable)
}
STEPS: tuple[PublishedStep, ...] = (
    *rows("megatron_2021", PublishedStep),
    *rows("korthikanti_2022", PublishedStep),
    *rows("nvidia_2024", PublishedStep),
    *rows("nemo_2024", PublishedStep),
    *rows("llama_3", PublishedStep),
    *rows("megatron_h100", PublishedStep),
    *rows("torchtitan", PublishedStep),
)
# On long sequences, with what a GPU held: twice the ranks, twice the text. Llama 3 405B at 131,072
# tokens with cp 16 is a row of STEPS.
LONG_STEPS = rows("torchtitan_long", PublishedStep)
# Of mixtures of experts, all with tp = 1, so that their layouts are ours.
MIXTURE_STEPS = {each.name: each for each in rows("mixture_steps", PublishedStep)}


@checked
def of_table(table: str) -> list[PublishedStep]:
    """List the rows of a table. Errors: ValueError that lists the known tables."""
    if table not in TABLES:
        raise ValueError(
            f"no table of published steps is called {table!r}; known: {', '.join(TABLES)}"
        )
    return [row for row in STEPS if row.table == table]


@checked
@cache
def hindsight_error(table: str) -> float:
    """Return the error that the best constant FLOP/s, chosen in hindsight, leaves on a table.

    FLOP/s count what is recomputed.
    """
    rates = [_measured_rate(row) for row in of_table(table)]
    return min(_spread(rates, one) for one in rates)


def _spread(rates: Sequence[float], one: float) -> float:
    return fmean(abs(rate / one - 1) for rate in rates)


def _measured_rate(row: PublishedStep) -> float:
    """Return the measured FLOP/s of one GPU."""
    return replace(row, counted="hardware").flops / (row.seconds * row.run.training.layout.ranks)
