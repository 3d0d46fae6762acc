"""What the planner is asked, and what it answers: plans that fit, and why the others do not.

A plan is tp x cp x pp x dp, ep of the ranks of dp for experts, a stage of ZeRO, a microbatch size,
a schedule and its chunks, sequence parallelism, whole experts, recomputation: `planner.search`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

from shardlab.files.arguments import Count, checked
from shardlab.model.spec import TransformerSpec
from shardlab.schedules import WHOLE
from shardlab.sharding.layout import ZERO_STAGES, Layout, divisors, listed

from .. import step, units
from ..facts.network import Cluster
from ..facts.recipes import FP32_GRADIENTS, Recipe
from ..program import Program
from ..programs import NEMO_2024
from ..training import RECOMPUTATIONS, Training
from . import reasons

REASONS = {
    "heads": "heads do not split over tp",
    "node size": "tp shares nodes unevenly",
    "layers": "fewer layers than stages",
    "kinds": "stages have unequal kinds of layer",
    "states": "ranks of cp do not pass on states",
    "batch": "the batch does not split over dp",
    "experts": "experts do not split over their ranks",
    "sequence": "the sequence does not split",
    "microbatches": "microbatches do not interleave",
    "memory": "too little memory",
}
CHOICES: dict[str, Collection[object]] = {
    "zero": ZERO_STAGES,
    "recomputations": RECOMPUTATIONS,
    "schedules": WHOLE,
    "whole_experts": (False, True),
}
# What a question says about every training.
FIXED = ("spec", "recipe", "precision", "sequence", "attention", "dropout", "imbalance", "program")


@dataclass(frozen=True, kw_only=True)
@checked
class Question:
    """What to train, on which machine, and the choices that are open."""

    spec: TransformerSpec
    cluster: Cluster
    batch: Count  # sequences of one step, on all GPUs together
    sequence: Count | None = None  # tokens; None: the model's context length
    program: Program = NEMO_2024
    recipe: Recipe = FP32_GRADIENTS
    precision: str | None = None  # of the layers' matrices, see `Training`
    attention: str = "flash"
    dropout: bool = False
    context: tuple[Count, ...] = (1,)  # degrees of context parallelism
    # Degrees of expert parallelism; None: all that deal the model's experts evenly.
    expert: tuple[Count, ...] | None = None
    whole_experts: tuple[bool, ...] = (False,)  # beside sequence parallelism: dealt to tp, or cut
    imbalance: float = 1.0  # of the experts' load, see `Training`
    zero: tuple[int, ...] = (0, 1, 2, 3)
    sequence_parallel: tuple[bool, ...] = (False, True)
    recomputations: tuple[str, ...] = ("none", "selective", "full")
    schedules: tuple[str, ...] = ("1F1B", "GPipe", "interleaved")
    most_chunks: Count | None = None  # of a stage that interleaves; None: as many as it has layers
    # Share of a GPU's memory to leave free beside the overhead and the margin of `memory.total`.
    headroom: float = 0.05

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            open_ones = getattr(self, name)
            if not open_ones or not set(open_ones) <= set(known):
                raise ValueError(f"{name}={open_ones} must be some of {listed(known)}")
        if not self.context or not self.sequence_parallel or not self.experts:
            raise ValueError("context, expert, sequence_parallel must name a choice each")
        if any(self.whole_experts) and not (self.spec.experts and any(self.sequence_parallel)):
            raise ValueError(
                "whole experts need a model with experts and sequence_parallel=(True,); "
                "use whole_experts=(False,), in a shell no --whole-experts"
            )
        self.spec.tokens(self.batch, self.length)  # raises where a sequence is too long
        if not 0 <= self.headroom < 1:
            raise ValueError(
                f"headroom={self.headroom} must be a share of the memory, 0 or more and below 1; "
                "use 0.05 to leave a twentieth free"
            )

    @property
    def capacity(self) -> float:
        """Bytes that a plan may take on each GPU."""
        return (1 - self.headroom) * self.cluster.node.chip.memory

    @property
    def experts(self) -> tuple[int, ...]:
        """Degrees of expert parallelism to try."""
        if self.expert is not None:
            return self.expert
        return tuple(divisors(self.spec.experts.num_experts)) if self.spec.experts else (1,)

    @property
    def length(self) -> int:
        """Tokens of one sequence."""
        return self.spec.context_length if self.sequence is None else self.sequence

    def training(self, layout: Layout, **choices: Any) -> Training:
        """Make a training of the model with a layout. choices: further fields of `Training`."""
        fixed = {name: getattr(self, name) for name in FIXED}
        return Training(layout=layout, **fixed, **choices)

    def run(self, training: Training) -> step.Run:
        """Make a run of the training on this cluster."""
        return step.Run(training=training, cluster=self.cluster)


AXES = ("tp", "cp", "pp", "dp", "ep")  # in the order in which a plan names them


class TrainingPlan(NamedTuple):
    """One way to train. A field that is 0 was not computed: the plan was rejected before.

    A tuple, because the planner makes a hundred thousand of them in a second. Build it by keyword.
    """

    seconds: float = 0.0  # duration of one step; 0 if the plan was rejected
    nbytes: float = 0.0  # on a rank of the fullest stage
    tp: Count = 1
    cp: Count = 1
    pp: Count = 1
    dp: Count = 1
    ep: Count = 1
    zero: int = 0
    sequence_parallel: bool = False
    whole_experts: bool = False
    microbatch: int = 0
    recomputation: str = ""
    recomputed_layers: int = 0  # of the `layers` of the largest stage; 0: as `recomputation` says
    layers: int = 0  # of the largest stage, where only some are recomputed
    schedule: str = ""
    chunks: int = 0
    reason: str = ""  # one of REASONS; "": it fits

    @property
    def name(self) -> str:
        """Describe the plan: "tp 8, pp 64, dp 6, microbatch 1, 1F1B, full recomputation"."""
        degrees = {axis: getattr(self, axis) for axis in AXES}
        words = [f"{axis} {n}" for axis, n in degrees.items() if n > 1] or ["one GPU"]
        further = {
            f"ZeRO-{self.zero}": self.zero,
            "sequence parallel": self.sequence_parallel,
            "whole experts": self.whole_experts,
            f"microbatch {self.microbatch}": self.microbatch,
        }
        words += [word for word, holds in further.items() if holds]
        if self.pp > 1 and self.schedule:
            chunks = f" in {self.chunks} chunks" if self.chunks > 1 else ""
            words.append(self.schedule + chunks)
        if self.recomputed_layers:
            words.append(f"recomputes {self.recomputed_layers} of {self.layers} layers")
        elif self.recomputation not in ("", "none"):
            words.append(f"{self.recomputation} recomputation")
        return ", ".join(words)


@dataclass(frozen=True)
@checked
class Plans:
    """The planner's answer: plans that fit, the fastest first, and plans that do not."""

    question: Question
    fitting: list[TrainingPlan]
    rejected: list[TrainingPlan]

    @property
    def count(self) -> int:
        """Count all plans, fitting or rejected."""
        return len(self.fitting) + len(self.rejected)

    @property
    def best(self) -> TrainingPlan:
        """Return the fastest plan. Errors: ValueError where none fits, with the nearest one."""
        if not self.fitting:
            raise ValueError(f"nothing fits on {self.question.cluster.name}: {self.nearest}")
        return self.fitting[0]

    @cached_property
    def reasons(self) -> dict[str, int]:
        """Count the plans rejected for each reason, in the order of REASONS."""
        counts = Counter(plan.reason for plan in self.rejected)
        return {reason: counts[reason] for reason in REASONS if counts[reason]}

    @property
    def nearest(self) -> str:
        """Describe the plan that lacks the least memory."""
        short = [plan for plan in self.rejected if plan.reason == "memory"]
        if not short:
            return "no degrees split this model and batch"
        least = min(short, key=lambda plan: plan.nbytes)
        return f"{least.name}: {why(self.question, least)}"

    def where(self, **choices: int | str | bool) -> list[TrainingPlan]:
        """List the fitting plans with these values, the fastest first: where(tp=8, pp=64)."""
        return _having(self.fitting, choices)

    def rejected_where(self, **choices: int | str | bool) -> list[TrainingPlan]:
        """List the rejected plans with these values; of those that need memory, the least first."""
        return sorted(_having(self.rejected, choices), key=lambda plan: plan.nbytes)

    @cached_property
    def different(self) -> list[TrainingPlan]:
        """List the fastest plan of each (tp, cp, pp, ep), the fastest first.

        Other plans with the same degrees differ little from them.
        """
        found: dict[tuple[int, ...], TrainingPlan] = {}
        for plan in self.fitting:
            found.setdefault((plan.tp, plan.cp, plan.pp, plan.ep), plan)
        return list(found.values())


def _having(
    plans: Sequence[TrainingPlan], choices: Mapping[str, int | str | bool]
) -> list[TrainingPlan]:
    if unknown := choices.keys() - set(TrainingPlan._fields):
        known = listed(TrainingPlan._fields)
        raise ValueError(f"a plan has no {', '.join(sorted(unknown))}; use {known}")
    wanted = choices.items()
    return [plan for plan in plans if all(getattr(plan, name) == value for name, value in wanted)]


@checked
def run_of(question: Question, plan: TrainingPlan) -> step.Run:
    """Turn a plan into the run that `step.step` takes."""
    return question.run(training_of(question, plan))


@checked
def training_of(question: Question, plan: TrainingPlan) -> Training:
    """Turn a plan into a training. Errors: ValueError for a plan without a microbatch size."""
    if not plan.microbatch:
        raise ValueError(f"{plan.name} does not split: {why(question, plan)}")
    return question.training(
        Layout(**{field.name: getattr(plan, field.name) for field in fields(Layout)}),
        microbatch=plan.microbatch,
        num_microbatches=question.batch // (plan.dp * plan.microbatch),
        recomputation=plan.recomputation,
        recomputed_layers=plan.recomputed_layers or None,
        schedule=plan.schedule,
        chunks=plan.chunks,
    )


@checked
def why(question: Question, plan: TrainingPlan) -> str:
    """Say why a plan does not run, with the numbers; or that it fits."""
    capacity = question.capacity
    if plan.reason in ("memory", ""):
        used = f"{units.text(plan.nbytes, 'B')} of {units.text(capacity, 'B')}"
        if not plan.reason:
            return f"fits: {used}"
        return f"needs {used}, {units.text(plan.nbytes - capacity, 'B')} too much"
    return reasons.text(
        plan.reason,
        question.spec,
        question.cluster,
        batch=question.batch,
        length=question.length,
        degrees={axis: getattr(plan, axis) for axis in AXES},
        num_microbatches=question.batch // (plan.dp * max(1, plan.microbatch)),
        whole_experts=plan.whole_experts,
    )
