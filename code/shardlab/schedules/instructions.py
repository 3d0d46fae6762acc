"""What a stage does, with its messages; and which stages wait for each other in a deadlock."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from shardlab.files.arguments import Integer, checked, within

from .action import Action, Schedule


class Instruction(NamedTuple):
    """One line of a stage's program."""

    verb: str  # "receive", "compute" or "send"
    action: Action  # the one computed here, or whose input is received, or whose result is sent
    peer: Integer = -1  # the stage to receive from, or to send to; -1: no message
    part: Integer = -1  # the part of the model that needs the message

    @property
    def message(self) -> tuple[bool, int, int]:
        """The message's name on both ends: whether it goes forward, its part, the microbatch."""
        return self.action.kind == "F", self.part, self.action.microbatch


@checked
def instructions(schedule: Schedule, stage: int) -> list[Instruction]:
    """Write the obvious program of `stage`: receive when you need it, send when you have it."""
    within("stage", stage, schedule.num_stages)
    program: list[Instruction] = []
    for block in blocks(schedule.orders[stage]):
        for action in block:
            program += receives(schedule, stage, action)
        for action in block:
            program.append(Instruction("compute", action))
        for action in block:
            program += sends(schedule, stage, action)
    return program


@checked
def receives(schedule: Schedule, stage: int, action: Action) -> list[Instruction]:
    """Return the receive that `action` needs, or [] if it needs nothing from another stage."""
    source = schedule.source(stage, action)
    if source is None:
        return []
    home, _ = schedule.homes[source]
    part = schedule.parts[stage][action.chunk]
    return [] if home == stage else [Instruction("receive", action, home, part)]


@checked
def sends(schedule: Schedule, stage: int, action: Action) -> list[Instruction]:
    """Return the send of the result of `action`, or [] if no other stage needs it."""
    target = schedule.target(stage, action)
    if target is None:
        return []
    home, _ = schedule.homes[target]
    return [] if home == stage else [Instruction("send", action, home, target)]


@checked
def blocks(order: Sequence[Action]) -> list[tuple[Action, ...]]:
    """Group `order` into blocks: joined actions together, all others one by one."""
    starts = [place for place, action in enumerate(order) if not action.joined]
    edges = pairwise([*starts, len(order)])
    return [tuple(order[start:end]) for start, end in edges]


@checked
def deadlock(schedule: Schedule, *, blocking: bool = False) -> str:
    """Say why the schedule stops before its end when every stage follows its `instructions`, or "".

    blocking: a send returns when the other side has received, as a large one does in MPI, gloo and
    NCCL.
    """
    programs = [instructions(schedule, stage) for stage in range(schedule.num_stages)]
    return stuck(programs, blocking=blocking)


@checked
def stuck(programs: Sequence[Sequence[Instruction]], *, blocking: bool = False) -> str:
    """Say which stages of `programs` wait for each other, or "" when all reach their end."""
    at = [0] * len(programs)
    sent: set[tuple[bool, int, int]] = set()
    ready = list(range(len(programs)))
    while ready:
        stage = ready.pop()
        program = programs[stage]
        while at[stage] < len(program):
            instruction = program[at[stage]]
            if instruction.verb == "receive" and instruction.message not in sent:
                break
            if instruction.verb == "receive" and blocking:
                at[instruction.peer] += 1  # the sender stands at this very message, and goes on too
                ready.append(instruction.peer)
            if instruction.verb == "send" and instruction.message not in sent:
                sent.add(instruction.message)
                ready.append(instruction.peer)
            if instruction.verb == "send" and blocking:
                break
            at[stage] += 1
    waiting = {}
    for stage, program in enumerate(programs):
        if at[stage] < len(program):
            waiting[stage] = program[at[stage]]
    return _circle(waiting)


def _circle(waiting: dict[int, Instruction]) -> str:
    """Describe the stages that wait, each for the next; a stage that has ended ends the chain."""
    if not waiting:
        return ""
    path: list[int] = []
    stage = min(waiting)
    while stage in waiting and stage not in path:
        path.append(stage)
        stage = waiting[stage].peer
    start = path.index(stage) if stage in path else 0
    return "deadlock: " + ", ".join(_wait(each, waiting[each]) for each in path[start:])


def _wait(stage: int, instruction: Instruction) -> str:
    action, peer = instruction.action, instruction.peer
    if instruction.verb == "send":
        return f"stage {stage} sends after {action} and waits until stage {peer} receives"
    return f"stage {stage} waits in {action} for stage {peer}"
