"""Exercise: the samples of a step, for any number of ranks and without any state."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, describe, on_each_rank

EPOCHS = 3
SEED = 5
MANY = 20  # samples: too many for two shuffled orders to have the same steps by chance
Part = list[int] | str  # of a batch; what came instead, in words
Steps = list[list[Part]]  # for each step the part of every rank


class Given(NamedTuple):
    """What there is to draw from."""

    num_samples: int
    batch: int

    def __str__(self) -> str:
        return f"{self.num_samples} samples, batches of {self.batch}"

    @property
    def batches(self) -> int:
        """Whole batches in an epoch."""
        return self.num_samples // self.batch

    def epochs(self, steps: Steps) -> list[Steps]:
        """Cut the steps into epochs."""
        starts = range(0, len(steps), self.batches)
        return [steps[start : start + self.batches] for start in starts]


@dataclass(frozen=True, kw_only=True)
class Streams:
    """What the function has drawn in all steps."""

    by_ranks: dict[int, Steps]  # number of ranks -> its steps
    restarted: Steps  # of one rank, each step drawn as if the run had just begun there
    reseeded: Steps  # of one rank, with another seed

    @property
    def alone(self) -> Steps:
        """The steps of one rank."""
        return self.by_ranks[1]


def attempt(
    function: Callable[..., Any], group: comm.Group | None, case: Case, rank: int
) -> Streams:
    """Draw all steps with each number of ranks; then again backwards, and with another seed."""
    given: Given = case.given
    numbers = [ranks for ranks in range(1, case.world_size + 1) if given.batch % ranks == 0]
    steps = range(EPOCHS * given.batches)

    def draw(step: int, ranks: int, seed: int = SEED) -> list[Part]:
        return [_part(function(step, rank, ranks, *given, seed)) for rank in range(ranks)]

    by_ranks = {ranks: [draw(step, ranks) for step in steps] for ranks in numbers}
    torch.manual_seed(SEED)
    random.seed(SEED)
    backwards = [draw(step, 1) for step in reversed(steps)]
    reseeded = [draw(step, 1, SEED + 100) for step in steps]
    return Streams(by_ranks=by_ranks, restarted=backwards[::-1], reseeded=reseeded)


def _part(found: Any) -> Part:
    try:
        return [int(index) for index in found]
    except (TypeError, ValueError):
        return describe(found)


def joined(parts: Any) -> Part:
    """Join the parts of a batch in rank order; return what is no list of indices as it is."""
    for part in parts:
        if isinstance(part, str):
            return part
    return [index for part in parts for index in part]


def _joined_steps(steps: Steps) -> Part:
    return joined([joined(parts) for parts in steps])


@on_each_rank
def takes_each_once(case: Case, rank: int, seen: Streams) -> Finding | None:
    """Ask that every epoch has as many different samples as fill its batches."""
    given: Given = case.given
    wanted = given.batches * given.batch
    for number, epoch in enumerate(given.epochs(seen.alone)):
        taken = _joined_steps(epoch)
        if isinstance(taken, str) or not {*taken} <= {*range(given.num_samples)}:
            expected = f"indices from 0 to {given.num_samples - 1}"
            return Finding(_of_epoch(given, number), expected, f"{taken}")
        if len(taken) != wanted or len({*taken}) != wanted:
            expected = f"{wanted} different samples in {given.batches} batches"
            return Finding(_of_epoch(given, number), expected, f"{taken}")
    return None


def _of_epoch(given: Given, number: int) -> str:
    return f"{given}, 1 rank, epoch {number}"


@on_each_rank
def shuffles(case: Case, rank: int, seen: Streams) -> Finding | None:
    """Ask that no two epochs have the same order, nor the first ones of two seeds.

    Of many samples no order may be another one that begins elsewhere, either.
    """
    given: Given = case.given
    orders = [_joined_steps(epoch) for epoch in given.epochs(seen.alone)]
    kinds = [_kind(order, given) for order in orders]
    for number, kind in enumerate(kinds):
        if kind in kinds[:number]:
            first = kinds.index(kind)
            expected = f"another order than in epoch {first}"
            got = f"{orders[number]}; in epoch {first} {orders[first]}"
            return Finding(_of_epoch(given, number), expected, got)
    reseeded = _joined_steps(given.epochs(seen.reseeded)[0])
    if kinds[0] == _kind(reseeded, given):
        return Finding(f"{given}, two seeds", "two orders", f"{orders[0]} and {reseeded}")
    return None


def _kind(order: Part, given: Given) -> Part:
    """Return an order, or of many samples how far each is from the one before."""
    if isinstance(order, str) or given.num_samples < MANY:
        return order
    return [(b - a) % given.num_samples for a, b in pairwise(order)]


@on_each_rank
def is_one_batch(case: Case, rank: int, seen: Streams) -> Finding | None:
    """Ask that the parts of several ranks have one size, and make the batch of one rank."""
    given: Given = case.given
    for ranks, steps in seen.by_ranks.items():
        size = given.batch // ranks
        for step, (parts, alone) in enumerate(zip(steps, seen.alone, strict=True)):
            sizes = {len(part) for part in parts}
            is_same = joined(parts) == joined(alone)
            if is_same and sizes == {size} and not isinstance(parts[0], str):
                continue
            shown = ", ".join(f"{part} on rank {rank}" for rank, part in enumerate(parts))
            expected = f"{joined(alone)}, as 1 rank has it, {size} on each rank"
            return Finding(f"{given}, step {step} on {ranks} ranks", expected, shown)
    return None


@Dependent
@on_each_rank
def needs_no_state(case: Case, rank: int, seen: Streams) -> Finding | None:
    """Ask that a step is the same when the steps before it were not drawn."""
    for step, (first, again) in enumerate(zip(seen.alone, seen.restarted, strict=True)):
        if first != again:
            given = f"{case.given}, 1 rank, restarted before step {step}"
            expected = f"{joined(first)}, as without a restart"
            return Finding(given, expected, f"{joined(again)}")
    return None


def cases() -> Iterator[Case]:
    """List numbers of ranks that divide the batch, and samples that do not fill the last one."""
    for ranks, num_samples, batch in ((1, 9, 2), (2, 8, 2), (2, 11, 4), (4, 21, 4), (6, 31, 12)):
        given = Given(num_samples, batch)
        yield Case(world_size=ranks, title=str(given), given=given)


EXERCISE = Exercise(
    name="operations.stream",
    compare="shardlab.ranks.data_parallel.sampler.epoch",
    points=3,
    pure=True,
    cases=list(cases()),
    attempt=attempt,
    properties={
        "an epoch takes each sample at most once, in whole batches": takes_each_once,
        "every epoch and every seed has an order of its own": shuffles,
        "the batch of a step is the same for every number of ranks": is_one_batch,
        "after a restart the batches are the same": needs_no_state,
    },
)
