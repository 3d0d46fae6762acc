"""When every action of a schedule starts and ends, if each starts as soon as it can."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import Exact, checked

from .action import Action, Schedule
from .instructions import blocks
from .rules import problems

# Durations of one action of each kind. A missing B takes I + W, a missing F&B (a joined pair) F +
# B.
Durations = Mapping[str, Exact]
Times = list[list[tuple[Any, Any]]]  # [stage][action] -> (start, end)
TICKS: Durations = {"F": 1, "B": 1, "I": 1, "W": 1}


@checked
def times(
    schedule: Schedule,
    durations: Durations | Sequence[Durations] = TICKS,
    *,
    latency: Exact = 0,
    overlap: bool = True,
) -> Times:
    """Compute start and end of every action, exactly for exact numbers such as int and Fraction.

    durations  of an action of each kind; or a list of them, one for each part of the model
    latency    how long after its action a message arrives
    overlap    a stage computes while its messages travel; False: it waits until they have arrived

    Linear in the number of actions. Errors: ValueError for a deadlock or a missing duration.
    """
    schedule.check_actions()
    clock = _Clock(schedule, _complete(schedule, durations), latency, overlap)
    while clock.ready:
        clock.advance(clock.ready.pop())
    rows = zip(clock.spans, schedule.orders, strict=True)
    if any(len(row) < len(order) for row, order in rows):
        raise ValueError(f"{schedule.name} cannot run: {'; '.join(problems(schedule))}")
    return clock.spans


@dataclass(frozen=True, kw_only=True)
class _Route:
    """Where an action's input comes from and where its result goes, for microbatch 0.

    Inputs are named by numbers, in which microbatches are consecutive: add the microbatch.
    """

    part: int  # the part that computes
    needs: int | None  # the input that the action waits for
    feeds: int | None  # the input that its result becomes, of another part
    peer: int  # the stage of that other part


class _Clock:
    """A simulated pipeline: a stage runs until an input is missing, and again when it arrives."""

    def __init__(
        self, schedule: Schedule, durations: list[Durations], latency: Any, overlap: bool
    ) -> None:
        num_stages = schedule.num_stages
        self.schedule = schedule
        self.durations = durations
        self.latency = latency
        self.overlap = overlap
        self.blocks = [blocks(order) for order in schedule.orders]
        self.next_block = [0] * num_stages
        self.free: list[Any] = [0] * num_stages  # when a stage has ended its last block
        self.spans: Times = [[] for _ in schedule.orders]
        self.arrived: dict[int, Any] = {}  # input -> when
        self.waiting: dict[int, int] = {}  # input -> the stage that waits for it
        self.ready = list(range(num_stages))
        self.routes = [self._routes(stage) for stage in range(num_stages)]

    def _routes(self, stage: int) -> dict[tuple[str, int], _Route]:
        """Return the route of every (kind, chunk) that a stage can compute."""
        chunks = range(self.schedule.num_chunks)
        actions = [Action(kind, 0, chunk) for kind in "FBIW" for chunk in chunks]
        return {(action.kind, action.chunk): self._route(stage, action) for action in actions}

    def _route(self, stage: int, action: Action) -> _Route:
        part = self.schedule.parts[stage][action.chunk]
        source = self.schedule.source(stage, action)
        target = self.schedule.target(stage, action)
        needs = None if source is None else self._number(part, action)
        if target is None:
            return _Route(part=part, needs=needs, feeds=None, peer=stage)
        peer, _ = self.schedule.homes[target]
        return _Route(part=part, needs=needs, feeds=self._number(target, action), peer=peer)

    def _number(self, part: int, action: Action) -> int:
        """Pack the input of `part` in the direction of `action` into one integer.

        The number is (2 * part + forward) * num_microbatches, to which microbatch m adds m. So no
        two inputs share a number, and a look-up hashes one int instead of a tuple.
        """
        forward = action.kind == "F"
        return (2 * part + forward) * self.schedule.num_microbatches

    def advance(self, stage: int) -> None:
        """Run the stage's blocks until an input is missing."""
        blocks = self.blocks[stage]
        while self.next_block[stage] < len(blocks):
            block = blocks[self.next_block[stage]]
            start = self._start(stage, block)
            if start is None:
                return
            self._run(stage, block, start)
            self.next_block[stage] += 1

    def _start(self, stage: int, block: tuple[Action, ...]) -> Any:
        """Return when a block can start; None, and wait, while one of its inputs is missing."""
        start = self.free[stage]
        for kind, microbatch, chunk, _ in block:
            needs = self.routes[stage][kind, chunk].needs
            if needs is None:
                continue
            number = needs + microbatch
            if number not in self.arrived:
                self.waiting[number] = stage
                return None
            start = max(start, self.arrived[number])
        return start

    def _run(self, stage: int, block: tuple[Action, ...], start: Any) -> None:
        """Compute a block from `start`, and send its results."""
        routes = self.routes[stage]
        first = block[0]
        duration = self.durations[routes[first.kind, first.chunk].part]
        end = start + duration[first.kind if len(block) == 1 else "F&B"]
        self.free[stage] = end
        for kind, microbatch, chunk, _ in block:
            self.spans[stage].append((start, end))
            route = routes[kind, chunk]
            if route.feeds is not None:
                self._deliver(stage, route.peer, route.feeds + microbatch)

    def _deliver(self, stage: int, peer: int, number: int) -> None:
        """Send the input `number` from `stage` to `peer`."""
        arrival = self.free[stage]
        if peer != stage:
            arrival += self.latency
            if not self.overlap:
                self.free[stage] = arrival
        self.arrived[number] = arrival
        if number in self.waiting:
            self.ready.append(self.waiting.pop(number))


def _complete(schedule: Schedule, durations: Durations | Sequence[Durations]) -> list[Durations]:
    """Return durations for every part, with those that follow from others."""
    num_parts = schedule.num_parts
    given = [durations] * num_parts if isinstance(durations, Mapping) else list(durations)
    if len(given) != num_parts:
        raise ValueError(
            f"got durations for {len(given)} parts, but the model is cut into {num_parts}; "
            "give one for each part, or one for all"
        )
    needed = {action.kind for order in schedule.orders for action in order}
    return [_filled(each, needed) for each in given]


def _filled(given: Durations, needed: set[str]) -> Durations:
    full = dict(given)
    if "B" not in full and "I" in full and "W" in full:
        full["B"] = full["I"] + full["W"]
    missing = ", ".join(sorted(needed - full.keys()))
    if missing:
        raise ValueError(
            f"the schedule has {missing}, but the durations {dict(given)} do not; add {missing}"
        )
    if "B" in full:
        full.setdefault("F&B", full["F"] + full["B"])
    return full


@checked
def picture(schedule: Schedule) -> str:
    """Draw the schedule on a clock, one column a tick, as the docstrings of the schedules do."""
    texts = [str(action) for order in schedule.orders for action in order]
    width = max(map(len, texts))
    lines = []
    for stage, spans in enumerate(times(schedule)):
        columns = [""] * max(end for _, end in spans)
        for action, (start, _) in zip(schedule.orders[stage], spans, strict=True):
            column = start + action.joined  # a joined pair stands side by side
            columns[column] = str(action)
        row = " ".join(text.ljust(width) for text in columns)
        lines.append(f"stage {stage}: {row}".rstrip())
    return "\n".join(lines)
