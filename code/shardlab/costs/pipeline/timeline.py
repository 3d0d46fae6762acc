"""A pipeline schedule on a clock: when each stage does what, how long it waits, what it holds.

"The bubble" is measured in three ways. With p equal stages and m microbatches, GPipe and 1F1B have

    waiting / computing              (p - 1) / m            Narayanan et al. 2021, section 2.2.1
    waiting / (waiting + computing)  (p - 1) / (m + p - 1)  Huang et al. 2019, section 2.3

(https://arxiv.org/abs/2104.04473, https://arxiv.org/abs/1811.06965). Qi et al. 2023
(https://arxiv.org/abs/2401.10241) count only the waiting between a stage's first action and its
last, because they let a stage begin the next batch before others have finished this one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from shardlab import schedules
from shardlab.files.arguments import Exact, checked, within
from shardlab.schedules import Action, Schedule
from shardlab.trace import Event


@dataclass(frozen=True)
@checked
class Timeline:
    """A schedule with the start and end of each action, in seconds.

    Lists have one entry for each stage.
    """

    schedule: Schedule
    spans: list[list[tuple[Exact, Exact]]]

    def __post_init__(self) -> None:
        if [*map(len, self.spans)] != [*map(len, self.schedule.orders)]:
            raise ValueError("spans must have a start and an end for each action of the schedule")
        if any(start > end for row in self.spans for start, end in row):
            raise ValueError("spans must not end before they start")

    @property
    def makespan(self) -> Any:
        """Seconds from the first action of all stages to the last."""
        return max(row[-1][1] for row in self.spans) - min(row[0][0] for row in self.spans)

    @property
    def busy(self) -> list[Any]:
        """Seconds for which each stage computes; joined actions share their time."""
        return [sum(end - start for start, end in dict.fromkeys(row)) for row in self.spans]

    @property
    def waiting(self) -> list[Any]:
        """Seconds of the makespan for which each stage does not compute."""
        makespan = self.makespan
        return [makespan - busy for busy in self.busy]

    @property
    def waiting_inside(self) -> list[Any]:
        """Seconds for which each stage does not compute between its own first and last action."""
        return [
            row[-1][1] - row[0][0] - busy for row, busy in zip(self.spans, self.busy, strict=True)
        ]

    @property
    def bubble_of_ideal(self) -> Any:
        """Waiting over computing."""
        return sum(self.waiting) / sum(self.busy)

    @property
    def bubble_of_total(self) -> Any:
        """Waiting over all time."""
        return sum(self.waiting) / (self.makespan * self.schedule.num_stages)

    def held(
        self, stage: int, *, activation: Exact | Sequence[Exact] = 1, kept: Exact = 1
    ) -> list[tuple[Any, Any]]:
        """List the activations on a stage as (time, amount), one entry for each change.

        activation: what a forward leaves, in any unit; or a list with an entry for each part of the
        model. kept: the share of it that I leaves for W. Qi et al. 2023 write M_B and M_W for the
        whole and for that share.
        """
        within("stage", stage, self.schedule.num_stages)
        parts = self.schedule.parts[stage]
        unequal = isinstance(activation, Sequence)
        if unequal and len(activation) != self.schedule.num_parts:
            raise ValueError(
                f"activation has {len(activation)} entries; give {self.schedule.num_parts}, "
                "one for each part of the model"
            )
        sizes = [activation[part] if unequal else activation for part in parts]
        shares = {"F": 1, "B": -1, "I": kept - 1, "W": -kept}
        steps: list[tuple[Any, Any]] = []
        now: Any = 0
        for action, (start, end) in zip(
            self.schedule.orders[stage], self.spans[stage], strict=True
        ):
            now += sizes[action.chunk] * shares[action.kind]
            at = start if action.kind == "F" else end
            if steps and steps[-1][0] == at:
                steps.pop()  # freed memory is reused at once
            steps.append((at, now))
        return steps[:1] + [after for before, after in pairwise(steps) if before[1] != after[1]]

    def peaks(self, *, activation: Exact | Sequence[Exact] = 1, kept: Exact = 1) -> list[Any]:
        """Return the most that each stage holds; for `activation` and `kept` see `held`."""
        stages = range(self.schedule.num_stages)
        held = [self.held(stage, activation=activation, kept=kept) for stage in stages]
        return [max(amount for _, amount in steps) for steps in held]

    def events(self) -> list[Event]:
        """List the events as ranks record them: stage s is rank s, an action's name its op."""
        return [
            Event(stage, "compute", str(action), (stage,), 0, float(start), float(end))
            for stage, (order, row) in enumerate(zip(self.schedule.orders, self.spans, strict=True))
            for action, (start, end) in zip(order, row, strict=True)
        ]


@checked
def play(
    schedule: Schedule,
    durations: Mapping[str, Exact] | Sequence[Mapping[str, Exact]] = schedules.TICKS,
    *,
    latency: Exact = 0,
    overlap: bool = True,
) -> Timeline:
    """Play a schedule in which every action starts as soon as it can.

        durations  seconds of one action: {"F": 1, "B": 2} or {"F": 1, "I": 1, "W": 1}, and "F&B"
                   for joined actions; or a list of such, one for each part of the model, in its
                   order. Without "B", B is I + W.
        latency    seconds until a message between two stages arrives
        overlap    a stage computes while its messages travel; False: it waits for their arrival

    Errors: ValueError for a deadlock, or a missing duration.
    """
    spans = schedules.times(schedule, durations, latency=latency, overlap=overlap)
    return Timeline(schedule, spans)


@checked
def sent_bytes(schedule: Schedule, nbytes: float | Sequence[float]) -> list[float]:
    """Count the bytes that each stage sends in one batch: activations forward, gradients backward.

    nbytes: of one message; or a list with an entry for each microbatch.
    """
    schedule.check_actions()
    sizes = nbytes if isinstance(nbytes, Sequence) else [nbytes] * schedule.num_microbatches
    if len(sizes) != schedule.num_microbatches:
        raise ValueError(
            f"nbytes has {len(sizes)} entries; give {schedule.num_microbatches}, one for each "
            "microbatch"
        )
    return [
        sum(sizes[action.microbatch] for action in order if _leaves(schedule, stage, action))
        for stage, order in enumerate(schedule.orders)
    ]


def _leaves(schedule: Schedule, stage: int, action: Action) -> bool:
    target = schedule.target(stage, action)
    return target is not None and schedule.homes[target][0] != stage
