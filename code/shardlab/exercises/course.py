"""Figures for a teacher: minutes to read a page, points of its exercises, files of a module.

Most adults read English non-fiction at 175 to 300 words a minute: Brysbaert 2019,
doi:10.1016/j.jml.2019.104047.
"""

import ast
import math
import re
from pathlib import Path
from types import ModuleType

from . import of_chapter

WORDS_PER_MINUTE = 220
SECONDS_PER_CODE = 30  # to predict, run and look
STEP = 5  # minutes; a time of more than two steps is rounded up to a multiple
PACKAGE = Path(__file__).parents[1]
HEADER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
# The fence of a block: its mark, its directive, and the rest of the line.
FENCE = re.compile(r"(`{3,}|:{3,})(?:\{([\w-]+)\})?(.*)")
OPTION = re.compile(r":[\w-]+:|\(.*\)=$")  # of a directive; or a target of links
NOT_READ = {None, "code-cell", "literalinclude", "raw"}  # directives of code
SHORTER = [  # a pattern, and the words that a reader reads for it
    (re.compile(r"\$\$.*?\$\$", re.DOTALL), ""),
    (re.compile(r"\{cite\}`[^`]*`"), ""),
    (re.compile(r"\$[^$]+\$|\{[\w:]+\}`[^`]*`"), "x"),  # one word for a formula or a name
    (re.compile(r"\]\([^)]*\)"), "]"),  # the address of a link
]
WORD = re.compile(r"\w\S*")


def prose(page: str) -> tuple[str, int]:
    """Return the words of a MyST page, captions and tables too, and its number of code blocks."""
    kept: list[str] = []
    codes = 0
    blocks: list[tuple[str, bool]] = []  # the open ones: their mark, and whether they are read
    for line in HEADER.sub("", page).splitlines():
        fence = FENCE.match(line)
        shown = all(read for _, read in blocks)
        bare = fence is not None and not line.removeprefix(fence[1]).strip()
        if fence and blocks and bare and fence[1] == blocks[-1][0]:
            blocks.pop()
        elif fence and shown:
            read = fence[2] not in NOT_READ
            blocks.append((fence[1], read))
            codes += not read
            title = fence[3] if fence[2] == "admonition" else ""  # others name a file there
            kept.append(title)
        elif shown and not OPTION.match(line):
            kept.append(line)
    text = "\n".join(kept)
    for pattern, left in SHORTER:
        text = pattern.sub(left, text)
    return text, codes


def reading_minutes(page: Path) -> int:
    """Return how long a page takes to read, with half a minute for each block of code."""
    text, codes = prose(page.read_text(encoding="utf-8"))
    exact = len(WORD.findall(text)) / WORDS_PER_MINUTE + codes * SECONDS_PER_CODE / 60
    return math.ceil(exact) if exact <= STEP * 2 else STEP * math.ceil(exact / STEP)


def points(chapter: str) -> int:
    """Add up the points of a chapter's exercises."""
    return sum(each.points for each in of_chapter(chapter))


def files(module: ModuleType) -> list[Path]:
    """Return the files that a module needs: its own first, then all that they import."""
    assert module.__file__ is not None
    found = [Path(module.__file__)]
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
