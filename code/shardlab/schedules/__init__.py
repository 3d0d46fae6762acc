"""Pipeline schedules as lists of actions, which ranks execute, costs time and figures draw.

schedule = make("1F1B", num_stages=4, num_microbatches=8)
print(picture(schedule))     # which stage does what, on a clock with ticks
problems(schedule)           # [], or why it cannot run
plan(schedule)[0]            # what stage 0 computes, sends and receives
"""

from .action import KINDS, Action, Schedule, loop, parse, vee
from .classic import gpipe, interleaved, naive, one_f_one_b
from .clock import TICKS, picture, times
from .instructions import Instruction, deadlock, instructions
from .kinds import CHUNKED, SCHEDULES, WHOLE, ScheduleKind, make
from .plan import plan
from .rules import check, problems
from .v_shaped import dualpipe_v, zb_v
from .zero_bubble import zb_h1, zb_h2

__all__ = [
    "CHUNKED",
    "KINDS",
    "SCHEDULES",
    "TICKS",
    "WHOLE",
    "Action",
    "Instruction",
    "Schedule",
    "ScheduleKind",
    "check",
    "deadlock",
    "dualpipe_v",
    "gpipe",
    "instructions",
    "interleaved",
    "loop",
    "make",
    "naive",
    "one_f_one_b",
    "parse",
    "picture",
    "plan",
    "problems",
    "times",
    "vee",
    "zb_h1",
    "zb_h2",
    "zb_v",
]
