"""The answer as text: a table of plans, the failures, and the options of the chosen plan."""

import itertools
from collections.abc import Iterator, Sequence
from textwrap import indent

from shardlab.costs import units
from shardlab.costs.planning.plans import REASONS
from shardlab.costs.program import MARGIN

from .answer import Answer, Row
from .arguments import TOKENS_PER_PARAMETER

HEADER = ("", "memory", "step", "behind", "tokens/s", "MFU", "days", "dollars", "MWh", "plan")


def lines(answer: Answer) -> Iterator[str]:
    """Yield the lines of the answer."""
    yield from _question(answer)
    yield ""
    if answer.rows:
        yield from _table([HEADER, *map(_cells, itertools.count(1), answer.rows)])
        yield ""
        yield from _costs(answer)
    else:
        yield f"Nothing fits. The nearest plan: {answer.found.nearest}"
    yield ""
    yield from _failures(answer)
    yield from _options(answer)


def _question(answer: Answer) -> Iterator[str]:
    request = answer.request
    question = request.question
    model = request.model
    batch = question.batch * question.length
    yield f"{model.architecture}: {model.num_parameters:,} parameters"
    if model.ignored:
        yield f"WRONG COUNT if one of these changes a size: {', '.join(model.ignored)}"
    machine, chip = question.cluster.name, question.cluster.node.chip.name
    machine += f", {chip}" * (chip not in machine)
    yield f"{question.cluster.gpus:,} GPUs: {machine}"
    yield f"{question.batch:,} sequences of {question.length:,} tokens in a step: {batch:,} tokens"
    yield f"{question.recipe.name}; a program like {question.program.name}"
    for note in request.notes:
        yield f"Note: {note}"


def _cells(number: int, row: Row) -> tuple[str, ...]:
    return (
        str(number),
        units.text(row.memory_bytes, "B"),
        units.text(row.step_seconds, "s"),
        units.percent(row.behind),
        f"{row.tokens_per_second:,.0f}",
        units.percent(row.mfu),
        _three_digits(row.days),
        f"{row.dollars:,.0f}",
        _three_digits(row.megawatt_hours),
        row.plan.name,
    )


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"  # noqa: PLR2004


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns: numbers below each other, the plan's name at the end."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for *numbers, name in rows:
        cells = [text.rjust(width) for text, width in zip(numbers, widths, strict=False)]
        yield "  ".join((*cells, name))


def _costs(answer: Answer) -> Iterator[str]:
    request = answer.request
    machine = request.machine
    usual = request.tokens == TOKENS_PER_PARAMETER * request.model.num_parameters
    why = f", {TOKENS_PER_PARAMETER} for each parameter (--tokens)" if usual else ""
    margin, free = units.percent(MARGIN), units.percent(request.question.headroom)
    yield f"Memory counts overhead and a margin of {margin}; {free} more stays free (--headroom)."
    yield "The first plan is least behind the fastest, on average, if links and GPUs vary."
    yield f"Days, dollars and MWh are for {request.tokens:,} tokens{why}, without a pause,"
    yield f"at {machine.dollars_per_gpu_hour:g} dollars for a GPU and an hour (--price)"
    yield f"and {machine.watts:g} W for a GPU (--watts) times {machine.overhead:g} (--overhead)."


def _failures(answer: Answer) -> Iterator[str]:
    fitting = len(answer.found.fitting)
    yield f"{answer.found.count:,} plans were tried, and {fitting:,} fit. The others:"
    for reason, (count, example) in answer.failures.items():
        yield f"  {count:,} x {REASONS[reason]}; {example}"


def _options(answer: Answer) -> Iterator[str]:
    for each in answer.flags:
        yield ""
        yield f"{each.program}, plan {answer.request.chosen}"
        if each.refusal:
            yield f"  cannot run it: {each.refusal}"
            continue
        yield indent(each.text, "  ")
        yield from (f"  # {remark}" for remark in each.remarks)
