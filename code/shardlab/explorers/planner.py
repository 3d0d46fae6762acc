"""The explorers of the planner: the best plans for a model, and what breaks one step away."""

from dataclasses import replace
from functools import cache

from shardlab.costs import memory, step, units
from shardlab.costs.facts import mixtures, models, nodes
from shardlab.costs.facts.machines import RENT, Machine
from shardlab.costs.planning import planner, plans
from shardlab.costs.planning.plans import Plans, Question, TrainingPlan
from shardlab.costs.published import studies
from shardlab.costs.units import DAY, MWh
from shardlab.figures import planner as figures
from shardlab.model.spec import TransformerSpec

from .explorer import Explorer
from .view import View

MODELS = ["Llama 3 8B", "Llama 3 70B", "Llama 3 405B", "Mixtral 8x7B"]
MACHINES = ["DGX A100", "DGX H100", "HGX B200", "PCIe box, InfiniBand NDR"]
BATCHES = {"1 million": 2**20, "4 million": 2**22, "16 million": 2**24}  # tokens
TOKENS = 1e12  # of a training, for its days, dollars and energy
SHOWN = 4  # plans
DRAGGED = {
    "tensor parallelism (tp)": "tp",
    "pipeline stages (pp)": "pp",
    "microbatch": "microbatch",
    "ZeRO": "zero",
    "chunks of a stage": "chunks",
    "recomputation": "recomputation",
}
CHOICES = (
    "tp",
    "cp",
    "pp",
    "zero",
    "sequence_parallel",
    "microbatch",
    "recomputation",
    "schedule",
    "chunks",
)


def best_plans() -> Explorer:
    """Choose a model, machine and batch: see the best plans, their steps, and why others fail."""
    return Explorer(
        best_view,
        {
            "model": MODELS,
            "machine": MACHINES,
            "gpus": [64, 512, 4096],
            "batch": list(BATCHES),
            "sequence": [8192, 32_768],
        },
        title="The best way to cut a model",
        labels={
            "machine": "Machine (8 GPUs each)",
            "gpus": "GPUs",
            "batch": "Tokens in a batch",
            "sequence": "Sequence",
        },
        units={"sequence": "tokens"},
        default={"model": "Llama 3 70B", "machine": "DGX H100", "gpus": 512, "batch": "4 million"},
    )


def best_view(*, model: str, machine: str, gpus: int, batch: str, sequence: int) -> View:
    """Show one state of the explorer of the best plans."""
    found = _search(model, machine, gpus, BATCHES[batch] // sequence, sequence)
    counts = {
        "fits": len(found.fitting),
        **{plans.REASONS[name]: count for name, count in found.reasons.items()},
    }
    header = ["plan, or reason", "seconds of a step, or number", "days", "dollars", "MWh"]
    table: list[list[object]] = [[name, count, "", "", ""] for name, count in counts.items()]
    if not found.fitting:
        figure = figures.reasons(counts, alt=f"Nothing fits; why plans for {model} fail.")
        return View(
            figure,
            f"<b>Nothing fits</b> on {gpus:,} GPUs. The nearest plan is {found.nearest}.",
            [header, *table],
        )
    best = found.different[:SHOWN]
    timed = {plan.name: step.step(plans.run_of(found.question, plan)) for plan in best}
    figure = figures.breakdown(
        {name: each.summary for name, each in timed.items()},
        alt=f"What a step of the {len(timed)} best cuts for {model} on {gpus} GPUs goes into.",
    )
    rows = [[name, units.text(each.seconds, "s"), *_bill(each)] for name, each in timed.items()]
    first = next(iter(timed.values()))
    days, dollars, energy = _bill(first)
    cost = (
        f" A trillion tokens take {days} days, {dollars} dollars at {RENT:g} per GPU hour, and "
        f"{energy} MWh for the chips alone."
    )
    return View(figure, _sentence(found, first) + cost, [header, *rows, *table])


def _bill(timed: step.Step) -> tuple[str, str, str]:
    """Return the days, dollars and MWh of a training on TOKENS, without a pause."""
    machine = Machine(cluster=timed.run.cluster)
    seconds = timed.days(TOKENS) * DAY
    bill = seconds / DAY, machine.dollars(seconds), machine.joules(seconds) / MWh
    days, dollars, energy = (float(f"{each:.2g}") for each in bill)
    return f"{days:g}", f"{dollars:,.0f}", f"{energy:,.0f}"


def _sentence(found: Plans, first: step.Step) -> str:
    """Name the best plan, what it waits for, and what keeps others out."""
    plan = found.best
    lost = found.reasons
    most = max(lost, key=lost.__getitem__, default="")
    waits = {"messages": first.communication, "other stages": first.bubble}
    waiting = " and ".join(
        f"{units.percent(share)} for {name}" for name, share in waits.items() if share > 0
    )
    sentence = f"<b>{plan.name}</b>: a step takes {units.text(plan.seconds, 's')}, "
    sentence += f"{units.percent(first.mfu)} of the peak"
    sentence += f". It waits {waiting}" if waiting else ""
    sentence += f". {len(found.fitting):,} of {found.count:,} plans fit"
    if most:
        sentence += f"; most others fail for this reason: {plans.REASONS[most]}"
    tightest = found.rejected_where(tp=plan.tp, pp=plan.pp, reason="memory")
    if tightest:
        sentence += f" (with these tp and pp the next one {plans.why(found.question, tightest[0])})"
    return sentence + "."


@cache
def _search(model: str, machine: str, gpus: int, batch: int, sequence: int) -> Plans:
    spec = _spec(model)
    # Rotary positions have no table that ends.
    spec = replace(spec, context_length=max(sequence, spec.context_length))
    cluster = nodes.cluster(machine, gpus // nodes.node(machine).gpus)
    return planner.search(
        Question(
            spec=spec,
            cluster=cluster,
            batch=batch,
            sequence=sequence,
            sequence_parallel=(True,),  # it saves memory and sends no byte more
            schedules=("1F1B", "interleaved"),
        )
    )


def _spec(model: str) -> TransformerSpec:
    """Return the sizes of one of MODELS, a mixture of experts or not."""
    if model in mixtures.PUBLISHED:
        return mixtures.published(model).spec
    return models.published(model).spec


def one_step_away() -> Explorer:
    """Choose a case and move one of its choices: see the plan beside the best, or why it fails."""
    return Explorer(
        away_view,
        {"study": list(studies.STUDIES), "choice": list(DRAGGED), "steps": [-2, -1, 0, 1, 2]},
        title="One step away from the best",
        labels={"study": "Model and GPUs", "choice": "Move", "steps": "By this many values"},
        default={"study": "a trillion on 3,072 A100", "steps": 1},
    )


def away_view(*, study: str, choice: str, steps: int) -> View:
    """Show one state of the explorer of what breaks."""
    found = _study(study)
    name = DRAGGED[choice]
    best = found.best
    moved = _moved(found, best, name, steps)
    timed = {f"the best: {best.name}": step.step(plans.run_of(found.question, best))}
    if moved is not None and moved != best and not moved.reason:
        timed[f"moved: {moved.name}"] = step.step(plans.run_of(found.question, moved))
    figure = figures.breakdown(
        {label: each.summary for label, each in timed.items()},
        alt=f"What a step of the best plan goes into, and with {choice} moved.",
    )
    rows = [
        [label, units.text(each.seconds, "s"), units.text(each.memory, "B")]
        for label, each in timed.items()
    ]
    return View(
        figure, _compared(found, choice, moved), [["plan", "a step", "memory per GPU"], *rows]
    )


@cache
def _study(name: str) -> Plans:
    return planner.search(studies.STUDIES[name].question)


def _moved(found: Plans, best: TrainingPlan, name: str, steps: int) -> TrainingPlan | None:
    """Return the plan whose choice `name` is `steps` values further, or None if there is none.

    All other choices but dp are those of `best`.
    """
    every = [plan for plan in (*found.fitting, *found.rejected) if _alike(plan, best, name)]
    values = sorted({getattr(plan, name) for plan in every}, key=_order)
    place = values.index(getattr(best, name)) + steps
    if not 0 <= place < len(values):
        return None
    return min(
        (plan for plan in every if getattr(plan, name) == values[place]),
        key=lambda plan: bool(plan.reason),
    )


def _alike(plan: TrainingPlan, best: TrainingPlan, name: str) -> bool:
    """Whether `plan` equals `best` but for `name`; a plan rejected early has made fewer choices."""
    loose = {name, "dp", "schedule" if name == "chunks" else ""}
    same = [each for each in CHOICES if each not in loose]
    if plan.reason and not plan.microbatch:
        same = [each for each in ("tp", "cp", "pp") if each not in loose]
    return all(getattr(plan, each) == getattr(best, each) for each in same)


def _order(value: int | str) -> int:
    return value if isinstance(value, int) else ("none", "selective", "full").index(value)


def _compared(found: Plans, choice: str, moved: TrainingPlan | None) -> str:
    """Say what moving a choice costs."""
    best = found.best
    if moved is None:
        return f"There is no such value of <b>{choice}</b>; move it the other way."
    if moved == best:
        why = plans.why(found.question, best)
        return f"<b>The best</b>: a step takes {units.text(best.seconds, 's')}. It {why}."
    if moved.reason:
        return f"<b>It breaks</b>: {moved.name}: {plans.why(found.question, moved)}."
    here, there = (step.step(plans.run_of(found.question, plan)) for plan in (best, moved))
    grown = {part: seconds - here.summary[part] for part, seconds in there.summary.items()}
    worst = max(grown, key=grown.__getitem__)
    longer = there.seconds / here.seconds - 1
    used = memory.total(there.run.training) - memory.total(here.run.training)
    more = f"{units.text(abs(used), 'B')} {'more' if used > 0 else 'less'} memory"
    what = f"What grows most is {worst}, by {units.text(grown[worst], 's')}"
    return f"A step takes <b>{units.percent(longer)} longer</b>, with {more}. {what}."
