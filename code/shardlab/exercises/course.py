"""What a teacher plans with: how long a page takes to read, what its exercises are worth, which files a module needs.

Most adults read English non-fiction at 175 to 300 words a minute: Brysbaert 2019, doi:10.1016/j.jml.2019.104047.
"""

import ast
import math
import re
from pathlib import Path
from types import ModuleType

from . import of_chapter

WORDS_PER_MINUTE, SECONDS_PER_CODE = 220, 30  # read to be understood; predict, run, look
STEP = 5  # minutes: what takes more than two is rounded up to whole ones
PACKAGE = Path(__file__).parents[1]
HEADER = re.compile(r"\A---\n.*?\n---\n", re.DOTALL)
FENCE = re.compile(r"(`{3,}|:{3,})(?:\{([\w-]+)\})?(.*)")  # of a block: its mark, its directive, what stands behind it
OPTION = re.compile(r":[\w-]+:|\(.*\)=$")  # of a directive; a target of links
NOT_READ = {None, "code-cell", "literalinclude", "raw"}  # blocks of code; the words in all others are read
SHORTER = [  # what is read otherwise than it is written
    (re.compile(r"\$\$.*?\$\$", re.DOTALL), ""),
    (re.compile(r"\{cite\}`[^`]*`"), ""),
    (re.compile(r"\$[^$]+\$|\{[\w:]+\}`[^`]*`"), "x"),  # a formula in a sentence, a name: a word
    (re.compile(r"\]\([^)]*\)"), "]"),  # the address of a link
]
WORD = re.compile(r"\w\S*")


def prose(page: str) -> tuple[str, int]:
    """The words of a MyST page (captions, tables and titles, too), and how many blocks of code it has."""
    kept: list[str] = []
    codes = 0
    blocks: list[tuple[str, bool]] = []  # those that are open: their mark, and whether they are read
    for line in HEADER.sub("", page).splitlines():
        fence, shown = FENCE.match(line), all(read for _, read in blocks)
        if fence and blocks and fence[1] == blocks[-1][0] and not line.removeprefix(fence[1]).strip():
            blocks.pop()
        elif fence and shown:
            read = fence[2] not in NOT_READ
            blocks.append((fence[1], read))
            codes += not read
            kept.append(fence[3] if fence[2] == "admonition" else "")  # its title; others name a file
        elif shown and not OPTION.match(line):
            kept.append(line)
    text = "\n".join(kept)
    for pattern, left in SHORTER:
        text = pattern.sub(left, text)
    return text, codes


def reading_minutes(page: Path) -> int:
    """How long a page takes to read, half a minute for each block of code."""
    text, codes = prose(page.read_text(encoding="utf-8"))
    exact = len(WORD.findall(text)) / WORDS_PER_MINUTE + codes * SECONDS_PER_CODE / 60
    return math.ceil(exact) if exact <= STEP * 2 else STEP * math.ceil(exact / STEP)


def points(chapter: str) -> int:
    """What all exercises of a chapter are worth."""
    return sum(each.points for each in of_chapter(chapter))


def files(module: ModuleType) -> list[Path]:
    """The files of the package that somebody takes who takes this module: its own first, and all that they import."""
    assert module.__file__ is not None
    found, ahead = [Path(module.__file__)], 0
    while ahead < len(found):
        found += sorted(_imports(found[ahead]) - set(found))
        ahead += 1
    return found


def _imports(path: Path) -> set[Path]:
    """Files of the package that this one imports itself; of a folder its __init__.py where a name comes from there."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            parts = node.module.split(".") if node.module else []
            start = path.parents[node.level - 1] if node.level else PACKAGE.parent
            for each in node.names:
                base = start.joinpath(*parts)
                modules = base / f"{each.name}.py", base / each.name / "__init__.py"
                places = *modules, base.with_suffix(".py"), base / "__init__.py"  # the first that is there
                found |= {place for place in [*filter(Path.is_file, places)][:1] if place.is_relative_to(PACKAGE)}
    return found
