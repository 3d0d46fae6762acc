"""What a question for an exam is, and the sheet on which a chapter's questions are printed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ExamQuestion:
    """A question with its numbers, and what a teacher needs to mark its answers."""

    level: int  # 1: apply what the chapter says; 2: analyse a case; 3: transfer it to another
    ask: str
    answer: str
    marks: Sequence[tuple[int, str]]  # points, and what earns them
    wrong: str  # the usual wrong answer, and what it shows
    then: str = ""  # of an oral question: what to ask next

    @property
    def points(self) -> int:
        """All points of the rubric."""
        return sum(points for points, _ in self.marks)


def sheet(
    title: str, seed: int, parts: Mapping[str, Sequence[ExamQuestion]], *, answers: bool
) -> str:
    """Print questions below the headings of their parts, with `answers` how to mark them."""
    paragraphs, number = [f"# {title}{', with answers' if answers else ''} (seed {seed})"], 0
    for part, questions in parts.items():
        paragraphs += [f"## {part}, {_points(sum(each.points for each in questions))}"]
        for question in questions:
            number += 1
            paragraphs += [f"**{number}.** ({_points(question.points)}) {question.ask}"]
            paragraphs += _marking(question) if answers else []
    return "\n\n".join(paragraphs)


def _marking(question: ExamQuestion) -> list[str]:
    """List the answer, the rubric, the usual wrong answer, and what to ask next."""
    rubric = [f"- {_points(points)}: {what}" for points, what in question.marks]
    paragraphs = [
        f"*Answer, level {question.level}:* {question.answer}",
        "\n".join(rubric),
        f"*Usual wrong answer:* {question.wrong}",
    ]
    if question.then:
        paragraphs += [f"*Ask next:* {question.then}"]
    return paragraphs


def _points(count: int) -> str:
    return f"{count} point{'s' if count > 1 else ''}"
