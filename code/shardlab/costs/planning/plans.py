"""What a planner is asked and what it answers: a question, plans that fit, plans that do not and why.

A plan is tp x cp x pp x dp, a stage of ZeRO, sequence parallelism, a microbatch, a schedule with its chunks, and what
is recomputed. `planner.search` finds them.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from shardlab.layout import Layout, listed, tensor_degrees
from shardlab.spec import TransformerSpec

from .. import step, units
from ..facts.network import Cluster
from ..facts.recipes import MIXED, Recipe
from ..step import axes
from ..step.engines import NEMO_2024, Engine
from ..training import Training

REASONS = {
    "heads": "heads do not split over tp",
    "node size": "tp shares nodes unevenly",
    "layers": "fewer layers than stages",
    "batch": "the batch does not split over dp",
    "sequence": "the sequence does not split",
    "microbatches": "too few microbatches to interleave",
    "memory": "too little memory",
}


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is to be trained, on what; and the choices that are open."""

    spec: TransformerSpec
    cluster: Cluster
    batch: int  # sequences of one step, on all GPUs together
    sequence: int | None = None  # tokens; None: the model's context length
    engine: Engine = NEMO_2024
    recipe: Recipe = MIXED
    precision: str | None = None  # of the layers' matrices, see `step.Run`
    attention: str = "flash"
    dropout: bool = False
    context: tuple[int, ...] = (1,)  # degrees of context parallelism
    zero: tuple[int, ...] = (0, 1, 2, 3)
    sequence_parallel: tuple[bool, ...] = (False, True)
    recomputations: tuple[str, ...] = ("none", "selective", "full")
    schedules: tuple[str, ...] = ("1F1B", "GPipe", "interleaved")
    headroom: float = 0.0  # the share of a GPU's memory that is left free, for all that the formulas leave out

    def __post_init__(self) -> None:
        if not 0 <= self.headroom < 1:
            raise ValueError(f"headroom={self.headroom} is no share of the memory; use 0 to 1, such as 0.1")

    @property
    def capacity(self) -> float:
        """Bytes that a plan may take on each GPU."""
        return (1 - self.headroom) * self.cluster.node.chip.memory

    @property
    def length(self) -> int:
        """Tokens of one sequence."""
        return self.spec.context_length if self.sequence is None else self.sequence

    def run(self, training: Training) -> step.Run:
        """A training on this cluster, with this engine."""
        return step.Run(training=training, cluster=self.cluster, engine=self.engine, precision=self.precision)


class Plan(NamedTuple):
    """One way to train. What is 0 was not looked at, for the reason shows before."""

    seconds: float  # of one step; 0 if it does not run
    nbytes: float  # on a rank of the fullest stage
    tp: int
    cp: int
    pp: int
    dp: int
    zero: int = 0
    sequence_parallel: bool = False
    microbatch: int = 0
    recomputation: str = ""
    schedule: str = ""
    chunks: int = 0
    reason: str = ""  # one of REASONS; "": it fits

    @property
    def name(self) -> str:
        """In few words: "tp 8, pp 64, dp 6, microbatch 1, 1F1B, full recomputation"."""
        degrees = [f"{axis} {degree}" for axis in ("tp", "cp", "pp", "dp") if (degree := getattr(self, axis)) > 1]
        words = [", ".join(degrees) or "one GPU"]
        words += [f"ZeRO-{self.zero}"] * (self.zero > 0) + ["sequence parallel"] * self.sequence_parallel
        words += [f"microbatch {self.microbatch}"] * (self.microbatch > 0)
        if self.pp > 1 and self.schedule:
            words.append(f"{self.schedule} in {self.chunks} chunks" if self.chunks > 1 else self.schedule)
        return ", ".join(words + [f"{self.recomputation} recomputation"] * (self.recomputation not in ("", "none")))


@dataclass(frozen=True)
class Plans:
    """The answer: plans that fit, the fastest first, and those that do not."""

    question: Question
    fitting: list[Plan]
    rejected: list[Plan]

    @property
    def count(self) -> int:
        """How many were looked at."""
        return len(self.fitting) + len(self.rejected)

    @property
    def best(self) -> Plan:
        """The fastest. Errors: ValueError where nothing fits, with what comes nearest."""
        if not self.fitting:
            raise ValueError(f"nothing fits on {self.question.cluster.name}: {self.nearest}")
        return self.fitting[0]

    @cached_property
    def reasons(self) -> dict[str, int]:
        """How many were rejected for each reason, in the order of REASONS."""
        counts = Counter(plan.reason for plan in self.rejected)
        return {reason: counts[reason] for reason in REASONS if counts[reason]}

    @property
    def nearest(self) -> str:
        """Of all that lack memory, the one that lacks least."""
        short = [plan for plan in self.rejected if plan.reason == "memory"]
        if not short:
            return "no degrees split this model and batch"
        least = min(short, key=lambda plan: plan.nbytes)
        return f"{least.name}: {why(self.question, least)}"

    def where(self, **choices: int | str | bool) -> list[Plan]:
        """Those that fit and have these values, the fastest first: where(tp=8, pp=64)."""
        return [plan for plan in self.fitting if all(getattr(plan, name) == value for name, value in choices.items())]

    def rejected_where(self, **choices: int | str | bool) -> list[Plan]:
        """Those that do not fit and have these values; of those that lack memory, what lacks least first."""
        found = (plan for plan in self.rejected if all(getattr(plan, name) == value for name, value in choices.items()))
        return sorted(found, key=lambda plan: plan.nbytes)

    @cached_property
    def different(self) -> list[Plan]:
        """The fastest of every (tp, cp, pp), the fastest first: the others differ from them in little."""
        found: dict[tuple[int, int, int], Plan] = {}
        for plan in self.fitting:
            found.setdefault((plan.tp, plan.cp, plan.pp), plan)
        return list(found.values())


def run_of(question: Question, plan: Plan) -> step.Run:
    """The plan for `step.step`."""
    return question.run(training_of(question, plan))


def training_of(question: Question, plan: Plan) -> Training:
    """The plan as a training. Errors: ValueError for a plan that was not looked at to its end."""
    layout = Layout(
        dp=plan.dp, tp=plan.tp, pp=plan.pp, cp=plan.cp, zero=plan.zero, sequence_parallel=plan.sequence_parallel
    )
    if not plan.microbatch:
        raise ValueError(f"{plan.name} does not split: {why(question, plan)}")
    return Training(
        spec=question.spec,
        layout=layout,
        recipe=question.recipe,
        microbatch=plan.microbatch,
        num_microbatches=question.batch // (plan.dp * plan.microbatch),
        sequence=question.sequence,
        attention=question.attention,
        recomputation=plan.recomputation,
        schedule=plan.schedule,
        chunks=plan.chunks,
        dropout=question.dropout,
    )


def why(question: Question, plan: Plan) -> str:
    """Why a plan does not run, with the numbers; or that it fits."""
    spec, gpus = question.spec, question.cluster.node.gpus
    capacity = question.capacity
    if plan.reason in ("memory", ""):
        much, room = units.text(plan.nbytes, "B"), units.text(capacity, "B")
        if not plan.reason:
            return f"fits: {much} of {room}"
        return f"needs {much} of {room}, {units.text(plan.nbytes - capacity, 'B')} too much"
    works = [tp for tp in tensor_degrees(spec) if axes.fits_nodes(question.cluster, tp)]
    texts: dict[str, Callable[[], str]] = {
        "heads": lambda: f"{spec.num_heads} heads do not split over tp={plan.tp}; use {listed(works)}",
        "node size": lambda: f"tp={plan.tp} does not share nodes of {gpus} GPUs evenly; use {listed(works)}",
        "layers": lambda: f"{spec.num_layers} layers leave some of {plan.pp} stages empty",
        "batch": lambda: f"a batch of {question.batch} does not split over dp={plan.dp} replicas",
        "sequence": lambda: f"{question.length} tokens do not split over {plan.cp * plan.tp} ranks",
        "microbatches": lambda: (
            f"{question.batch // (plan.dp * plan.microbatch)} microbatches for {plan.pp} stages; interleaving needs "
            "at least as many as stages"
        ),
    }
    return texts[plan.reason]()
