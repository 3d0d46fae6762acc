"""Tell a starter as it stands from an answer: whoever runs all cells has not tried an exercise."""

import ast
import inspect
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from shardlab.costs import units

from . import notebook
from .checker import RUNS, UNKNOWN, Exercise, Report

Functions = dict[str, str]  # name, with that of its class -> what it does
# where a function has no source, or one that is not its own
UNREADABLE = AttributeError, LookupError, OSError, TypeError, SyntaxError, tokenize.TokenError


def is_starter(exercise: Exercise, function: Callable[..., Any]) -> bool:
    """Say whether a function, with those that its starter defines beside it, is the starter's."""
    given = functions(exercise.starter)
    found = {}
    for name in given:
        with suppress(*UNREADABLE):
            found[name] = _source(function, name, exercise)
    return found == given


def holds_starter(exercise: Exercise, file: Path) -> bool:
    """Say whether a file, which is not run here, has the starter's functions as they stand."""
    try:
        found = functions(notebook.source(file))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return False
    return functions(exercise.starter).items() <= found.items()


def report(exercise: Exercise) -> Report:
    """Return the report on a starter as it stands, which is not run: no property is reached.

    Its reason says what to do.
    """
    points = units.counted(exercise.points, "point")
    invitation = (
        f"{exercise.name} ({points}) is not tried yet: {exercise.function} is still the starter.\n"
        f'Write your lines into it, and run this again. To begin: hint("{exercise.name}")'
    )
    return Report(exercise, dict.fromkeys((RUNS, *exercise.properties), UNKNOWN), invitation)


def _source(function: Callable[..., Any], name: str, exercise: Exercise) -> str:
    first, _, rest = name.partition(".")
    other = getattr(function, "__globals__", {}).get(first)
    one: Any = function if name == exercise.function else attrgetter(rest)(other) if rest else other
    source = textwrap.dedent(inspect.getsource(one))
    return functions(source)[name.rpartition(".")[2]]


def functions(source: str) -> Functions:
    """Return what each function of a source does, without its comments and where it stands."""
    return {name: ast.dump(node) for name, node in _walk(ast.parse(source), "")}


def _walk(tree: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield from _walk(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node
