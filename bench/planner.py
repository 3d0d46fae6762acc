"""How long the planner takes: every plan for a trillion parameters on 3,072 GPUs, and the three case studies.

Seconds are those of the processor, the best of ROUNDS: pure Python on one core.
"""

import time
from dataclasses import replace
from typing import Any

import record

from shardlab.costs.planning import planner
from shardlab.costs.planning.plans import Question
from shardlab.costs.published import studies

ROUNDS = 5


def questions() -> dict[str, Question]:
    """The case studies, and a trillion parameters with every choice open."""
    trillion = studies.STUDIES["a trillion on 3,072 A100"].question
    every = replace(
        trillion,
        context=(1, 2, 4),
        zero=(0, 1, 2, 3),
        sequence_parallel=(False, True),
        recomputations=("none", "selective", "full"),
    )
    asked = {name: study.question for name, study in studies.STUDIES.items()}
    return {**asked, "a trillion on 3,072 A100, every choice open": every}


def timed(question: Question) -> dict[str, Any]:
    """Seconds of a search, and what it looked at."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        found = planner.search(question)
        seconds.append(time.process_time() - start)
    return {"seconds": min(seconds), "plans": found.count, "fit": len(found.fitting), "best": found.best.name}


def main() -> None:
    result = {name: timed(question) for name, question in questions().items()}
    for name, row in result.items():
        print(f"{name}: {row['plans']:,} plans in {row['seconds']:.2f} s, {row['fit']:,} fit; best {row['best']}")
    print(f"stored in {record.write('planner', {'rounds': ROUNDS, 'questions': result})}")


if __name__ == "__main__":
    main()
