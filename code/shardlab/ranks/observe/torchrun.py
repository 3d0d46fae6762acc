"""What torchrun and its ranks say and do when a start fails or a run ends, as benches recorded it.

bench/starts.py started two agents wrongly, once for each cause, and bench/endings.py killed or
stopped one process of a run. A message of yours is compared with what was said then.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from shardlab.files import measured

Life = Mapping[str, Any]  # of one process: a row of bench/results/endings.json
NOISE = re.compile(
    r"^frame #|^Exception raised from|^<omitting|^Traceback|^\s(?! what)|^[=-]+$|^$"
    r"|death signal|closing signal|^Failures:|^Root Cause|^\[\d\]:|SignalException|train.py FAILED"
    r"|ChildFailedError|^During handling|^The above exception|\.py:\d+\] (Traceback|\s)"
)
STAMP = re.compile(r"^(\[rank\d+\]: |\[?[EWI]\d{4} [\d:.]+ (\d+ )?)")


def cause(message: str) -> list[dict[str, Any]]:
    """List the wrong starts that a message may be of, each with its cause and the command to run.

    Those whose phrase the fewest of them share come first.
    """
    starts = [row for row in measured.results("starts")["rows"] if row["command"]]
    shared = [phrase for start in starts for phrase in set(start["phrases"])]
    told = "\n".join(said(message))

    def rivals(start: dict[str, Any]) -> int:
        found = [each for each in start["phrases"] if re.search(each, told)]
        return min(map(shared.count, found), default=0)

    return sorted(filter(rivals, starts), key=rivals)


def said(message: str) -> list[str]:
    """Keep of all that an agent printed the lines that inform, once each, without time and process.

    The last ones say most. Frames, and the farewell of an agent that is ended, are left out.
    """
    lines = [STAMP.sub("", line).rstrip() for line in message.splitlines() if not NOISE.match(line)]
    return list(dict.fromkeys(line for line in lines if line and not NOISE.search(line)))


def processes(lives: Sequence[Life]) -> list[list[str]]:
    """Make a table of all processes of a run, in seconds after the event."""
    table = [["process", "begun", "steps after the event", "ended", "how"]]
    for life in sorted(lives, key=lambda life: life["who"]):
        ended = life["left"] if life["ended"] is None else f"{life['ended']:g} s"
        begun = "before" if life["begun"] < 0 else f"{life['begun']:g} s"
        steps = "" if life["who"].startswith("agent") else str(life["steps"])
        table.append([life["who"], begun, steps, ended, life["how"]])
    return table


def summary(to: Sequence[str], lives: Sequence[Life]) -> list[str]:
    """Sum up a run in three texts: steps, who ended first, and who was left.

    They are the most steps of a rank after the event, the first process to end except `to`, which
    received the signal, and all processes that were alive when the observation ended.
    """
    others = [life for life in lives if life["who"] not in to]
    ended = [(life["ended"], life["who"]) for life in others if life["ended"] is not None]
    first = "{1}, {0:g} s".format(*min(ended)) if ended else "nobody"
    left = ", ".join(sorted(life["who"] for life in lives if life["left"])) or "nobody"
    return [str(max(life["steps"] for life in lives)), first, left]
