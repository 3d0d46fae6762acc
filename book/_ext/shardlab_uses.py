"""Which files the cells of a chapter use: what they import, what that imports in turn, and the data beside it.

Without Jupyter Book 1: it stays, for the cache of mystmd.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

NAME = "shardlab"
CELL = re.compile(r"^```\{code-cell\}[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(rf"\b{NAME}(?:\.\w+)+")  # in an import, after `python -m`, or in any string
# These belong to every execution. The other extensions change how a page looks, not what its cells print.
ALWAYS = ("requirements.txt", "book/_ext/kernel_start.py", "book/_ext/shardlab_execution.py")


def digest(root: Path, files: Iterable[Path]) -> str:
    """A name for the present state of these files and of the running Python."""
    state = hashlib.sha256(sys.version.encode())
    for path in sorted(files):
        state.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return state.hexdigest()[:16]


def everything(root: Path) -> set[Path]:
    """Whatever can change what any page shows, beside its own text."""
    patterns = f"code/{NAME}/**/*", "book/_ext/*.py", "bench/*.py", "bench/results/*.json", "requirements.txt"
    found = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    return {path for path in found if path.suffix != ".pyc"}


def used(root: Path, chapter: Path) -> set[Path]:
    """The files that can change what the cells of one chapter print.

    A chapter that imports modules by names made at run time, or that is no plain Python, may use everything, other
    chapters included.
    """
    package, code = root / "code" / NAME, "".join(CELL.findall(chapter.read_text(encoding="utf-8")))
    code = re.sub(r"^:.*\n", "", code, flags=re.MULTILINE)  # the tags of cells
    try:
        names = {*_names(code, []), *_names((root / ALWAYS[1]).read_text(encoding="utf-8"), [])}
    except SyntaxError:
        names = None
    if names is None or "importlib" in code:
        return everything(root) | set(chapter.parent.glob("*.md"))
    # The package imports the exercises of a chapter, and its plain file, by the chapter's name.
    names |= {f"{NAME}.{room}.{chapter.stem}" for room in ("exercises", "plain")}
    modules, ahead = set(), _files(package, names)
    while ahead:
        modules |= ahead
        ahead = {file for each in ahead for file in _imports(package, each)} - modules
    data = {path for folder in {each.parent for each in modules} for path in folder.iterdir()}
    found = modules | {path for path in data if path.is_file() and path.suffix not in (".py", ".pyc")}
    if package / "files" / "measured.py" in modules:
        found |= {path for pattern in ("*.py", "results/*.json") for path in (root / "bench").glob(pattern)}
    return found | {root / each for each in ALWAYS}


@functools.cache
def _imports(package: Path, module: Path) -> frozenset[Path]:
    """The files of the package that one of its modules names."""
    here = [NAME, *module.relative_to(package).parts[:-1]]
    return frozenset(_files(package, _names(module.read_text(encoding="utf-8"), here)))


def _names(code: str, here: list[str]) -> set[str]:
    """What code names of the package, by dotted names. here: the parts of the name of its folder."""
    found = set(NAMED.findall(code))
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            base = [*here[: len(here) - node.level + 1]] if node.level else []
            found |= {".".join([*base, *filter(None, [node.module]), alias.name]) for alias in node.names}
    return found


def _files(package: Path, names: Iterable[str]) -> set[Path]:
    """The files behind dotted names, with the __init__ of each folder on the way."""
    found = set()
    for name in names:
        first, *parts = name.split(".")
        for count in range(len(parts) + 1 if first == NAME else 0):
            place = package.joinpath(*parts[:count])
            found |= {file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()}
    return found
