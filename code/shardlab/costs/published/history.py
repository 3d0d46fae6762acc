"""How large published language models were, by date.

Parameters are counted from the shapes of their layers where `models` or `mixtures` list them;
otherwise they are the number that the authors print.
"""

from dataclasses import dataclass

from shardlab.files.arguments import Positive, checked

from ..facts import mixtures, models
from .rows import rows


@checked
@dataclass(frozen=True, kw_only=True)
class Size:
    """One model and its date of publication."""

    name: str
    date: str  # year-month
    parameters: Positive
    mixture: bool = False  # of experts: a token uses a small part of them
    counted: bool = False  # from the shapes of its layers; else as printed
    source: str


_COUNTED = ("GPT-2 XL", "GPT-3 175B", "Llama 1 65B", "Llama 2 70B", "Llama 3 70B", "Llama 3 405B")


def sizes() -> list[Size]:
    """List every model of the chart, oldest first."""
    found = list(rows("sizes", Size))
    for dense in map(models.published, _COUNTED):
        count = models.num_parameters(dense.spec)
        found.append(_counted(dense.name, dense.date, count, dense.source, mixture=False))
    for one in mixtures.PUBLISHED.values():
        count = sum(mixtures.parameters(one.spec).values())
        found.append(_counted(one.name, one.date, count, one.source, mixture=True))
    return sorted(found, key=lambda size: (size.date, size.name))


def _counted(name: str, date: str, count: int, source: str, *, mixture: bool) -> Size:
    return Size(
        name=name, date=date, parameters=count, mixture=mixture, counted=True, source=source
    )
