"""The explorer of the planner: the best plans for a model, and why others fail."""

from dataclasses import replace
from functools import cache

from shardlab.costs import step, units
from shardlab.costs.facts import mixtures, models, nodes
from shardlab.costs.facts.machines import RENT, Machine
from shardlab.costs.planning import planner, plans
from shardlab.costs.planning.plans import Plans, Question
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
MOST_CHUNKS = 8  # our sum charges too little for more


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
            most_chunks=MOST_CHUNKS,
        )
    )


def _spec(model: str) -> TransformerSpec:
    """Return the sizes of one of MODELS, a mixture of experts or not."""
    if model in mixtures.PUBLISHED:
        return mixtures.published(model).spec
    return models.published(model).spec
