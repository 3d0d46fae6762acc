"""Why the best plan shares its sequences between ranks, or does not: in words with numbers."""

from shardlab.arguments import checked

from .. import context_parallel, step, units
from ..program import FLASH
from ..step import axes
from . import plans
from .plans import Plans, Question, TrainingPlan


@checked
def why(found: Plans) -> str:
    """Say what context parallelism gains or costs, and whether its messages are hidden.

    Errors: ValueError where nothing fits.
    """
    best = found.best
    if not set(found.question.context) - {1}:
        return "cp 1: the question asks for no other degree"
    gain = f"cp {best.cp}: {_against(found, best)}"
    return gain if best.cp == 1 else f"{gain}; {_messages(found.question, best)}"


def _against(found: Plans, best: TrainingPlan) -> str:
    """Compare with the fastest plan that decides otherwise."""
    shared = best.cp > 1
    others = [plan for plan in found.fitting if (plan.cp > 1) != shared]
    if others:
        name = "without it" if shared else f"with cp {others[0].cp}"
        longer = _longer(others[0].seconds / best.seconds)
        return f"{name} a step takes {longer} ({others[0].name})"
    short = [
        plan for plan in found.rejected if plan.reason == "memory" and (plan.cp > 1) != shared
    ]
    if not short:
        return "the batch and the model split in no other way"
    nearest = min(short, key=lambda plan: plan.nbytes)
    otherwise = "without it" if shared else "with more ranks for a sequence"
    return f"{otherwise} nothing fits; {nearest.name} {plans.why(found.question, nearest)}"


def _longer(ratio: float) -> str:
    longer = ratio - 1
    return f"{ratio:.1f} times as long" if longer > 1 else f"{units.percent(longer)} longer"


def _messages(question: Question, plan: TrainingPlan) -> str:
    """Say how the ranks share keys, and what of it they wait for."""
    run = plans.run_of(question, plan)
    training = run.training
    predicted = step.step(run)
    share = predicted.parts["context parallel"] / predicted.seconds
    waits = f"the step waits for keys and values {units.percent(share)} of the time"
    if question.program.context_way == "gathered":
        return f"nothing hides the gathering, and {waits}"
    chip = question.cluster.node.chip
    link = axes.links(question.cluster, training.layout)["cp"]
    rate = FLASH * chip.peak_flops
    needed = context_parallel.hidden_from(training, link, rate=rate)
    tokens = training.tokens_per_sequence // plan.cp
    return (
        f"a rank has {tokens:,} tokens of a sequence and {needed:,.0f} hide a step of the ring at "
        f"{link.bandwidth / units.GB:.0f} GB/s, so that {waits}"
    )
