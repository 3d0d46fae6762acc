"""The planner's answer with what a training costs, as data."""

from dataclasses import asdict, dataclass
from typing import Any

from shardlab.costs import step
from shardlab.costs.planning import flags, planner, plans, robust
from shardlab.costs.planning.flags import Flags
from shardlab.costs.planning.plans import Plans, TrainingPlan
from shardlab.costs.planning.robust import Candidate
from shardlab.costs.program import MARGIN
from shardlab.costs.units import MWh

from .arguments import Request


@dataclass(frozen=True, kw_only=True)
class Row:
    """One plan and what a training with it takes."""

    plan: TrainingPlan
    memory_bytes: float  # of the fullest GPU
    step_seconds: float
    parts: dict[str, float]  # seconds of the step
    behind: float  # the fastest under other rates, on average, as a share; see `robust`
    tokens_per_second: float  # of all GPUs together
    mfu: float
    days: float
    dollars: float
    megawatt_hours: float


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The most robust plans of different degrees, why others fail, and the chosen one's options."""

    request: Request
    found: Plans
    rows: list[Row]
    failures: dict[str, tuple[int, str]]  # reason -> how many plans, and one of them with numbers
    flags: list[Flags]

    @property
    def data(self) -> dict[str, Any]:
        """The answer as JSON has it, in bytes, seconds, dollars and MWh."""
        request = self.request
        question = request.question
        return {
            "model": {
                "architecture": request.model.architecture,
                "parameters": request.model.num_parameters,
                "parts": request.model.parameters,
                "notes": request.notes,
                "ignored": list(request.model.ignored),
            },
            "cluster": question.cluster.name,
            "gpus": question.cluster.gpus,
            "memory_bytes": question.capacity,
            "margin": MARGIN,
            "headroom": question.headroom,
            "sequence": question.length,
            "batch_sequences": question.batch,
            "recipe": question.recipe.name,
            "program": question.program.name,
            "tokens": request.tokens,
            "dollars_per_gpu_hour": request.machine.dollars_per_gpu_hour,
            "watts_per_gpu": request.machine.watts,
            "overhead": request.machine.overhead,
            "plans_tried": self.found.count,
            "plans_that_fit": len(self.found.fitting),
            "plans": [_flat(row) for row in self.rows],
            "failures": {
                reason: {"plans": count, "example": example}
                for reason, (count, example) in self.failures.items()
            },
            "nearest": "" if self.rows else self.found.nearest,
            "chosen": request.chosen,
            "options": {each.program: asdict(each) for each in self.flags},
        }


def _flat(row: Row) -> dict[str, Any]:
    numbers = {name: value for name, value in vars(row).items() if name != "plan"}
    named = {"name": row.plan.name, **row.plan._asdict()}
    return {name: value for name, value in named.items() if name != "reason"} | numbers


def ask(request: Request) -> Answer:
    """Search, and work out what the most robust of the best plans take.

    Errors: ValueError of the planner.
    """
    found = planner.search(request.question)
    count = max(request.shown, robust.COUNT)
    best = robust.rank(found, count=count)[: request.shown] if found.fitting else []
    if 0 < len(best) < request.chosen:
        raise ValueError(
            f"--plan {request.chosen} is not there: {len(best)} plans of different degrees fit; "
            f"use 1 to {len(best)}"
        )
    chosen = best[request.chosen - 1 : request.chosen]
    return Answer(
        request=request,
        found=found,
        rows=[_row(request, each) for each in best],
        failures={reason: _failure(found, reason) for reason in found.reasons},
        flags=[
            each
            for candidate in chosen
            for each in flags.every(request.question, candidate.plan, request.tokens)
        ],
    )


def _row(request: Request, candidate: Candidate) -> Row:
    plan = candidate.plan
    one = step.step(plans.run_of(request.question, plan))
    seconds = request.tokens / one.tokens_per_second
    return Row(
        plan=plan,
        memory_bytes=plan.nbytes,
        step_seconds=one.seconds,
        parts=one.summary,
        behind=candidate.behind,
        tokens_per_second=one.tokens_per_second,
        mfu=one.mfu,
        days=one.days(request.tokens),
        dollars=request.machine.dollars(seconds),
        megawatt_hours=request.machine.joules(seconds) / MWh,
    )


def _failure(found: Plans, reason: str) -> tuple[int, str]:
    """Count the plans that fail for a reason; describe one, of memory the one that lacks least."""
    first = found.rejected_where(reason=reason)[0]
    return found.reasons[reason], f"{first.name}: {plans.why(found.question, first)}"
