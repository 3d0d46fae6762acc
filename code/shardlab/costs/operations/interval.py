"""How often to save: a save costs time, and a failure throws away what was not yet saved.

Failures come at random and without memory: after a day without one, the next is as near as it was
before (a Poisson process). That leaves out faults that come together (a rack, a switch) and new
parts that fail early. Under it the formulas are exact; with lag = 0 they are those of Daly 2006,
https://doi.org/10.1016/j.future.2004.11.016.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from shardlab.files.arguments import Count, Positive, checked

from ..units import HOUR

STEPS = 200  # of a bisection: more than a float has bits


class Losses(NamedTuple):
    """Where the time of a run goes, as shares of all of it; they add up to 1."""

    useful: float  # steps that a later failure does not take back: the goodput
    saving: float  # training stands still for a save
    repeating: float  # steps and saves that a failure took back
    restarting: float  # from a failure to the next step


@dataclass(frozen=True, kw_only=True)
@checked
class Reliability:
    """What a run of many GPUs suffers, in seconds."""

    between: Positive  # from one failure to the next, on average
    save: float  # for which a save holds up training
    lag: float = 0.0  # after it until what was saved is safe, while training goes on
    restart: float = 0.0  # to notice a failure, replace what failed, start and load

    def losses(self, interval: Positive) -> Losses:
        """Return where the time goes, with `interval` seconds of training between two saves.

        Errors: ValueError where a save would begin before the last one is safe.
        """
        if interval < self.lag:
            raise ValueError(
                f"{interval:g} s after a save the next one begins, but the last is safe only after "
                f"{self.lag:g} s: train at least that long between two saves"
            )
        between = self.between
        once = math.exp(-(self.lag + self.restart) / between)  # lost once for each failure
        exponent = (interval + self.save) / between
        useful = once * interval * math.exp(-exponent) / (-math.expm1(-exponent) * between)
        saving = useful * self.save / interval
        restarting = -math.expm1(-self.restart / between)
        return Losses(useful, saving, 1 - useful - saving - restarting, restarting)

    def goodput(self, interval: Positive) -> float:
        """Return the share of the time whose steps count; errors as `losses`."""
        return self.losses(interval).useful

    def best_interval(self) -> float:
        """Return the seconds of training between two saves that lose least.

        Neither lag nor restart moves it: each failure costs them once, however often one saves. A
        save that is not yet safe holds up the next one, though. Errors: ValueError where saves take
        no time; save after every step then.
        """
        if not self.save:
            raise ValueError("save=0: where a save takes no time, save after every step")
        low, high = 0.0, 1.0  # of interval / between, where 1 - x = exp(-x - save / between)
        for _ in range(STEPS):
            middle = (low + high) / 2
            if -math.expm1(-middle - self.save / self.between) > middle:
                low = middle
            else:
                high = middle
        return max(low * self.between, self.lag)

    def young(self) -> float:
        """Return the best interval where saves are short beside the time between failures.

        It is the first term of `best_interval`: Young 1974, https://doi.org/10.1145/361147.361115.
        """
        return math.sqrt(2 * self.save * self.between)


@checked
def between_failures(gpus: Count, gpu_hours: Positive) -> float:
    """Return the seconds between two failures of `gpus` GPUs, one of which fails in `gpu_hours`.

    All that a GPU needs counts with it: its node, its links, its share of the software.
    """
    return gpu_hours * HOUR / gpus


@checked
def write_rate(parameters: Count, seconds: Positive, bytes_per_parameter: Positive = 12) -> float:
    """Return the bytes/s that a file system must take for a save within `seconds`.

    12 bytes are the parameter and both averages of AdamW in fp32; a copy in bf16 can be made anew.
    """
    return parameters * bytes_per_parameter / seconds
