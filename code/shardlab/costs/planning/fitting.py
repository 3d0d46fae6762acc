"""Whether a replica fits on its chip, and the smallest change after which one does: said in words."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .. import data_parallel, units
from ..data_parallel import Run

CUT = {1: "the optimizer states", 2: "optimizer states and gradients", 3: "all states"}
MOST_RANKS = 2**16  # beyond any machine there is


@dataclass(frozen=True, kw_only=True)
class Change:
    """A way to fit: so many ranks, this ZeRO stage, so many sequences computed at a time."""

    ranks: int
    zero: int
    at_a_time: int
    nbytes: float  # what a rank then holds


def smallest_change(run: Run) -> Change | None:
    """The first way that fits: smaller pieces of the batch before ZeRO, a lower stage before a higher, then more ranks.

    A run that fits needs no change: its own ranks, stage 0 and batch. None where one sequence is too much on any number
    of ranks.
    """
    return next((way for way in _ways(run) if way.nbytes <= run.chip.memory), None)


def verdict(run: Run) -> str:
    """One sentence: it fits, or what does not, and what would."""
    held = data_parallel.memory_per_rank(run)
    total, capacity = units.text(sum(held.values()), "B"), units.text(run.chip.memory, "B")
    if sum(held.values()) <= run.chip.memory:
        return f"fits: {total} of {capacity}"
    activations = units.text(held["activations"], "B")
    states = units.text(sum(held.values()) - held["activations"], "B")
    return f"does not fit: {states} of states and {activations} of activations in {capacity}; {_way_out(run)}"


def _way_out(run: Run) -> str:
    way = smallest_change(run)
    if way is None:
        return "no cut of the states helps, the layers themselves must be cut"
    steps = []
    if way.zero:
        steps.append(f"cutting {CUT[way.zero]} over the ranks (ZeRO-{way.zero})")
    if way.at_a_time < run.batch_per_rank // run.num_microbatches:
        steps.append(f"computing {way.at_a_time} sequence{'s' * (way.at_a_time > 1)} at a time")
    where = f"on {way.ranks} ranks, " if way.ranks > run.ranks else ""
    return f"{where}{' and '.join(steps)} would fit: {units.text(way.nbytes, 'B')}"


def _ways(run: Run) -> Iterator[Change]:
    batch = run.batch_per_rank
    pieces = [n for n in range(run.num_microbatches, batch + 1) if batch % n == 0]  # fewest, so largest, first
    ranks = run.ranks
    while ranks <= MOST_RANKS:
        for zero in range(4):
            for count in pieces:
                changed = replace(run, ranks=ranks, num_microbatches=count)
                held = data_parallel.memory_per_rank(changed, zero=zero)
                yield Change(ranks=ranks, zero=zero, at_a_time=batch // count, nbytes=sum(held.values()))
        ranks *= 2
