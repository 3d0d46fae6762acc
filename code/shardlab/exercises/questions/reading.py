"""Read questions from Markdown, which a teacher can edit or translate.

    # Questions on memory           the title; cells below it run once, for all questions

    ## Written                      a part of the exam; its heading is printed, so call it anything

    ### states, level 1             a name, which with the seed and the file's name decides `draw`

    ```{code-cell} python
    billions = draw.choice((2, 3, 6))
    ```

    How many bytes do the states of {billions} billion parameters take?

    **Answer.** {16 * billions:,.0f} GB.

    **Rubric.**

    - 2: the bytes of each state
    - 1: the product, with its unit

    **Usual wrong answer.** {2 * billions} GB: only the weights were counted.

    **Ask next.** Which of them does the optimizer need?     of an oral question

A text with a cell is filled in as an f-string is: `{{` stands for a brace. One without a cell is
printed as it stands. Code that is shown stands between plain fences, such as ```python. A
translation keeps the labels, such as **Answer.**, and the names of file and questions: with them, a
seed draws the same numbers.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from traceback import extract_tb
from typing import Any, NamedTuple

from shardlab.files import given

from .bank import ExamQuestion

CELL = "```{code-cell}"
HEADING = re.compile("#{1,3} ")
QUESTION = re.compile(r"(\w+), level ([123])")
LABELS = ("Answer", "Rubric", "Usual wrong answer")  # each question has them
LABEL = re.compile(rf"\*\*({'|'.join(LABELS)}|Ask next)\.\*\*")
MARK = re.compile(r"- ([1-9]\d*): (.+)")


class Lines(NamedTuple):
    """Lines of a file, and the number of the first."""

    first: int
    lines: list[str]

    def split(self, begin: re.Pattern[str]) -> "list[Lines]":
        """Split before lines outside of code that begin so; nothing may stand before the first."""
        pieces, code = [Lines(self.first, [])], False
        for number, line in enumerate(self.lines, self.first):
            code ^= line.startswith("```")
            if not code and begin.match(line):
                pieces += [Lines(number, [])]
            pieces[-1].lines.append(line)
        return pieces

    def apart(self) -> "tuple[Lines, Lines]":
        """Separate cells from prose; both keep their places, among empty lines."""
        cells, prose, inside = Lines(self.first, []), Lines(self.first, []), False
        for line in self.lines:
            fence = line.startswith(CELL) or (inside and line.startswith("```"))
            inside ^= fence
            cells.lines.append(line if inside and not fence else "")
            prose.lines.append("" if inside or fence else line)
        return cells, prose

    @property
    def begin(self) -> int:
        """The number of the first line with something in it."""
        full = (n for n, line in enumerate(self.lines, self.first) if line.strip())
        return next(full, self.first)

    def __str__(self) -> str:
        return "\n".join(self.lines).strip()


@dataclass(frozen=True)
class Source:
    """Where a text stands: what an error names."""

    path: Path
    question: str = ""

    def fault(self, line: int, said: str) -> ValueError:
        """Say what is wrong in a line."""
        name = f", question {self.question}" if self.question else ""
        return ValueError(f"{given.line(str(self.path))}, line {line}{name}: {said}")

    def run(self, text: Lines, names: dict[str, Any], *, fill: bool = False) -> Any:
        """Run a cell, or fill in a text: return what it becomes. Errors: ValueError."""
        path, first = str(self.path), text.begin
        code, mode = (f'rf"""{text}\n"""', "eval") if fill else (str(text), "exec")
        try:
            return eval(compile("\n" * (first - 1) + code, path, mode), names)
        except SyntaxError as error:  # Python counts lines of a text's braces in its own way
            line = first if fill or error.filename != path else error.lineno or first
            raise self.fault(line, f"SyntaxError: {error.msg}") from error
        except Exception as error:
            met = [at.lineno for at in extract_tb(error.__traceback__) if at.filename == path]
            said = f"{type(error).__name__}: {error}"
            raise self.fault([first, *met][-1] or first, said) from error


@dataclass(frozen=True)
class Entry:
    """A question before its numbers are drawn."""

    source: Source
    level: int
    cells: Lines
    texts: Mapping[str, Lines]  # by label; the question itself by ""
    names: Mapping[str, Any]  # of the file's own cells

    def drawn(self, seed: int) -> ExamQuestion:
        """Return the question with the numbers of a seed, the same ones on every platform."""
        return self.filled(Random(f"{seed} {self.source.path.stem} {self.source.question}"))

    def filled(self, draw: Random) -> ExamQuestion:
        """Return the question with the numbers that its cell draws. Errors: ValueError."""
        texts = {label: str(text) for label, text in self.texts.items()}
        if str(self.cells):
            names = {**self.names, "draw": draw}
            self.source.run(self.cells, names)
            for label, text in self.texts.items():
                texts[label] = self.source.run(text, names, fill=True).strip()
        return ExamQuestion(
            level=self.level,
            ask=texts[""],
            answer=texts["Answer"],
            marks=[self._mark(line) for line in texts["Rubric"].splitlines() if line],
            wrong=texts["Usual wrong answer"],
            then=texts.get("Ask next", ""),
        )

    def _mark(self, line: str) -> tuple[int, str]:
        if not (found := MARK.fullmatch(line)):
            said = f"{line!r} is no line of a rubric; write '- 2: what earns two points'"
            raise self.source.fault(self.texts["Rubric"].first, said)
        return int(found[1]), found[2]


class Chapter(NamedTuple):
    """What a file asks: the entries of each part, such as Written."""

    title: str
    parts: Mapping[str, Sequence[Entry]]


def read(path: Path) -> Chapter:
    """Read a file, and run the cells below its title. Errors: ValueError with path and line."""
    source, names, parts = Source(path), dict[str, Any](), dict[str, list[Entry]]()
    whole = Lines(1, given.read(path).splitlines())
    _check_fences(source, whole)
    before, *pieces = whole.split(HEADING)
    if str(before) or not pieces or not pieces[0].lines[0].startswith("# "):
        raise source.fault(1, "a file of questions begins with '# ' and its title")
    for first, (heading, *lines) in pieces:
        below = Lines(first + 1, lines)
        hashes, text = heading.split(" ", 1)
        if first == pieces[0].first:
            source.run(below.apart()[0], names)
        elif hashes == "##" and text not in parts and not str(below):
            parts[text] = []
        elif hashes == "###" and parts:
            known = {each.source.question for entries in parts.values() for each in entries}
            [*parts.values()][-1].append(_entry(source, text, below, names, known))
        else:
            said = "begins neither a new part, '## Written', with nothing but questions below it,"
            raise source.fault(first, f"{heading!r} {said} nor a question in one")
    if not parts or not all(parts.values()):
        raise source.fault(len(whole.lines), "each part needs a question, and a file needs a part")
    return Chapter(pieces[0].lines[0].removeprefix("# "), parts)


def _entry(
    source: Source, heading: str, below: Lines, names: Mapping[str, Any], known: Collection[str]
) -> Entry:
    """Take a question apart: its cells, and a text for each label."""
    if not (found := QUESTION.fullmatch(heading)) or found[1] in known:
        said = f"{heading!r} is no new question; write '### a_new_name, level 2', with level 1 to 3"
        raise source.fault(below.first - 1, said)
    source = replace(source, question=found[1])
    asked, *pieces = below.split(LABEL)
    cells, prose = asked.apart()
    texts = {"": prose}
    for first, lines in pieces:
        _, label, begin = LABEL.split(lines[0], maxsplit=1)
        if label in texts:
            raise source.fault(first, f"**{label}.** stands here twice")
        texts[label] = Lines(first, [begin, *lines[1:]])
    for label in ("", *LABELS):
        if not str(texts.get(label, "")):
            what = f"a text after **{label}.**" if label else "a text that asks"
            raise source.fault(below.first - 1, f"it needs {what}")
    return Entry(source, int(found[2]), cells, texts, names)


def _check_fences(source: Source, whole: Lines) -> None:
    """Refuse code without an end, which would swallow the questions that follow."""
    begun = 0
    for number, line in enumerate(whole.lines, whole.first):
        if line.startswith("```"):
            if begun and line.strip() != "```":
                break
            begun = 0 if begun else number
    if begun:
        raise source.fault(begun, "this code has no end: a line with ``` alone")
