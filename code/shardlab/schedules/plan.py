"""What every stage computes, sends and receives, in an order in which no two stages can wait for each other."""

from .action import Schedule
from .clock import Times, times
from .steps import Step, receives, sends

ROUGHLY = {"F": 1, "B": 2, "I": 1, "W": 1}  # the order of messages may differ from the true one: it costs a little time


def plan(schedule: Schedule) -> list[list[Step]]:
    """A program for each stage.

    Play the schedule on a clock, and write the messages of all stages into one list, in the order in which they are
    made. Every stage takes its own sends and receives in the order of that list. Then of all messages that have not
    gone yet the first one can always go: both its ends have done what stands before it. So it does not matter how a
    send waits: not at all, until the other side receives (MPI, gloo), or in a queue behind others (a stream of NCCL's).

    Errors: ValueError for a deadlock in the schedule itself.
    """
    rows = times(schedule, ROUGHLY)
    lines: list[list[tuple[int, int, int, Step]]] = []  # when, messages first, their number, what
    for row, order in zip(rows, schedule.orders, strict=True):
        lines.append([(row[at][0], 1, at, Step("compute", action)) for at, action in enumerate(order)])
    for number, (end, sender, send, receive) in enumerate(_messages(schedule, rows)):
        lines[sender].append((end, 0, number, send))
        lines[send.peer].append((end, 0, number, receive))
    return [_early([step for *_, step in sorted(line, key=lambda entry: entry[:3])]) for line in lines]


def _early(program: list[Step]) -> list[Step]:
    """Every receive one action earlier, so that the message travels while the stage computes."""
    found: list[Step] = []
    for step in program:
        early = step.verb == "receive" and found and found[-1].verb == "compute"
        found.insert(len(found) - 1 if early else len(found), step)
    return found


def _messages(schedule: Schedule, rows: Times) -> list[tuple[int, int, Step, Step]]:
    """When each is made, by which stage, and what its two ends do; the earliest first."""
    ends: dict[tuple[bool, int, int], Step] = {}
    made: list[tuple[int, int, Step]] = []
    for stage, (order, row) in enumerate(zip(schedule.orders, rows, strict=True)):
        for action, (_, end) in zip(order, row, strict=True):
            ends |= {step.message: step for step in receives(schedule, stage, action)}
            made += [(end, stage, step) for step in sends(schedule, stage, action)]
    return [(end, stage, send, ends[send.message]) for end, stage, send in sorted(made, key=lambda line: line[:2])]
