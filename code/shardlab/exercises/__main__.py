"""Run the checkers in a shell.

    python -m shardlab.exercises list
    python -m shardlab.exercises starter data_parallel.shard > my_file.py
    python -m shardlab.exercises check data_parallel.shard my_file.py     # exit status 0: it passes
    python -m shardlab.exercises check data_parallel my_file.py           # the whole chapter
    python -m shardlab.exercises progress                                 # what you have passed
    python -m shardlab.exercises gather class/*/ --csv class.csv          # what a class has passed
"""

import argparse
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

import cloudpickle

from shardlab.ranks import launch

from . import CHAPTERS, check, every, gather, hint, of_chapter, progress, starter
from .checker import Exercise


def main() -> int:
    """Run one command; return the exit status."""
    arguments = parse()
    try:
        if arguments.command == "progress":
            progress(arguments.chapter)
            return 0
        exercises = select(arguments.name) if "name" in arguments else list(every().values())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.command == "check":
        return grade(exercises, Path(arguments.file))
    if arguments.command == "gather":
        return show_class(arguments.path, arguments.csv)
    for exercise in exercises:
        if arguments.command == "list":
            print(f"{exercise.name}  ({exercise.points} points)\n    {exercise.prompt}")
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
        sub.add_argument("name", help="an exercise, or a chapter for all of its exercises")
    sub.add_argument("file", help="Python file with your functions")
    sub = commands.add_parser("progress", help="print what you have passed")
    sub.add_argument("chapter", nargs="?", default="", help="show each exercise of this chapter")
    sub = commands.add_parser("gather", help="make one table of the records of a class")
    text = "a learner's folder, or the file of a record"
    sub.add_argument("path", nargs="+", type=Path, help=text)
    sub.add_argument("--csv", metavar="FILE", help="write the table there; -: print only that")
    return parser.parse_args()


def select(name: str) -> list[Exercise]:
    """Return one exercise, or all of a chapter. Errors: ValueError that lists all names."""
    exercises = every()
    chosen = [each for each in exercises.values() if name in (each.name, each.name.split(".")[0])]
    if not chosen:
        known = ", ".join(exercises)
        raise ValueError(f"no exercise or chapter is called {name!r}; choose from {known}")
    return chosen


def grade(exercises: list[Exercise], file: Path) -> int:
    """Check the file's functions for these exercises; return 0 if all pass, else 1."""
    launch.warm()
    try:
        answers = load(file)
    except (Exception, SystemExit) as error:
        story = traceback.format_exception(type(error), error, error.__traceback__, limit=-1)
        print(f"{file} cannot be run:\n{''.join(story)}", end="", file=sys.stderr)
        return 1
    points = 0
    for exercise in exercises:
        function = getattr(answers, exercise.function, None)
        if function is None:
            print(f"{exercise.name}: {file} defines no {exercise.function}")
        elif check(exercise.name, function):
            points += exercise.points
        print()
    total = sum(exercise.points for exercise in exercises)
    print(f"{points} of {total} points")
    return 0 if points == total else 1


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


def load(file: Path) -> ModuleType:
    """Load the file as a module whose functions are sent to the ranks by value."""
    sys.path.insert(0, str(file.resolve().parent))
    spec = importlib.util.spec_from_file_location("answers", file)
    if spec is None or spec.loader is None:
        raise ValueError("not a Python file; its name must end with .py")
    module = sys.modules["answers"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
