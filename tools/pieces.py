"""A page of the book in pieces, and the sentences in them: what slides are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from shardlab_markdown import apart, inline
from shardlab_source import Book, Place

LEAD = re.compile(r"(?:^| )\*\*(?:Guess first|Predict[^*]*|Now decide yourself)[.:]\*\*")
FRAME = re.compile(r"(One idea, one formula|The smallest run that shows it|When it breaks|Predicted[^:]*): ")
CITED = re.compile(r" ?\{cite(?::p)?\}`[^`]*`")
LINKED = re.compile(r"\[([^][]*)\]\([^)\s]+\)")
SENTENCE = re.compile(r"(?<=[.?!:])(?:(?<=\.)\*\*|)\s+(?=[^a-z\s])")
LAB = re.compile(r"^\*\*([A-Z][\w ]+)\.\*\* (.*)$", re.MULTILINE)


class Block(NamedTuple):
    """A piece of a page: what it is, what its first line names, its text, and the headings that it is below."""

    kind: str
    name: str
    text: str
    options: dict[str, str]
    above: tuple[str, str]

    @property
    def heading(self) -> str:
        """The nearest heading, without the name of its section where it says more."""
        return capital(FRAME.sub("", self.above[1])) if FRAME.match(self.above[1]) else self.above[1]


def blocks(book: Book, page: str) -> Iterator[Block]:
    """Take the main line of a page apart: second sittings stay at home."""
    text, above = book.path(page).read_text(), ("", "")
    lines = text.splitlines()
    for token in book.parser.parse(text):
        if token.level or not token.map or token.type.endswith("_close"):
            continue
        source = "\n".join(lines[slice(*token.map)]).strip()
        if token.type == "heading_open":
            words = clean(book, page, source.lstrip("# "))
            above = (words, words) if token.tag in ("h1", "h2") else (above[0], words)
        if above[0].startswith("Second sitting"):
            continue
        if token.type in ("fence", "colon_fence") and token.info.startswith("{"):
            name, argument, options, body = apart(token)
            words = clean(book, page, body) if name in ("figure", "admonition") else body
            yield Block(name, argument, words.strip("\n"), options, above)
        else:
            words = LEAD.sub("", clean(book, page, source)).strip() if token.type != "fence" else source
            if words:
                yield Block(token.type.removesuffix("_open"), token.tag, words, {}, above)


def clean(book: Book, page: str, text: str) -> str:
    """The words of a paragraph without works in parentheses and without links."""
    return LINKED.sub(r"\1", inline(CITED.sub("", text), Place(book, page)))


def plain(text: str) -> str:
    """Words without the marks of Markdown; formulas and code stay as they are written."""
    return re.sub(r"(\$\$?[^$]*\$\$?)|`([^`]*)`|\*+|^[->] ", r"\1\2", text, flags=re.MULTILINE)


def capital(text: str) -> str:
    """The text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def first(text: str, words: int) -> str:
    """The first sentences of a text, up to a number of words, but at least one sentence."""
    kept: list[str] = []
    for each in sentences(text):
        if kept and len(" ".join([*kept, each]).split()) > words:
            break
        kept.append(each)
    return re.sub(r":$", ".", " ".join(kept))


def sentences(text: str) -> list[str]:
    """The sentences of a text; bold that ends inside one is closed there."""
    found = [each for each in SENTENCE.split(" ".join(text.split())) if each]
    return [f"{each}**" if each.count("**") % 2 else each for each in found]


def ending(text: str, words: int) -> str:
    """The last sentences of a text, up to a number of words."""
    found = sentences(text)
    kept: list[str] = []
    while found and len(" ".join([found[-1], *kept]).split()) <= words:
        kept.insert(0, found.pop())
    return " ".join(kept)


def labs(book: Book) -> dict[str, dict[str, str]]:
    """Chapter -> the parts of its lab sheet."""
    found = {}
    for sheet in book.path("book/labs").read_text().split("\n## Lab ")[1:]:
        parts = dict(LAB.findall(sheet))
        page = re.search(r"\((\w+)\.md\)", parts["Open"])
        found[page[1]] = {name: clean(book, "book/labs", text) for name, text in parts.items()}
    return found


def beside(every: list[Block], at: int) -> str:
    """The paragraphs before and after a block, for the notes."""
    around = [*every[max(at - 4, 0) : at], *every[at + 1 : at + 5]]
    return "\n\n".join(each.text for each in around if each.kind == "paragraph" and each.above[0] == every[at].above[0])


def told(every: list[Block], section: str) -> list[str]:
    """The paragraphs of the section with this heading."""
    return [each.text for each in every if each.above[0].startswith(section) and each.kind == "paragraph"]
