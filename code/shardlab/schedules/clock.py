"""When every action of a schedule starts and ends, if each starts as soon as it can."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .action import Action, Schedule
from .rules import problems
from .steps import blocks

Durations = Mapping[str, Any]  # of one action of each kind; B: else I + W; F&B, of a joined pair: else F + B
Times = list[list[tuple[Any, Any]]]  # start and end of each action, for each stage
TICKS: Durations = {"F": 1, "B": 1, "I": 1, "W": 1}


def times(
    schedule: Schedule,
    durations: Durations | Sequence[Durations] = TICKS,
    *,
    latency: Any = 0,
    transfer: Any = 0,
    overlap: bool = True,
) -> Times:
    """Start and end of every action, exact for exact numbers such as int and Fraction.

    durations  of an action of each kind; or a list of them, one for each part of the model
    transfer   how long a message holds its link, which carries one at a time in each direction
    latency    from then until it arrives
    overlap    a stage computes while its messages travel; False: it waits until they have arrived

    Linear in the number of actions. Errors: ValueError for a deadlock, or a duration that is missing.
    """
    clock = _Clock(schedule, _complete(schedule, durations), (transfer, latency, overlap))
    while clock.ready:
        clock.go_on(clock.ready.pop())
    if any(len(row) < len(order) for row, order in zip(clock.spans, schedule.orders, strict=True)):
        raise ValueError(f"{schedule.name} cannot run: {'; '.join(problems(schedule))}")
    return clock.spans


class _Route(NamedTuple):
    """What an action needs and whom it serves. Inputs have whole numbers; these are for microbatch 0."""

    own: int | None  # the input it waits for
    next: int | None  # the input that it makes for another part
    peer: int  # the stage of that part
    part: int


class _Clock:
    """Every stage goes on until an input is missing, and again when that input arrives."""

    def __init__(self, schedule: Schedule, durations: list[Durations], sending: tuple[Any, Any, bool]) -> None:
        self.schedule, self.durations, self.sending = schedule, durations, sending
        self.blocks = [blocks(order) for order in schedule.orders]
        self.at = [0] * schedule.num_stages  # the block each stage is at
        self.free: list[Any] = [0] * schedule.num_stages  # when it ends what it does
        self.spans: Times = [[] for _ in schedule.orders]
        self.links: dict[tuple[int, int], Any] = {}  # when each link is free
        self.arrived: dict[int, Any] = {}  # input -> when
        self.waiting: dict[int, int] = {}  # input -> the stage that waits for it
        self.ready = list(range(schedule.num_stages))
        actions = [Action(kind, 0, chunk) for kind in "FBIW" for chunk in range(schedule.num_chunks)]
        self.routes = [{(a.kind, a.chunk): self._route(stage, a) for a in actions} for stage in self.ready]

    def _route(self, stage: int, action: Action) -> _Route:
        part, target = self.schedule.parts[stage][action.chunk], self.schedule.target(stage, action)
        own = None if self.schedule.source(stage, action) is None else self._number(part, action)
        if target is None:
            return _Route(own, None, stage, part)
        return _Route(own, self._number(target, action), self.schedule.homes[target][0], part)

    def _number(self, part: int, action: Action) -> int:
        return (2 * part + (action.kind == "F")) * self.schedule.num_microbatches

    def go_on(self, stage: int) -> None:
        """Do what the stage can do."""
        blocks, routes, arrived = self.blocks[stage], self.routes[stage], self.arrived
        for at in range(self.at[stage], len(blocks)):
            start, block = self.free[stage], blocks[at]
            for kind, microbatch, chunk, _ in block:
                own = routes[kind, chunk].own
                if own is not None:
                    if own + microbatch not in arrived:
                        self.waiting[own + microbatch], self.at[stage] = stage, at
                        return
                    start = max(start, arrived[own + microbatch])
            kind, _, chunk, _ = block[0]
            duration = self.durations[routes[kind, chunk].part]
            span = start, start + duration[kind if len(block) == 1 else "F&B"]
            self.free[stage] = span[1]
            for kind, microbatch, chunk, _ in block:
                self.spans[stage].append(span)
                _, following, peer, _ = routes[kind, chunk]
                if following is not None:
                    self._deliver(stage, peer, following + microbatch)
        self.at[stage] = len(blocks)

    def _deliver(self, stage: int, peer: int, number: int) -> None:
        """Send the input of that number as soon as the link is free."""
        arrival = self.free[stage]
        if peer != stage:
            transfer, latency, overlap = self.sending
            sent = max(arrival, self.links.get((stage, peer), arrival)) + transfer
            self.links[stage, peer], arrival = sent, sent + latency
            if not overlap:
                self.free[stage] = arrival
        self.arrived[number] = arrival
        if number in self.waiting:
            self.ready.append(self.waiting.pop(number))


def _complete(schedule: Schedule, durations: Durations | Sequence[Durations]) -> list[Durations]:
    """Durations for every part, with those that follow from others."""
    given = [durations] * schedule.num_parts if isinstance(durations, Mapping) else list(durations)
    if len(given) != schedule.num_parts:
        raise ValueError(
            f"durations for {len(given)} parts, and the model is cut into {schedule.num_parts}; "
            "give one for each part, or one for all"
        )
    needed = {action.kind for order in schedule.orders for action in order}
    return [_filled(each, needed) for each in given]


def _filled(given: Durations, needed: set[str]) -> Durations:
    full = dict(given)
    if "B" not in full and "I" in full and "W" in full:
        full["B"] = full["I"] + full["W"]
    missing = sorted(needed - full.keys())
    if missing:
        raise ValueError(f"the durations {dict(given)} have no {', '.join(missing)}, which the schedule has; add them")
    if "B" in full:
        full.setdefault("F&B", full["F"] + full["B"])
    return full


def picture(schedule: Schedule, durations: Durations = TICKS) -> str:
    """The schedule on a clock, one column a tick: what the docstrings of the schedules show."""
    rows, width = times(schedule, durations), max(len(str(a)) for order in schedule.orders for a in order)
    lines = []
    for stage, (order, row) in enumerate(zip(schedule.orders, rows, strict=True)):
        columns = [""] * max(end for _, end in row)
        for action, (start, _) in zip(order, row, strict=True):
            columns[start + action.joined] = str(action)  # a joined pair stands side by side
        lines.append(f"stage {stage}: " + " ".join(column.ljust(width) for column in columns).rstrip())
    return "\n".join(lines)
