"""What every stage computes, sends and receives, in an order that cannot deadlock."""

from dataclasses import dataclass

from shardlab.files.arguments import checked

from .action import Schedule
from .clock import Times, times
from .instructions import Instruction, receives, sends

# A clock's order may differ from the true one; that costs a little time, and nothing else.
ROUGHLY = {"F": 1, "B": 2, "I": 1, "W": 1}


@dataclass(frozen=True, kw_only=True)
class _Message:
    """A message with the instruction of each end."""

    end: int  # when it is made
    sender: int
    send: Instruction
    receive: Instruction


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One instruction of a stage, with what decides its place."""

    what: Instruction
    when: int
    computes: bool  # messages come before what starts at the same time
    number: int  # of the message among all, or of the action on its stage

    @property
    def place(self) -> tuple[int, bool, int]:
        """The key by which a stage's lines are sorted."""
        return self.when, self.computes, self.number


@checked
def plan(schedule: Schedule) -> list[list[Instruction]]:
    """Write a program for each stage.

    Play the schedule on a clock, and write the messages of all stages into one list, in the order
    in which they are made. Every stage takes its own sends and receives in the order of that list.
    Of all messages that have not gone yet, the first can then always go: both its ends have done
    what stands before it. So it does not matter whether a send waits until the other side receives
    (MPI, gloo), or in a queue behind others (a stream of NCCL's), or not at all.

    Errors: ValueError for a deadlock in the schedule itself.
    """
    spans = times(schedule, ROUGHLY)
    lines: list[list[_Line]] = []
    for stage, order in enumerate(schedule.orders):
        computing = zip(order, spans[stage], strict=True)
        lines.append(
            [
                _Line(what=Instruction("compute", action), when=start, computes=True, number=number)
                for number, (action, (start, _)) in enumerate(computing)
            ]
        )
    for number, message in enumerate(_messages(schedule, spans)):
        ends = (message.sender, message.send), (message.send.peer, message.receive)
        for stage, instruction in ends:
            line = _Line(what=instruction, when=message.end, computes=False, number=number)
            lines[stage].append(line)
    return [_early([line.what for line in sorted(each, key=lambda x: x.place)]) for each in lines]


def _early(program: list[Instruction]) -> list[Instruction]:
    """Move every receive one action earlier: the message then travels while the stage computes."""
    found: list[Instruction] = []
    for instruction in program:
        place = len(found)
        if instruction.verb == "receive" and found and found[-1].verb == "compute":
            place -= 1
        found.insert(place, instruction)
    return found


def _messages(schedule: Schedule, spans: Times) -> list[_Message]:
    """List all messages with both their ends, in the order in which they are made."""
    receiving: dict[tuple[bool, int, int], Instruction] = {}
    made: list[tuple[int, int, Instruction]] = []
    for stage, order in enumerate(schedule.orders):
        for action, (_, end) in zip(order, spans[stage], strict=True):
            for instruction in receives(schedule, stage, action):
                receiving[instruction.message] = instruction
            for instruction in sends(schedule, stage, action):
                made.append((end, stage, instruction))
    made.sort(key=lambda each: each[:2])
    return [
        _Message(end=end, sender=stage, send=send, receive=receiving[send.message])
        for end, stage, send in made
    ]
