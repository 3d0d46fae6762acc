"""What becomes of a run in training when one of its processes is killed or stands still.

Two agents of torchrun and their ranks on loopback, as the rows say; seconds are counted from the event. The process
group waits 6 s, and --shutdown-timeout is 2 s; all else is torch's default. The rows in RUNS are run three times, for
their ends differ, or to compare with one whose ends do. Four runs take place at once, on few cores: seconds are long.
"""

import concurrent.futures
import dataclasses
from typing import Any

import record
from two_agents import endings
from two_agents.endings import Ending

from shardlab.files.terminal import no_arguments
from shardlab.ranks.observe.torchrun import said

RUNS = {"rank killed": 3, "rank killed, store not shared": 3, "rank killed, static": 3}
AT_ONCE = 4


def once(ending: Ending, number: int) -> dict[str, Any]:
    """One run of a row."""
    found = endings.run(ending)
    print(ending.name, [(life.who, life.steps, life.ended, life.how) for life in found.lives], flush=True)
    return {
        "run": number,
        "lives": [dataclasses.asdict(life) for life in found.lives],
        "said": {name: said(message) for name, message in found.messages.items()},
    }


def main() -> None:
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {
            ending.name: [pool.submit(once, ending, 1 + at) for at in range(RUNS.get(ending.name, 1))]
            for ending in endings.ENDINGS
        }
    rows = [
        {
            **dataclasses.asdict(ending),
            "sent": ending.sent.name,
            "runs": [each.result() for each in runs[ending.name]],
        }
        for ending in endings.ENDINGS
    ]
    print("written to", record.write("endings", {"group": endings.GROUP, "rows": rows}).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
