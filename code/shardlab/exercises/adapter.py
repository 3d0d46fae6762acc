"""Grade what a learner has handed in on a platform, and write the result as the platform reads it.

`export` copies this file into the folder that it writes, beside `homework.json`. It imports nothing
of shardlab and judges nothing: it runs the command of `homework.json` on the file that was handed
in, and turns the JSON of that command into the JSON of the platform.

Sources: https://gradescope-autograders.readthedocs.io/en/latest/specs/ and
https://github.com/foundation50/classroom50/wiki/Advanced-Autograding
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from textwrap import indent
from typing import Any

HERE = Path(__file__).resolve().parent
KINDS = (".py", ".ipynb")
GRADED = (0, 1)  # exit status of the command: all pass, or some fail
NOT_GRADED = 2  # exit status of this file, and of the command, if the grader itself has failed
SECRETS = ("ACTIONS_", "GH_", "GITHUB_", "RUNNER_")  # variables that a learner's file does not need

Found = dict[str, Any]


class NoVerdict(Exception):
    """The grader itself has failed; the text says why."""


def graded(folder: Path) -> list[Found]:
    """Return what the command says of each exercise. Errors: NoVerdict.

    folder: with what was handed in, one Python file or notebook; all points are lost without it.
    """
    settings = json.loads((HERE / "homework.json").read_text())
    files = [each for each in folder.iterdir() if each.suffix in KINDS and each.name[0] not in "._"]
    if len(files) != 1:
        names = ", ".join(sorted(each.name for each in files)) or "none"
        reason = f"hand in one Python file or notebook; found: {names}"
        failed = {"status": "failed", "points": 0, "properties": [], "reason": reason}
        return [{**each, **failed} for each in settings["exercises"]]
    command = [sys.executable, "-m", "shardlab.exercises", *settings["command"], files[0].resolve()]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SECRETS)}
    # It starts in this folder, because Python would import a learner's json.py from theirs.
    done = subprocess.run(command, cwd=HERE, env=kept, stdout=subprocess.PIPE)
    try:
        found: list[Found] = json.loads(done.stdout)["exercises"]
    except ValueError:  # such as a file that has written into the output of the command
        raise NoVerdict(f"no JSON, and exit status {done.returncode}") from None
    if done.returncode not in GRADED:
        raise NoVerdict(next((each["reason"] for each in found if each["reason"]), "no reason"))
    return found


def explained(exercise: Found) -> str:
    """Say which properties hold, and show the smallest case in which one fails."""
    lines = [f"{each['status']:11}  {each['name']}" for each in exercise["properties"]]
    return "\n".join([*lines, exercise["reason"]]).strip()


def gradescope(root: Path) -> None:
    """Write results/results.json for submission/, both below the root. Errors: NoVerdict.

    If nothing was graded the file is missing. Gradescope then reports that the autograder has
    failed, and a teacher can run it again.
    """
    results = root / "results" / "results.json"
    begun = time.monotonic()
    try:
        found = graded(root / "submission")
    finally:
        results.unlink(missing_ok=True)  # whatever the learner's file has put there
    tests = [
        {
            "name": each["name"],
            "score": each["points"],
            "max_score": each["maximum"],
            "status": each["status"],
            "output": explained(each),
            "visibility": "visible",
        }
        for each in found
    ]
    seconds = round(time.monotonic() - begun, 1)
    results.write_text(json.dumps({"execution_time": seconds, "tests": tests}, indent=2))


def classroom50(checkout: Path) -> None:
    """Write result.json and release-body.md into a learner's checkout. Errors: NoVerdict.

    After an exit status other than 0 Classroom 50 publishes an error in place of points.
    """
    known = ("classroom", "assignment", "assignment_type", "owner")
    result: Found = {"schema": "classroom50/result/v1"}
    result |= {name: os.environ.get(name.upper(), "") for name in known}
    result["submission"] = os.environ.get("SUBMISSION_TAG", "")
    links = ("commit", "release", "review")
    result |= {name: os.environ.get(f"{name.upper()}_URL", "") for name in links}
    files = [checkout / name for name in ("result.json", "release-body.md")]
    try:
        found = graded(checkout)
    finally:
        for file in files:
            file.unlink(missing_ok=True)  # whatever the learner's file has put there
    result["datetime"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    result["score"] = sum(each["points"] for each in found)
    result["max-score"] = sum(each["maximum"] for each in found)
    result["tests"] = [
        {
            "test-name": each["name"],
            "passed": each["status"] == "passed",
            "score": each["points"],
            "max-score": each["maximum"],
        }
        for each in found
    ]
    body = [f"### {each['name']}\n\n{indent(explained(each), '    ')}\n" for each in found]
    for file, text in zip(files, (json.dumps(result, indent=2), "\n".join(body)), strict=True):
        file.write_text(text)


if __name__ == "__main__":
    platform = {"gradescope": gradescope, "classroom50": classroom50}[sys.argv[1]]
    try:
        platform(Path(sys.argv[2]))
    except NoVerdict as error:
        print(f"not graded: {error}")
        sys.exit(NOT_GRADED)
