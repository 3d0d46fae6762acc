"""Run the checkers in a shell.

    python -m shardlab.exercises list
    python -m shardlab.exercises starter data_parallel.shard > my_file.py
    python -m shardlab.exercises check data_parallel.shard my_file.py     # exit status 0: it passes
    python -m shardlab.exercises check data_parallel my_file.py           # the whole chapter
    python -m shardlab.exercises check zero.clip memory my_file.ipynb --json    # for a program
    python -m shardlab.exercises progress                                 # what you have passed
    python -m shardlab.exercises gather class/*/ --csv class.csv          # what a class has passed
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shardlab.files.terminal import guarded

from . import CHAPTERS, every, gather, hint, of_chapter, progress, starter
from .checker import UNGRADED, Exercise
from .handed_in import check


def main() -> int:
    """Run one command; return the exit status."""
    arguments = parse()
    try:
        if arguments.command == "progress":
            progress(arguments.chapter)
            return 0
        exercises = select(arguments.name) if "name" in arguments else [*every().values()]
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    except Exception as error:  # whatever an exercise of ours raises while it is imported
        print(f"{UNGRADED}: an exercise cannot be imported: {error!r}", file=sys.stderr)
        return 2
    if arguments.command == "check":
        return check(exercises, arguments.file, as_json=arguments.json)
    if arguments.command == "gather":
        return show_class(arguments.path, arguments.csv)
    for exercise in exercises:
        if arguments.command == "list":
            points = f"{exercise.points} point{'s' if exercise.points > 1 else ''}"
            print(f"{exercise.name}  ({points})\n    {exercise.prompt}")
        else:
            {"hint": hint, "starter": starter}[arguments.command](exercise.name)
    return 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m shardlab.exercises", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list all exercises")
    helps = {
        "starter": "print the function to begin with",
        "hint": "print where to look",
        "check": "grade a file",
    }
    for command, text in helps.items():
        sub = commands.add_parser(command, help=text)
        sub.add_argument("name", nargs="+", help="an exercise, or a chapter for all of its own")
    sub.add_argument("file", type=Path, help="your functions: a Python file or a notebook")
    sub.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    sub = commands.add_parser("progress", help="print what you have passed")
    sub.add_argument("chapter", nargs="?", default="", help="show each exercise of this chapter")
    sub = commands.add_parser("gather", help="make one table of the records of a class")
    text = "a learner's folder, or the file of a record"
    sub.add_argument("path", nargs="+", type=Path, help=text)
    sub.add_argument("--csv", metavar="FILE", help="write the table there; -: print only that")
    return parser.parse_args()


def select(names: Sequence[str]) -> list[Exercise]:
    """Return exercises, or all of a chapter, once each. Errors: ValueError that lists all names."""
    exercises = every()
    chosen: dict[str, Exercise] = {}
    for name in names:
        found = {key: each for key, each in exercises.items() if name in (key, key.split(".")[0])}
        if not found:
            known = ", ".join(exercises)
            raise ValueError(f"no exercise or chapter is called {name!r}; choose from {known}")
        chosen |= found
    return [*chosen.values()]


def show_class(paths: list[Path], target: str | None) -> int:
    """Print what a class has passed, and write it to `target` as CSV if there is one."""
    learners = gather.gather(paths, every())
    chapters = {chapter: of_chapter(chapter) for chapter in CHAPTERS}
    if target == "-":
        gather.write_csv(learners, chapters, sys.stdout)
        return 0
    print(gather.table(learners, list(every().values())))
    if target is not None:
        try:
            with open(target, "w", encoding="utf-8", newline="") as file:
                gather.write_csv(learners, chapters, file)
        except OSError as error:
            print(f"{target} cannot be written: {error.strerror}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
