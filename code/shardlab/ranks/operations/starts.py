"""It never starts: run what went wrong, or find it by what was said."""

import re

from . import agents, groups, rendezvous
from .agents import Start, StartOutcome

STARTS = (*rendezvous.STARTS, *groups.STARTS)
NOISE = re.compile(
    r"^frame #|^Exception raised from|^<omitting|^Traceback|^\s(?! what)|^[=-]+$|^$"
    r"|death signal|closing signal|^Failures:|^Root Cause|^\[\d\]:|SignalException|train.py FAILED"
    r"|ChildFailedError|^During handling|^The above exception|\.py:\d+\] (Traceback|\s)"
)
STAMP = re.compile(r"^(\[rank\d+\]: |\[?[EWI]\d{4} [\d:.]+ (\d+ )?)")


def run(start: Start, limit: float = agents.LIMIT) -> StartOutcome:
    """Run a row; after at most `limit` seconds, and a few to end it, nothing of it is left."""
    return agents.meet(start, limit)


def cause(message: str) -> list[Start]:
    """List the rows that a message may be of: first those whose phrase the fewest rows share."""
    shared = [phrase for start in STARTS for phrase in set(start.phrases)]
    told = "\n".join(said(message))

    def rivals(start: Start) -> int:
        found = [each for each in start.phrases if re.search(each, told)]
        return min(map(shared.count, found), default=0)

    return sorted(filter(rivals, STARTS), key=rivals)


def said(message: str) -> list[str]:
    """Keep of all that an agent printed the lines that inform, once each, without time and process.

    The last ones say most. Frames, and the farewell of an agent that is ended, are left out.
    """
    lines = [STAMP.sub("", line).rstrip() for line in message.splitlines() if not NOISE.match(line)]
    return list(dict.fromkeys(line for line in lines if line and not NOISE.search(line)))
