"""Run the checkers in a shell.

    python -m shardlab.exercises list
    python -m shardlab.exercises starter data_parallel.shard > my_file.py
    python -m shardlab.exercises check data_parallel.shard my_file.py     # exit status 0: it passes
    python -m shardlab.exercises check data_parallel my_file.py           # the whole chapter
    python -m shardlab.exercises check zero.clip memory my_file.ipynb --json    # for a program
    python -m shardlab.exercises hint zero.clip --step 2     # 1: a nudge, 2: the idea, 3: the way
    python -m shardlab.exercises progress                                 # what you have passed
    python -m shardlab.exercises grade homework.py handed_in/*/ --csv marks.csv   # a class's points
    python -m shardlab.exercises export gradescope homework.py grader   # for a course's platform
    python -m shardlab.exercises questions memory --seed 7 --answers    # for an exam

Each command says with --help what it takes.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from shardlab import launch
from shardlab.files.given import instead, line
from shardlab.files.terminal import Parser, complain, guarded

from . import CHAPTERS, every, export, homework, marks, progress
from .checker import UNGRADED, Exercise
from .handed_in import NOT_GRADED, check, hint


def main() -> int:
    """Run one command; return the exit status."""
    arguments = parse()
    if arguments.command in SHOWN:
        return SHOWN[arguments.command](arguments)
    try:
        taught, exercises = prepare(arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        return NOT_GRADED
    except Exception as error:  # whatever an exercise of ours raises while it is imported
        print(f"{UNGRADED}: an exercise cannot be imported: {error!r}", file=sys.stderr)
        return NOT_GRADED
    if arguments.command == "check":
        return check(exercises, arguments.file, taught, as_json=arguments.json)
    if taught and arguments.command == "export":
        return hand_over(taught, arguments.platform, arguments.folder)
    if taught and arguments.command == "grade":
        return show_marks(taught, arguments)
    for exercise in exercises:
        if arguments.command == "list":
            points = f"{exercise.points} point{'s' if exercise.points > 1 else ''}"
            print(f"{exercise.name}  ({points})\n    {exercise.prompt}")
        elif arguments.command == "hint":
            call = partial(hint, exercise, taught)
            print(f"{exercise.name}: {exercise.hint(arguments.step, call)}")
        else:
            print(exercise.starter.rstrip("\n"))
    return 0


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(prog="python -m shardlab.exercises", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(name=(), homework=None)
    commands = parser.add_subparsers(dest="command", required=True)
    seed = Parser(add_help=False)
    seed.add_argument("--seed", type=int, default=0, help="of the cases or numbers that are drawn")
    taught = Parser(add_help=False, parents=[seed])
    text = "a teacher's exercises, in place of the book's"
    taught.add_argument("--with", type=Path, dest="homework", metavar="HOMEWORK", help=text)
    commands.add_parser("list", help="list all exercises", parents=[taught])
    helps = {
        "starter": "print the function to begin with",
        "hint": "print help, in three steps",
        "check": "grade a file",
    }
    for command, text in helps.items():
        sub = commands.add_parser(command, help=text, parents=[taught])
        sub.add_argument("name", nargs="+", help="an exercise, or a chapter for all of its own")
    step = commands.choices["hint"].add_argument("--step", type=int, default=1, choices=(1, 2, 3))
    step.help = "1: a nudge, 2: the idea, 3: the way"
    sub.add_argument("file", type=Path, help="your functions: a Python file or a notebook")
    sub.add_argument("--json", action="store_true", help="print the verdicts as JSON")
    sub = commands.add_parser("progress", help="print what you have passed")
    one = sub.add_argument("chapter", nargs="?", default="", choices=["", *CHAPTERS])
    one.metavar, one.help = "chapter", "show each exercise of this chapter"
    sub = commands.add_parser("grade", help="grade what a class has handed in", parents=[seed])
    sub.add_argument("homework", type=Path, help="see shardlab.exercises.homework")
    sub.add_argument("path", nargs="+", type=Path, help="a learner's file, or the folder with it")
    sub.add_argument("--file", default="", help="its name, where a folder has several")
    sub.add_argument("--csv", metavar="FILE", help="write the table there; -: print only that")
    sub.add_argument("--json", action="store_true", help="print the marks as JSON")
    text = "a new folder for a text for each learner, to hand back"
    sub.add_argument("--reports", type=Path, metavar="FOLDER", help=text)
    sub = commands.add_parser("export", help="write what a platform needs", parents=[seed])
    sub.add_argument("platform", choices=export.PLATFORMS)
    sub.add_argument("homework", type=Path, help="see shardlab.exercises.homework")
    sub.add_argument("folder", type=Path, help="a new folder")
    sub = commands.add_parser("questions", help="print questions for an exam", parents=[seed])
    sub.add_argument("chapter", nargs="+", help="a chapter, such as memory, or a .md file of yours")
    sub.add_argument("--answers", action="store_true", help="for the teacher: with rubrics")
    return parser.parse_args()


def show_progress(arguments: argparse.Namespace) -> int:
    """Print what this learner has passed."""
    progress(arguments.chapter)
    return 0


def show_questions(arguments: argparse.Namespace) -> int:
    """Print the sheets of chapters, for learners or with the answers."""
    from . import questions  # only here: no other command needs them

    seed, answers = arguments.seed, arguments.answers
    try:
        pages = [questions.page(chapter, seed, answers=answers) for chapter in arguments.chapter]
    except ValueError as error:
        complain(str(error))
        return NOT_GRADED
    print("\n\n".join(pages))
    return 0


def prepare(arguments: argparse.Namespace) -> tuple[homework.Homework | None, list[Exercise]]:
    """Read the homework, if there is one, and select exercises. Errors: ValueError."""
    command = arguments.command
    if command in ("check", "grade") and launch.already_a_rank():
        raise ValueError(f"{command} starts its own ranks; call it without torchrun or mpiexec")
    taught = homework.read(arguments.homework, arguments.seed) if arguments.homework else None
    return taught, select(arguments.name, taught.exercises if taught else every())


def select(names: Sequence[str], known: Mapping[str, Exercise]) -> list[Exercise]:
    """Return exercises, or all of a chapter, once each; all where none is named.

    Errors: ValueError that lists all names.
    """
    chosen: dict[str, Exercise] = {} if names else {**known}
    for name in names:
        found = {key: each for key, each in known.items() if name in (key, key.split(".")[0])}
        if not found:
            said = f"no exercise or chapter is called {line(name)!r}"
            raise ValueError(f"{said}; {instead(name, known)}")
        chosen |= found
    return [*chosen.values()]


def show_marks(taught: homework.Homework, asked: argparse.Namespace) -> int:
    """Grade a class, and print its points, or only the CSV for "-"; 2 if not all was graded."""
    folder, target = asked.reports, asked.csv
    try:
        if folder:
            folder.mkdir()
        found = list(marks.grade(taught, asked.path, asked.file))
        for each in found if folder else ():
            name = each.learner.replace("/", "-") + ".txt"
            (folder / name).write_text(marks.report(taught, each), encoding="utf-8")
        if asked.json:
            print(json.dumps(marks.data(taught, found), indent=2))
        elif target == "-":
            marks.write_csv(taught, found, sys.stdout)
        else:
            print(marks.table(taught, found))
        if target not in (None, "-"):
            with open(target, "w", encoding="utf-8", newline="") as opened:
                marks.write_csv(taught, found, opened)
    except OSError as error:
        complain(f"{error.filename} cannot be written: {error.strerror}")
        return NOT_GRADED
    return 0 if all(each.graded for each in found) else NOT_GRADED


def hand_over(taught: homework.Homework, platform: str, folder: Path) -> int:
    """Write what a platform needs; 2 if the folder is not new."""
    try:
        export.export(platform, taught, folder)
    except ValueError as error:
        complain(str(error))
        return NOT_GRADED
    return 0


SHOWN: Mapping[str, Callable[[argparse.Namespace], int]] = {  # commands that grade nothing
    "progress": show_progress,
    "questions": show_questions,
}

if __name__ == "__main__":
    sys.exit(guarded(main))
