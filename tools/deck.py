"""The slides of a chapter, made from its own page by rule, so that nothing is written twice.

What a class needs is always there: the question, every form of the main line with its answer, the drawings, what to
take home. Cases, the formula and findings of sections follow in this order, as far as there is room.
"""

from __future__ import annotations

import ast
import contextlib
import html
import io
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import workshop
from pieces import Block, beside, blocks, capital, ending, first, labs, plain, sentences, told
from shardlab_markdown import DIRECTIVES
from shardlab_notebooks import notebook
from shardlab_source import Book, Place

from shardlab.explorers.guess import Guess
from shardlab.explorers.questions import Choice

FEWEST, ENOUGH, MOST = 10, 13, 15  # slides; findings stop at the second number
WORDS, LINES = 60, 15  # of a slide without its notes
ASKED, SAID, NAMED = 36, 44, 15  # words before a question; on any other slide; of a title
NO_FINDING = "In one|The question|The code|Change it|The explorer|What real|When it"
NO_FINDING += "|Exercises|The journey|Sources|Takeaway"
CASE = re.compile(r"^When it breaks|\nCase \d")
SHOWN = r"```(?:python|text)\n[\s\S]*?\n```"
NO_WORDS = re.compile(SHOWN + r"|```.*|^:alt:.*|(?<!\S)\$\$[\s\S]*?\$\$(?!\S)|\$[^$]*\$", re.MULTILINE)
IMPORT = re.compile(r"^(?:from .* )?import .*\n", re.MULTILINE)


class Slide(NamedTuple):
    """A slide in Markdown; those of the lowest rank stay when there is no room for all."""

    rank: int
    at: int
    title: str
    body: str
    notes: str

    @property
    def text(self) -> str:
        """The source that the slides are made of; notes are plain text, for their window knows no formulas."""
        notes = "".join(f"<p>{html.escape(plain(each))}</p>" for each in self.notes.split("\n\n") if each.strip())
        return f"{'#' if self.at < 0 else '##'} {self.title}\n\n{self.body}\n\n<aside class=\"notes\">{notes}</aside>\n"

    @property
    def words(self) -> int:
        """The words that a class reads: no code, no formula of its own line, no description of a drawing."""
        return len(re.findall(r"\S*\w\S*", NO_WORDS.sub("", f"{self.title}\n{self.body}")))


def slides(book: Book, page: str, asked: dict[str, Guess]) -> list[Slide]:
    """Return the slides of a page, with what its forms ask; the first has the title of the chapter.

    Errors: ValueError where the page has too few slides, more that must stay than a deck holds, or no drawing of its
    minute.
    """
    every = list(blocks(book, page))
    sheet = labs(book)[Path(page).name]
    made = [title(every, sheet), *asks(book, page, every, asked, sheet), *figures(every), *last(every, sheet)]
    made += [*cases(book, page, every), *formula(every)]
    room = sorted(made, key=lambda each: (each.rank, each.at))
    room += [each for each in findings(every) if each.title not in {slide.title for slide in made}]
    kept = sorted(room[:MOST if len(made) >= ENOUGH else ENOUGH], key=lambda each: each.at)
    if len(kept) < FEWEST or sum(each.rank == 0 for each in made) > MOST:
        raise ValueError(f"{page} makes {len(made)} slides; a deck has {FEWEST} to {MOST}")
    return kept


def title(every: list[Block], sheet: dict[str, str]) -> Slide:
    """The chapter, and the question of its first section."""
    ask = told(every, "The question")
    name = next(each.text.removeprefix("# ") for each in every if each.kind == "heading")
    return Slide(0, -1, name, first("\n\n".join(ask), SAID), "\n\n".join([f"Open: {sheet['Open']}", *ask]))


def asks(book: Book, page: str, every: list[Block], asked: dict[str, Guess], sheet: dict[str, str]) -> Iterator[Slide]:
    """Each form: what the page says before it, the question, and as a fragment the answer with its sentence."""
    stick = f"Where students stick: {sheet['Where students stick']}"
    forms = [(at, asked[name]) for at, each in enumerate(every) for name in workshop.ASKED.findall(each.text)]
    stuck = [at for at, form in forms if form.question.text in sheet["Ask"]] or [at for at, _ in forms]
    for at, form in forms:
        ask, shown, before = form.question, "", ""
        for each in every[max(at - 4, 0) : at]:
            before = each.text if each.kind == "paragraph" else before
            shown = code(book, page, each) if each.kind != "paragraph" else shown
        options = "\n".join(f"- {each}" for each in ask.options) if isinstance(ask, Choice) else ""
        if shown and options:  # too much for one slide
            yield Slide(0, at - 1, every[at].heading, shown, before)
            shown = ""
        fixed = f"{options}\n\n{fragment(f'**{ask.solution}.** {ask.why}')}"
        words = ending(before, min(ASKED, WORDS - Slide(0, at, ask.text, fixed, "").words))
        notes = "\n\n".join([beside(every, at), stick if at == stuck[0] else ""])
        yield Slide(0, at, ask.text, f"{shown}\n\n{capital(words)}\n\n{fixed}", notes)


def code(book: Book, page: str, block: Block) -> str:
    """A listing, a message or a function that a question is about, if a slide has room for it."""
    text = ""
    if block.kind == "literalinclude":
        text = DIRECTIVES[block.kind](block.name, block.options, "", Place(book, page)).partition("\n\n")[2]
    elif block.kind == "fence":
        text = block.text
    elif block.kind == "code-cell" and "def " in block.text and not re.search("hide|remove", str(block.options)):
        text = f"```python\n{IMPORT.sub('', block.text).strip()}\n```"
    return text if text.count("\n") <= LINES + 1 else ""


def fragment(text: str) -> str:
    """What appears at the next key."""
    return f"```{{revealjs-fragments}}\n{text}\n```"


def picture(block: Block) -> str:
    """A drawing below `book/`, with its description."""
    return f"```{{image}} {block.name}\n:alt: {block.options['alt']}\n```"


def figures(every: list[Block]) -> Iterator[Slide]:
    """Each drawing: a short first sentence of its caption is the title, else the heading."""
    for at, block in enumerate(every):
        if block.kind == "figure" and block.above[0] != "In one minute":
            head, *rest = sentences(block.text)
            short = len(head.split()) <= NAMED or re.match(NO_FINDING, block.heading)
            words = " ".join(rest) if short else block.text
            body = f"{picture(block)}\n\n{first(words, SAID) if words else ''}"
            name = head.rstrip(".:") if short else block.heading
            yield Slide(0, at, name, body, f"{beside(every, at)}\n\nThe drawing: {block.options['alt']}")


def cases(book: Book, page: str, every: list[Block]) -> Iterator[Slide]:
    """Each case that breaks: what is seen, then what the page folds."""
    for at, block in enumerate(every):
        if "dropdown" in block.options.get("class", "") and CASE.search("\n".join(block.above)):
            name = block.heading
            here = [each for each in every[:at] if each.above == block.above]
            seen = [each.text for each in here if each.kind == "paragraph"]
            shown = next(filter(None, (code(book, page, each) for each in reversed(here))), "")
            least = Slide(1, at, name, f"{block.name} {first(block.text, 0)}", "").words
            ask = f"{shown}\n\n{first(' '.join(seen), min(ASKED, WORDS - least))}\n\n**{block.name}**"
            room = WORDS - Slide(1, at, name, ask, "").words
            body = f"{ask}\n\n{fragment(first(block.text, room))}"
            yield Slide(1, at, name, body, "\n\n".join([*seen, f"The answer: {block.text}"]))


def formula(every: list[Block]) -> Iterator[Slide]:
    """The first formula that stands alone, between the sentences beside it."""
    for at, block in enumerate(every):
        if block.kind == "math_block":
            around = [every[at - 1], *every[at + 1 : at + 2]]
            before, *after = (each.text if each.kind == "paragraph" else "" for each in around)
            after = f"{block.text}\n\n{first(' '.join(after), 0)}"
            body = f"{ending(before, WORDS - Slide(2, at, block.heading, after, '').words)}\n\n{after}"
            yield Slide(2, at, block.heading, body, beside(every, at))
            return


def findings(every: list[Block]) -> Iterator[Slide]:
    """The sections whose heading says something, with their first sentences; bold ones come first."""
    found = []
    for (_, above), (at, block) in pairwise(enumerate(every)):
        begins = above.kind == "heading" and block.kind == "paragraph"
        if begins and not re.match(NO_FINDING, block.above[1]) and not CASE.search("\n".join(block.above)):
            notes = f"{block.text}\n\n{beside(every, at)}"
            found.append(Slide(3, at, block.heading, first(block.text, SAID), notes))
    yield from sorted(found, key=lambda each: "**" not in each.body)


def last(every: list[Block], sheet: dict[str, str]) -> Iterator[Slide]:
    """The chapter in one minute, and what to take home. Errors: ValueError where it has no drawing of its minute."""
    block = next((each for each in every if each.kind == "figure" and each.above[0] == "In one minute"), None)
    if block is None:
        raise ValueError('the section "In one minute" has no drawing; give it a figure')
    body = f"{picture(block)}\n\n{first(block.text, SAID)}"
    yield Slide(0, len(every), "In one minute", body, "\n\n".join(told(every, "In one minute")))
    remember = [each.text for each in every if each.kind == "admonition" and each.options.get("class") == "tip"]
    yield Slide(0, len(every) + 1, "Take home", sheet["Take home"], "\n\n".join(remember))


def answers(root: Path, page: str) -> dict[str, Guess]:
    """Run the cells that the forms of a page need, and return the forms by name."""
    cells = [each for each in notebook(Book(root), page).cells if each.cell_type == "code"]
    parts = [workshop.Part("code", each.source, wanted=bool(workshop.ASKED.search(each.source))) for each in cells]
    known: dict[str, object] = {"__name__": "__main__"}
    found: dict[str, Guess] = {}
    for part in workshop.with_what_it_needs(parts):
        tree = ast.parse(part.source)
        form = tree.body.pop() if workshop.ASKED.search(part.source) else None
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(tree, page, "exec"), known)
        if isinstance(form, ast.Expr):
            asked = eval(compile(ast.Expression(form.value), page, "eval"), known)
            found[asked.question.name] = asked
    return found


def decks(book: Book, pages: list[str]) -> dict[str, list[Slide]]:
    """Make the slides of some pages; their cells run in a process of their own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as aside:
        asked = list(aside.map(answers, [book.root] * len(pages), pages))
    return {page: slides(book, page, each) for page, each in zip(pages, asked, strict=True)}
