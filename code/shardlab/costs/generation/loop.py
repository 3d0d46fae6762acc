"""A step of both engines, in turn on the same GPUs or side by side, and how stale its texts are.

To be apart and asynchronous wins what was idle: slots whose texts had ended while the longest was
written, and the switch between the engines. Sources: AReaL (https://arxiv.org/abs/2505.24298) for
the staleness, verl for both placements (https://verl.readthedocs.io/en/latest/advance/one_step_off.html).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace

from shardlab.files.arguments import Count, Positive, Share, checked


@checked
def last_steps(lengths: Sequence[Count], slots: Count) -> list[int]:
    """Return the step of decoding after which each slot of a generator stays empty, in rising order.

    lengths: tokens of the texts, in the order in which they start; a text that ends leaves its slot
    to the next. Errors: ValueError for no texts.
    """
    if not lengths:
        raise ValueError("lengths=() are no texts; give the tokens of at least one")
    last = [0] * slots
    for length in lengths:
        heapreplace(last, last[0] + length)
    return sorted(last)


@checked
def full_slots(lengths: Sequence[Count], slots: Count) -> float:
    """Return the share of a generator's slots that write a token, until the last text has ended.

    Slots are filled as in `last_steps`. A step takes as long with empty slots, as where reading
    weights bounds it.
    """
    return sum(lengths) / (slots * last_steps(lengths, slots)[-1])


@checked
def staleness(unfinished: float, texts: Count) -> float:
    """Return the steps between the weights that began a text and those that train on it, on average.

    unfinished: texts that are begun and not trained on when a step ends, in slots and waiting;
    texts: of one step. By Little's law (1961, doi:10.1287/opre.9.3.383), whatever their lengths: 0
    where a step waits for its texts, 1 for one step off, where one batch is on its way.
    """
    return unfinished / texts


@dataclass(frozen=True, kw_only=True)
@checked
class EngineLoop:
    """One step of reinforcement learning on `gpus` GPUs."""

    generating: Positive  # GPU-seconds in which full slots write the texts of a step
    training: Positive  # GPU-seconds of everything that the trainer does with them
    gpus: Count
    full: Share = 1.0  # the share of slots that are full if a step's texts wait for the last one
    switch: float = 0.0  # seconds in which the same GPUs change engines, hand-over included
    hand_over: float = 0.0  # seconds in which generators that are apart take new weights

    @property
    def same_gpus(self) -> float:
        """Seconds of a step on the same GPUs: both engines after each other, and the switch."""
        return (self.generating / self.full + self.training) / self.gpus + self.switch

    def lanes(self, generators: Count) -> dict[str, float]:
        """Return the seconds for which each engine is busy if `generators` GPUs do nothing else.

        A slot goes on with a text of the next step. Errors: ValueError unless both have a GPU.
        """
        if generators >= self.gpus:
            raise ValueError(f"generators={generators} leave no GPU of gpus={self.gpus} to train")
        return {
            "generator": self.generating / generators + self.hand_over,
            "trainer": self.training / (self.gpus - generators),
        }

    def apart(self, generators: Count) -> float:
        """Return the least seconds of a step apart: of the slower engine."""
        return max(self.lanes(generators).values())

    @property
    def best(self) -> int:
        """The GPUs that generate in the shortest asynchronous step; an error where there is one."""
        return min(range(1, max(2, self.gpus)), key=self.apart)
