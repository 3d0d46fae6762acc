"""What a question for an exam is, and the sheet on which a chapter's questions are printed.

A chapter's module has `WRITTEN` and `ORAL`. Each entry is an `ExamQuestion`, or, where it has
numbers, a function `(draw: Random) -> ExamQuestion`, which computes its answer with `costs`. Texts
are Markdown, indented like the code around them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from inspect import cleandoc
from random import Random


@dataclass(frozen=True, kw_only=True)
class ExamQuestion:
    """A question, and what a teacher needs to mark its answers."""

    level: int  # 1: apply what the chapter says; 2: analyse a case; 3: transfer it to another
    ask: str
    answer: str
    rubric: str  # a line for each thing that earns points: "2: the bytes of each state"
    wrong: str  # the usual wrong answer, and what it shows
    then: str = ""  # of an oral question: what to ask next

    @property
    def marks(self) -> list[tuple[int, str]]:
        """The points of each line of the rubric, and what earns them."""
        lines = [line.split(": ", 1) for line in cleandoc(self.rubric).splitlines()]
        return [(int(points), what) for points, what in lines]

    @property
    def points(self) -> int:
        """All points of the rubric."""
        return sum(points for points, _ in self.marks)


Entry = ExamQuestion | Callable[[Random], ExamQuestion]


def drawn(entry: Entry, seed: int) -> ExamQuestion:
    """Return a question with the numbers of a seed, the same ones on every platform."""
    if isinstance(entry, ExamQuestion):
        return entry
    return entry(Random(f"{seed} {entry.__module__.rpartition('.')[2]} {entry.__name__}"))


def sheet(title: str, written: Iterable[Entry], oral: Iterable[Entry], seed: int) -> list[str]:
    """List the paragraphs of the students' sheet: no answers, no rubric."""
    return _paragraphs(title, written, oral, seed, lambda question: [])


def key(title: str, written: Iterable[Entry], oral: Iterable[Entry], seed: int) -> list[str]:
    """List the paragraphs of the teacher's sheet: after each question what its marking needs."""
    return _paragraphs(f"{title}, with answers", written, oral, seed, _marking)


def _paragraphs(
    title: str,
    written: Iterable[Entry],
    oral: Iterable[Entry],
    seed: int,
    after: Callable[[ExamQuestion], list[str]],
) -> list[str]:
    """List headings and numbered questions, each followed by what `after` says."""
    paragraphs, number = [f"# {title} (seed {seed})"], 0
    for heading, entries in (("Written", written), ("Oral", oral)):
        questions = [drawn(entry, seed) for entry in entries]
        paragraphs += [f"## {heading}, {_points(sum(each.points for each in questions))}"]
        for question in questions:
            number += 1
            text = cleandoc(question.ask)
            paragraphs += [f"**{number}.** ({_points(question.points)}) {text}"]
            paragraphs += after(question)
    return paragraphs


def _marking(question: ExamQuestion) -> list[str]:
    """List the answer, the rubric, the usual wrong answer, and what to ask next."""
    rubric = [f"- {_points(points)}: {what}" for points, what in question.marks]
    paragraphs = [
        f"*Answer, level {question.level}:* {cleandoc(question.answer)}",
        "\n".join(rubric),
        f"*Usual wrong answer:* {cleandoc(question.wrong)}",
    ]
    if question.then:
        paragraphs += [f"*Ask next:* {cleandoc(question.then)}"]
    return paragraphs


def _points(count: int) -> str:
    return f"{count} point{'s' if count > 1 else ''}"
