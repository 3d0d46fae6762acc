"""Estimate the minutes that a student needs for a page of the book, without its exercises.

The rates are fitted to the minutes that reviewers of the second edition needed for each of fifteen
chapters, all code understood: text and whole are met to 2 % on average, a single chapter to 10 %.
Words take half as long again as English non-fiction does (Brysbaert 2019,
doi:10.1016/j.jml.2019.104047: 175 to 300 a minute), for most sentences here carry a quantity.
"""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from .myst import PageBlock, blocks
from .project import PACKAGE

SECONDS = {
    "word": 60 / 110,
    "formula": 45,  # on lines of its own
    "symbol": 4,  # a formula within a sentence
    "cell_line": 8,  # to predict, run and look
    "listing_line": 6,
    "picture": 90,  # a figure, a drawing, a table that a cell prints
    "explorer": 240,
    "guess": 90,
    "question": 180,  # to think, before its answer is unfolded
}
STEP = 5  # minutes; a time of more than two steps is rounded up to a multiple
SECOND = "Second sitting:"  # begins the heading of a section that the main line does without
NO_READING = ("Exercises",)  # sections with budgets of their own

FORMULA = re.compile(r"\$\$.*?\$\$", re.DOTALL)
SYMBOL = re.compile(r"\$[^$]+\$")
SHORTER = [  # a pattern, and the words that a reader reads for it
    (re.compile(r"\{cite\}`[^`]*`"), ""),
    (re.compile(r"\{[\w:]+\}`[^`]*`"), "x"),  # a name
    (re.compile(r"\]\([^)]*\)"), "]"),  # the address of a link
]
WORD = re.compile(r"\w\S*")
CAPTION = re.compile(r"^> ", re.MULTILINE)
IMPORT = re.compile(r"^(?:import|from) .*\n?", re.MULTILINE)
MOVING = r"\b(?:Race|Buckets|Neighbours|MemoryTimeline)\("  # pictures that the reader moves
EXPLORER = re.compile(rf"\bexplorers\.\w+\(|\.explorer\(|{MOVING}")
GUESS = re.compile(r"\bguess\.\w+\(")
TABLE = re.compile(r"\btable\(")


@dataclass(frozen=True)
class Minutes:
    """What a page takes: its text, its main line with code and figures, its second sitting."""

    text: float
    all: float
    second: float

    def __str__(self) -> str:
        """Say them in the words that stand below a title."""
        text, everything = rounded(self.text), rounded(self.all)
        words = f"{text} minutes for the text, {everything} with the code"
        if text == everything:
            words = f"{everything} minutes"
        second = f", and {rounded(self.second)} for the second sitting" if self.second else ""
        return f"about {words}{second}"


def minutes(page: Path) -> Minutes:
    """Return the minutes of a page. A second sitting counts apart, exercises do not count."""
    text = everything = second = 0.0
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.section.startswith(NO_READING) or block.folded:
            continue
        words, rest = text_seconds(block), other_seconds(block, page.parent)
        if block.section.startswith(SECOND):
            second += words + rest
        else:
            text += words
            everything += words + rest
    return Minutes(text / 60, everything / 60, second / 60)


def rounded(exact: float) -> int:
    """Round minutes up: to whole ones, above two steps to a multiple of the step."""
    step = 1 if exact <= STEP * 2 else STEP
    return step * -int(-exact // step)


def text_seconds(block: PageBlock) -> float:
    """Return the seconds of a block's words and formulas, captions and tables of the page too."""
    if not block.is_prose:
        return 0.0
    formulas = len(FORMULA.findall(block.text))
    symbols = len(SYMBOL.findall(FORMULA.sub("", block.text)))
    return cost(word=len(WORD.findall(words(block))), formula=formulas, symbol=symbols)


def words(block: PageBlock) -> str:
    """Return what is read of a block of prose, its title too, without formulas and addresses."""
    title = block.argument if block.directive == "admonition" else ""
    text = SYMBOL.sub("", FORMULA.sub("", f"{title}\n{block.text}"))
    for pattern, left in SHORTER:
        text = pattern.sub(left, text)
    return text


def other_seconds(block: PageBlock, folder: Path) -> float:
    """Return the seconds of a block's code, pictures, explorers, guesses and questions.

    folder: that of the page, from which it names the files of its listings.
    """
    match block.directive:
        case "prose":
            return cost(picture=len(CAPTION.findall(block.text)))
        case "code-cell":
            return cell_seconds(block)
        case "literalinclude":
            return cost(listing_line=filled(listing(block, folder)))
        case None:
            return cost(listing_line=filled(block.text))
        case "figure":
            return cost(picture=1)
    return cost(question=block.is_question)


def cell_seconds(cell: PageBlock) -> float:
    """Return the seconds of a cell: of its lines where they are open, and of what it shows."""
    code = IMPORT.sub("", cell.text)
    is_guess = bool(GUESS.search(code))
    shown = cost(
        guess=is_guess, explorer=bool(EXPLORER.search(code)), picture=bool(TABLE.search(code))
    )
    tags = cell.options.get("tags", "")
    if "hide-cell" in tags:
        return 0.0
    if "hide-input" in tags or "remove-input" in tags:
        return shown
    return shown + cost(cell_line=filled(code))


def listing(block: PageBlock, folder: Path) -> str:
    """Return the lines of a file that a `literalinclude` prints.

    An installed package has its pages, but no folder `code` beside them.
    """
    _, in_package, rest = block.argument.partition("code/shardlab/")
    path = PACKAGE / rest if in_package else folder / block.argument
    text = path.read_text(encoding="utf-8")
    if name := block.options.get("pyobject"):
        node: ast.AST = ast.parse(text)
        for part in name.split("."):
            node = next(each for each in _body(node) if getattr(each, "name", "") == part)
        return ast.get_source_segment(text, node) or ""
    start, end = (block.options.get(each, "").strip('"') for each in ("start-at", "end-before"))
    after = text[text.index(start) :]
    return after.partition(end)[0] if end else after


def filled(text: str) -> int:
    """Count the lines that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())


def cost(**counts: int) -> float:
    """Add up seconds: how many words, formulas, pictures ..., each at its rate."""
    return sum(SECONDS[kind] * count for kind, count in counts.items())


def _body(node: ast.AST) -> list[ast.stmt]:
    """Return the statements of a module or a class."""
    return node.body if isinstance(node, ast.Module | ast.ClassDef) else []
