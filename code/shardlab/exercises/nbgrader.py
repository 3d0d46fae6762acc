"""Make the notebook of a homework for nbgrader.

Source: https://nbgrader.readthedocs.io, whose metadata has the version 3 of its schema.
"""

from typing import Any

from .checker import Exercise
from .homework import Homework

SCHEMA = 3
PYTHON = {"display_name": "Python 3", "language": "python", "name": "python3"}
PROMPT = "## {each.name}\n\n{each.prompt}\n\nPoints: {each.points}"
TEST = """\
from shardlab.exercises import check
assert check("{name}", {function}, homework="homework.py", seed={seed})
"""


def notebook(taught: Homework, title: str) -> dict[str, Any]:
    """Return a notebook with a prompt, a starter and a test for each exercise.

    A starter stands in a cell without nbgrader's metadata: of a solution cell nbgrader would hand
    out only a stub. A test cell is locked, and gives all points or none.
    """
    due = f"\n\nDue: {taught.due:%Y-%m-%d %H:%M}" if taught.due else ""
    cells = [_cell("markdown", "title", f"# {title}{due}")]
    for number, exercise in enumerate(taught.exercises.values(), start=1):
        cells += _cells(exercise, number, taught.seed)
    metadata = {"kernelspec": PYTHON, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def _cells(exercise: Exercise, number: int, seed: int) -> list[dict[str, Any]]:
    test = TEST.format(name=exercise.name, function=exercise.function, seed=seed)
    graded = {
        "nbgrader": {
            "grade": True,
            "grade_id": f"exercise-{number}",
            "locked": True,
            "points": exercise.points,
            "schema_version": SCHEMA,
            "solution": False,
            "task": False,
        }
    }
    return [
        _cell("markdown", f"prompt-{number}", PROMPT.format(each=exercise)),
        _cell("code", f"answer-{number}", exercise.starter),
        _cell("code", f"test-{number}", test, graded),
    ]


def _cell(kind: str, name: str, source: str, metadata: dict[str, Any] | None = None) -> Any:
    cell = {"cell_type": kind, "id": name, "metadata": metadata or {}, "source": source.rstrip()}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})
