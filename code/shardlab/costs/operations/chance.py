"""A run with failures at random times, played: the same losses as the formulas', one by one."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardlab.files.arguments import Positive, checked

from .interval import Losses, Reliability

KINDS = Losses._fields
LEAST = 1e-6  # goodput of a run that can be played


@dataclass(frozen=True)
@checked
class Stretch:
    """A stretch of the run that went for one thing."""

    kind: str  # one of KINDS
    start: float  # s
    end: float  # s


@checked
def play(run: Reliability, interval: Positive, useful: Positive, seed: int) -> Iterator[Stretch]:
    """Yield the stretches of a run until at least `useful` seconds of training are safe.

    Steps between two saves are one stretch, and so is what a failure takes back; it ends with it.
    Errors: ValueError as `Reliability.losses`, or where hardly an interval is ever finished.
    """
    if run.goodput(interval) < LEAST:
        raise ValueError(
            f"with a failure every {run.between:g} s, {interval:g} s of training are never saved"
        )
    return _stretches(run, interval, useful, random.Random(seed))


def _stretches(
    run: Reliability, interval: float, useful: float, rng: random.Random
) -> Iterator[Stretch]:
    now, left = 0.0, useful
    while True:
        failure = now + rng.expovariate(1 / run.between)
        while left > 0 and now + interval + run.save + run.lag <= failure:
            yield Stretch("useful", now, now + interval)
            yield Stretch("saving", now + interval, now + interval + run.save)
            now += interval + run.save
            left -= interval
        if left <= 0:
            return
        yield Stretch("repeating", now, failure)
        now = failure
        while (failed := rng.expovariate(1 / run.between)) < run.restart:  # fails again
            yield Stretch("restarting", now, now + failed)
            now += failed
        yield Stretch("restarting", now, now + run.restart)
        now += run.restart


@checked
def shares(stretches: Sequence[Stretch]) -> Losses:
    """Return where the time of a played run went, as shares of all of it."""
    seconds = dict.fromkeys(KINDS, 0.0)
    for stretch in stretches:
        if stretch.kind not in seconds:
            raise ValueError(f"stretches={stretch!r}: a kind is one of {', '.join(KINDS)}")
        seconds[stretch.kind] += stretch.end - stretch.start
    total = sum(seconds.values())
    if not total:
        raise ValueError("a run without a stretch has no shares")
    return Losses(*(seconds[kind] / total for kind in KINDS))
