"""Repairs of a line that the rules refuse: redistributions of its operands.

A redistribution never changes a tensor, only who holds what of it. A line that the rules accept
after one therefore computes what one process would, in forward and in backward.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from shardlab.files.arguments import Count, checked

from .redistribution import Redistribution, possible, redistribute, sent_bytes
from .states import Mesh, Sharding, Sizes

Rule = Callable[[Sequence[Sharding]], Sharding]
Step = tuple[int, Redistribution]  # which operand, counted from 0, and how


@dataclass(frozen=True)
@checked
class Repair:
    """Redistributions of operands, before a line that is refused, with which it is accepted."""

    steps: tuple[Step, ...]
    nbytes: float  # that a rank sends for them, in forward and backward together

    def __str__(self) -> str:
        parts = [f"operand {place + 1}: {change}" for place, change in self.steps]
        return f"{' and '.join(parts)} ({self.nbytes:.0f} bytes)"


@checked
def repairs(
    rule: Rule, operands: Sequence[Sharding], sizes: Sizes, mesh: Mesh, itemsize: Count = 2
) -> list[Repair]:
    """Find what makes `rule` accept the operands, with fewest bytes first.

    Tries every redistribution; I -> R -> P, which counts a copy on one rank, where I -> R does not;
    and two of them, one after the other, where no single one does.
    """
    found: list[Repair] = []
    single = list(_single(operands, mesh))
    once = [
        ((place, change), (place, Redistribution(change.axis, "R", "P")))
        for ((place, change),) in single
        if change.target == "R" and change.source == "I"
    ]
    double = (
        (one, other)
        for (one,) in single
        for (other,) in _single(_after(operands, one), mesh)
        if one[0] <= other[0]  # operands may be changed in any order
    )
    for tries in ([*single, *once], double):
        for steps in tries:
            if any(repair.steps == steps[:1] for repair in found):
                continue
            changed, sent = list(operands), 0.0
            try:
                for place, change in steps:
                    sent += sum(sent_bytes(changed[place], change, sizes, mesh, itemsize))
                    changed = _after(changed, (place, change))
                rule(changed)
            except ValueError:
                continue
            found.append(Repair(steps, sent))
        if found:
            break
    return sorted(found, key=lambda repair: repair.nbytes)


def _single(operands: Sequence[Sharding], mesh: Mesh) -> Iterator[tuple[Step]]:
    for (place, operand), axis in product(enumerate(operands), mesh):
        for change in possible(operand, axis):
            yield ((place, change),)


def _after(operands: Sequence[Sharding], step: Step) -> list[Sharding]:
    place, change = step
    changed = list(operands)
    changed[place] = redistribute(changed[place], change)
    return changed
