"""Case studies: published layouts, the share of messages in a step, the network's knee."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardlab.files.arguments import Positive, checked
from shardlab.sharding.layout import Layout

from .. import step
from ..facts import models, nodes
from ..planning.plans import Plans, Question, TrainingPlan
from ..programs import NEMO_2024
from ..traces import knee
from . import steps

WITHOUT = replace(  # a rank waits for every message
    NEMO_2024,
    name="nothing hidden",
    tensor_overlap="none",
    data_overlap=(),
    context_overlap=False,
    send_overlap=False,
)


@dataclass(frozen=True, kw_only=True)
@checked
class Study:
    """A question that a published layout answers."""

    question: Question
    published: dict[str, int]  # tp, pp, ... of the layout that was used
    source: str

    def theirs(self, plans: Plans) -> TrainingPlan | None:
        """Return the fastest fitting plan with the published degrees; None if there is none."""
        return next(iter(plans.where(**self.published)), None)


def _study(table: str, name: str, **choices: object) -> Study:
    """Ask for the layout of a published step; choices: of its program, as a `Question` has them."""
    row = next(row for row in steps.of_table(table) if row.name == name)
    training = row.run.training
    question = Question(
        spec=training.spec,
        cluster=row.run.cluster,
        batch=row.batch,
        sequence=row.sequence,
        program=training.program,
        recipe=training.recipe,
        attention=training.attention,
        dropout=training.dropout,
        **choices,  # type: ignore[arg-type]
    )
    return Study(question=question, published={"tp": row.tp, "pp": row.pp}, source=row.source)


# Megatron-LM had no ZeRO, no sequence parallelism and no selective recomputation in 2021.
_IN_2021 = {
    "zero": (0,),
    "sequence_parallel": (False,),
    "recomputations": ("none", "full"),
}
STUDIES: dict[str, Study] = {
    "GPT-3 on 1,536 A100": _study(
        "Megatron 2021, more GPUs", "Megatron 175B, 1,536 GPUs", **_IN_2021
    ),
    "a trillion on 3,072 A100": _study(
        "Megatron 2021, ten sizes", "Megatron 1008B, 3,072 GPUs", **_IN_2021
    ),
    "Llama 3 405B on 16,384 H100": _study("Llama 3 405B", "16,384 GPUs, sequences of 8,192"),
}


def _question(model: str, node: str, batch: int) -> Question:
    """Ask for layouts of a model on 64 GPUs."""
    cluster = nodes.cluster(node, 64 // nodes.node(node).gpus)
    return Question(spec=models.published(model).spec, cluster=cluster, batch=batch)


def _run(question: Question, layout: Layout, **choices: object) -> step.Run:
    microbatches = question.batch // layout.dp
    training = question.training(
        layout, num_microbatches=microbatches, recomputation="full", **choices
    )
    return question.run(training)


def runs() -> dict[str, step.Run]:
    """Name machines and layouts, from those with few messages to those that mostly communicate.

    All recompute every layer in backward, and answer the questions that the planner is asked: they
    have its recipe, and fit with its headroom.
    """
    h100, small, large = "DGX H100", "Llama 3 8B", "Llama 3 70B"
    cut = Layout(dp=64, zero=3)
    shared = Layout(tp=8, dp=8, zero=1, sequence_parallel=True)
    trillion = STUDIES["a trillion on 3,072 A100"].question
    llama = STUDIES["Llama 3 405B on 16,384 H100"].question
    eight, seventy = _question(small, h100, 256), _question(large, h100, 64)
    card = _question(large, "GCP a2-highgpu-8g", 64)
    return {
        "1T, 3,072 A100, tp 8, pp 64, dp 6": _run(trillion, Layout(tp=8, pp=64, dp=6)),
        "8B, 64 H100, ZeRO-3": _run(eight, cut),
        "405B, 16,384 H100, tp 8, pp 16, dp 128": _run(
            llama, replace(shared, pp=16, dp=128), schedule="interleaved", chunks=8
        ),
        "70B, 64 H100, tp 8, dp 8": _run(seventy, shared),
        "70B, 64 A100 (one 100 Gb/s card), tp 8, pp 4, dp 2": _run(
            card, replace(shared, dp=2, pp=4)
        ),
        "8B, 64 H100 (4 x 200 Gb/s a node), ZeRO-3": _run(
            _question(small, "GCP a3-highgpu-8g", 256), cut
        ),
        "8B, 64 H100, PCIe and one 400 Gb/s card, ZeRO-3": _run(
            _question(small, "PCIe box, InfiniBand NDR", 256), cut
        ),
        "70B, 64 H100, tp 16 across nodes": _run(seventy, replace(shared, tp=16, dp=4)),
        "70B, 64 A100 (one 100 Gb/s card), tp 8, ZeRO-3": _run(card, replace(shared, zero=3)),
    }


@checked
def shares(run: step.Run) -> dict[str, float]:
    """Return the share of a step for which a rank waits for messages, without and with overlap."""
    programs = {"without overlap": WITHOUT, "with overlap": NEMO_2024}
    return {name: step.step(run.by(program)).communication for name, program in programs.items()}


@checked
def over_networks(run: step.Run, rates: Sequence[Positive]) -> list[float]:
    """Return the seconds of a step for each bandwidth of a node, bytes/s in one direction."""
    return [
        step.step(replace(run, cluster=knee.at_rate(run.cluster, rate))).seconds for rate in rates
    ]


@checked
def knee_of(run: step.Run) -> float:
    """Find the bytes/s of a node above which a faster network makes the step at most 5 % faster."""
    return knee.of(lambda rate: over_networks(run, [rate])[0])
