"""What every stage computes, sends and receives, in an order that cannot deadlock."""

from dataclasses import dataclass

from .action import Schedule
from .clock import Times, times
from .steps import Step, receives, sends

# A clock's order may differ from the true one; that costs a little time, and nothing else.
ROUGHLY = {"F": 1, "B": 2, "I": 1, "W": 1}


@dataclass(frozen=True, kw_only=True)
class _Message:
    """A message with the step of each end."""

    end: int  # when it is made
    sender: int
    send: Step
    receive: Step


@dataclass(frozen=True, kw_only=True)
class _Line:
    """One step of a stage, with what decides its place."""

    step: Step
    when: int
    computes: bool  # messages come before what starts at the same time
    number: int  # of the message among all, or of the action on its stage

    @property
    def place(self) -> tuple[int, bool, int]:
        """The key by which a stage's lines are sorted."""
        return self.when, self.computes, self.number


def plan(schedule: Schedule) -> list[list[Step]]:
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
                _Line(step=Step("compute", action), when=start, computes=True, number=number)
                for number, (action, (start, _)) in enumerate(computing)
            ]
        )
    for number, message in enumerate(_messages(schedule, spans)):
        for stage, step in ((message.sender, message.send), (message.send.peer, message.receive)):
            line = _Line(step=step, when=message.end, computes=False, number=number)
            lines[stage].append(line)
    return [_early([line.step for line in sorted(each, key=lambda x: x.place)]) for each in lines]


def _early(program: list[Step]) -> list[Step]:
    """Move every receive one action earlier: the message then travels while the stage computes."""
    found: list[Step] = []
    for step in program:
        place = len(found)
        if step.verb == "receive" and found and found[-1].verb == "compute":
            place -= 1
        found.insert(place, step)
    return found


def _messages(schedule: Schedule, spans: Times) -> list[_Message]:
    """List all messages with both their ends, in the order in which they are made."""
    receiving: dict[tuple[bool, int, int], Step] = {}
    made: list[tuple[int, int, Step]] = []
    for stage, order in enumerate(schedule.orders):
        for action, (_, end) in zip(order, spans[stage], strict=True):
            for step in receives(schedule, stage, action):
                receiving[step.message] = step
            for step in sends(schedule, stage, action):
                made.append((end, stage, step))
    made.sort(key=lambda each: each[:2])
    return [
        _Message(end=end, sender=stage, send=send, receive=receiving[send.message])
        for end, stage, send in made
    ]
