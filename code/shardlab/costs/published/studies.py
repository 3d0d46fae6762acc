"""Case studies: published layouts, the share of messages in a step, the network's knee."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardlab.files.arguments import Positive, checked
from shardlab.sharding.layout import Layout

from .. import step
from ..facts import models, nodes
from ..facts.recipes import MIXED
from ..planning.plans import Plans, Question, TrainingPlan
from ..programs import LLAMA_2024, MEGATRON_2021, NEMO_2024
from ..traces import knee

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


def _question(model: str, node: str, gpus: int, batch: int, **options: object) -> Question:
    cluster = nodes.cluster(node, gpus // nodes.node(node).gpus)
    spec = models.published(model).spec
    return Question(spec=spec, cluster=cluster, batch=batch, **options)  # type: ignore[arg-type]


# What Megatron-LM had in 2021: no ZeRO, no sequence parallelism, scores stored, 16-bit gradients;
# all layers computed again, or none.
_IN_2021 = {
    "program": MEGATRON_2021,
    "recipe": MIXED,
    "attention": "stored",
    "dropout": True,
    "zero": (0,),
    "sequence_parallel": (False,),
    "recomputations": ("none", "full"),
}
_SC21 = "Narayanan et al. 2021, {} (https://arxiv.org/abs/2104.04473)"
STUDIES: dict[str, Study] = {
    "GPT-3 on 1,536 A100": Study(
        question=_question("Megatron 175B", "DGX A100", 1536, 1536, **_IN_2021),
        published={"tp": 8, "pp": 12},
        source=_SC21.format("Table 2"),
    ),
    "a trillion on 3,072 A100": Study(
        question=_question("Megatron 1008B", "DGX A100", 3072, 3072, **_IN_2021),
        published={"tp": 8, "pp": 64},
        source=_SC21.format("Table 1"),
    ),
    "Llama 3 405B on 16,384 H100": Study(
        question=_question(
            "Llama 3 405B",
            "DGX H100",
            16_384,
            2048,
            sequence=8192,
            program=LLAMA_2024,
        ),
        published={"tp": 8, "pp": 16},
        source="Llama Team 2024, Table 4 (https://arxiv.org/abs/2407.21783)",
    ),
}


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
    eight, seventy = _question(small, h100, 64, 256), _question(large, h100, 64, 64)
    card = _question(large, "GCP a2-highgpu-8g", 64, 64)
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
            _question(small, "GCP a3-highgpu-8g", 64, 256), cut
        ),
        "8B, 64 H100, PCIe and one 400 Gb/s card, ZeRO-3": _run(
            _question(small, "PCIe box, InfiniBand NDR", 64, 256), cut
        ),
        "70B, 64 H100, tp 16 across nodes": _run(seventy, replace(shared, tp=16, dp=4)),
        "70B, 64 A100 (one 100 Gb/s card), tp 8, ZeRO-3": _run(card, replace(shared, zero=3)),
    }


@checked
def shares(run: step.Run) -> dict[str, float]:
    """Return the share of a step for which a rank waits for messages, without and with overlap."""
    programs = {"without overlap": WITHOUT, "with overlap": NEMO_2024}
    return {
        name: step.step(run.by(program)).communication for name, program in programs.items()
    }


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
