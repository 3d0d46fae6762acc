"""What a stage does, with its messages: and who waits for whom, if nothing can go on."""

from collections.abc import Sequence
from typing import NamedTuple

from .action import Action, Schedule


class Step(NamedTuple):
    """One line of a stage's program."""

    verb: str  # "receive", "compute" or "send"
    action: Action  # what this stage computes; what it receives for; whose result it sends
    peer: int = -1  # the stage to receive from, or to send to; -1: no message
    part: int = -1  # the part of the model that needs the message

    @property
    def message(self) -> tuple[bool, int, int]:
        """The same on both ends: whether it goes forward, the part that needs it, the microbatch."""
        return self.action.kind == "F", self.part, self.action.microbatch


def steps(schedule: Schedule, stage: int) -> list[Step]:
    """As one would write it down at first: receive when you need it, send when you have it."""
    program: list[Step] = []
    for block in blocks(schedule.orders[stage]):
        program += [step for action in block for step in receives(schedule, stage, action)]
        program += [Step("compute", action) for action in block]
        program += [step for action in block for step in sends(schedule, stage, action)]
    return program


def receives(schedule: Schedule, stage: int, action: Action) -> list[Step]:
    """The message that an action needs from another stage, if it needs one."""
    source = schedule.source(stage, action)
    if source is None or schedule.homes[source][0] == stage:
        return []
    return [Step("receive", action, schedule.homes[source][0], schedule.parts[stage][action.chunk])]


def sends(schedule: Schedule, stage: int, action: Action) -> list[Step]:
    """The message that an action makes for another stage, if it makes one."""
    target = schedule.target(stage, action)
    if target is None or schedule.homes[target][0] == stage:
        return []
    return [Step("send", action, schedule.homes[target][0], target)]


def blocks(order: Sequence[Action]) -> list[tuple[Action, ...]]:
    """The actions one by one, joined ones together."""
    if not any(action.joined for action in order):
        return [(action,) for action in order]
    starts = [at for at, action in enumerate(order) if not action.joined]
    return [tuple(order[start:end]) for start, end in zip(starts, [*starts[1:], len(order)], strict=True)]


def deadlock(schedule: Schedule, *, blocking: bool = False) -> str:
    """Why the schedule stops before its end when every stage does its `steps`, or "".

    blocking: a send returns when the other side has received, as a large one does in MPI, gloo and NCCL.
    """
    return stuck([steps(schedule, stage) for stage in range(schedule.num_stages)], blocking=blocking)


def stuck(programs: Sequence[Sequence[Step]], *, blocking: bool = False) -> str:
    """The same for any programs: who waits for whom, all the way round, or "" when all come to their end."""
    at, sent, ready = [0] * len(programs), set(), list(range(len(programs)))
    while ready:
        stage = ready.pop()
        while at[stage] < len(programs[stage]):
            step = programs[stage][at[stage]]
            if step.verb == "receive" and step.message not in sent:
                break
            if step.verb == "receive" and blocking:
                at[step.peer] += 1  # the sender stands at this very message, and goes on too
                ready.append(step.peer)
            if step.verb == "send" and step.message not in sent:
                sent.add(step.message)
                ready.append(step.peer)
            if step.verb == "send" and blocking:
                break
            at[stage] += 1
    return _circle({s: program[n] for s, (program, n) in enumerate(zip(programs, at, strict=True)) if n < len(program)})


def _circle(waiting: dict[int, Step]) -> str:
    """Stages that wait, each for the next; a stage that has ended ends the chain."""
    if not waiting:
        return ""
    path, stage = [], min(waiting)
    while stage in waiting and stage not in path:
        path.append(stage)
        stage = waiting[stage].peer
    ring = path[path.index(stage) :] if stage in path else path
    return "deadlock: " + ", ".join(_says(each, waiting[each]) for each in ring)


def _says(stage: int, step: Step) -> str:
    if step.verb == "send":
        return f"stage {stage} sends after {step.action} and waits until stage {step.peer} receives"
    return f"stage {stage} waits in {step.action} for stage {step.peer}"
