"""The files that a module takes along when it is copied into a course."""

import ast
from pathlib import Path
from types import ModuleType

from .project import PACKAGE


def files(module: ModuleType) -> list[Path]:
    """Return the files that a module needs: its own first, then all that they import."""
    assert module.__file__ is not None
    found = [Path(module.__file__).resolve()]
    ahead = 0
    while ahead < len(found):
        found += sorted(_imports(found[ahead]) - set(found))
        ahead += 1
    return found


def _imports(path: Path) -> set[Path]:
    """Return the files of the package that this file imports; __init__.py stands for a folder."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            start = path.parents[node.level - 1] if node.level else PACKAGE.parent
            for each in node.names:
                base = start.joinpath(*parts)
                modules = base / f"{each.name}.py", base / each.name / "__init__.py"
                places = *modules, base.with_suffix(".py"), base / "__init__.py"
                first = next(filter(Path.is_file, places), None)
                if first is not None and first.is_relative_to(PACKAGE):
                    found.add(first)
    return found
