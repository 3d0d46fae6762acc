"""Load what a handed-in file defines: a Python file as it stands, or the functions of a notebook.

A notebook's cells also train, draw and check. So of a notebook only what defines counts: imports,
functions, classes, and assignments that call nothing.
"""

import ast
import json
import linecache
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import cloudpickle

from shardlab.files import given

KINDS = (".py", ".ipynb")  # the suffixes of a file that can be handed in
# Where the answers to exercises are: in the package, and in the tests of a clone.
METHODS = ("shardlab.plain.", "shardlab.ranks.", "shardlab.costs.", "shardlab.schedules.", "tests.")
SHELL = ("%", "!", "?")  # how a line begins that is no Python


def load(file: Path, name: str) -> ModuleType:
    """Load the file as a module of this name, whose functions are sent to the ranks by value."""
    if file.suffix not in KINDS:
        raise ValueError("not a Python file or a notebook; its name must end with .py or .ipynb")
    text, path = source(file), os.path.abspath(file)
    folder = str(file.resolve().parent)
    sys.path[:] = [folder, *(each for each in sys.path if each != folder)]
    linecache.cache[path] = len(text), None, text.splitlines(keepends=True), path
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = path
    exec(compile(text, path, "exec"), module.__dict__)
    cloudpickle.register_pickle_by_value(module)
    return module


def blame(file: str | Path, error: BaseException) -> str:
    """Say in one line what ended `load`, after the last line of the file that it passed."""
    path, frames = os.path.abspath(file), traceback.walk_tb(error.__traceback__)
    passed = [line for frame, line in frames if frame.f_code.co_filename == path]
    where = f"line {passed[-1]}: " if passed else ""
    return " ".join(f"{where}{type(error).__name__}: {error}".split())


def of_the_book(text: str) -> list[str]:
    """Return what Python imports of the book's own methods, such as shardlab.plain.zero."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{each.name}" for each in node.names}
    return sorted(each for each in found if each.startswith(METHODS))


@given.in_one_line()
def source(file: Path) -> str:
    """Return the file's Python. Errors: ValueError for no notebook, SyntaxError with its cell."""
    text = given.read(file)
    if file.suffix != ".ipynb":
        return text
    try:
        cells = [each["source"] for each in json.loads(text)["cells"] if _is_code(each)]
        sources = [each if isinstance(each, str) else "".join(each) for each in cells]
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError(f"{file} is no notebook: it has no cells with a source") from None
    kept = [line for n, cell in enumerate(sources, 1) for line in _definitions(cell, n)]
    return "\n".join([*kept, ""])


def _is_code(cell: dict[str, object]) -> bool:
    return cell["cell_type"] == "code"


def _definitions(cell: str, number: int) -> Iterator[str]:
    if cell.lstrip().startswith("%%"):  # a cell of another language
        return
    lines = cell.splitlines()
    python = ["" if line.lstrip().startswith(SHELL) else line for line in lines]
    try:
        tree = ast.parse("\n".join(python))
    except SyntaxError as error:
        text = f"{error.msg} (code cell {number}, line {error.lineno})"
        raise SyntaxError(text) from None
    for node in tree.body:
        if _defines(node):
            yield ast.unparse(node)


def _defines(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return not any(isinstance(part, ast.Call | ast.Await) for part in ast.walk(node))
    return isinstance(
        node,
        ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef,
    )
