"""The book's MyST in Markdown that every notebook front end renders, and HTML where Markdown has no words.

MyST's own parser finds directives, roles and what else plain Markdown does not know. Whatever this module cannot
translate is an error that names the page and the line: nothing reaches a notebook raw.

Without Jupyter Book 1: it stays, as it reads the sources with the parser alone; it calls two classes of Sphinx.
"""

from __future__ import annotations

import base64
import hashlib
import html
import itertools
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath
from types import SimpleNamespace
from typing import Any

from myst_parser.parsers.options import options_to_items
from pybtex.database import BibliographyData
from pybtex.plugin import find_plugin
from shardlab_source import Place
from shardlab_statements import paragraphs
from sphinx.directives.code import LiteralInclude, LiteralIncludeReader
from sphinxcontrib.bibtex.style.referencing.author_year import AuthorYearReferenceStyle

STYLE, CITATION = find_plugin("pybtex.style.formatting", "alpha"), AuthorYearReferenceStyle()

# What MyST's parser may find; a footnote, a comment or a labelled formula would stay raw in a notebook.
KNOWN = re.compile(
    """(inline|text|softbreak|hardbreak|code|fence|colon_fence|hr|html|math|em|strong|s|link|span|paragraph|heading
    |bullet_list|ordered_list|list_item|blockquote|table|thead|tbody|tr|th|td|dl|dt|dd|myst_role|myst_target)
    (_open|_close|_block|_inline)?""",
    re.VERBOSE,
)
INLINE = re.compile(
    r"""\{(?P<role>[A-Za-z][\w:.+-]*)\}`(?P<content>[^`]+)`
    | (?P<same>\\. | (?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`) | \$\$.+?\$\$ | \$.+?\$)
    | \[(?P<words>[^][]*)\]\{[^}]*\}
    | \]\((?P<target>[^)\s]+)\)""",
    re.VERBOSE | re.DOTALL,
)


class Markdown(find_plugin("pybtex.backends", "markdown")):  # type: ignore[misc]
    """pybtex's Markdown without a backslash before every full stop, and a work in one line."""

    symbols = {"ndash": "\u2013", "newblock": " ", "nbsp": " "}  # noqa: RUF012

    def format_str(self, text: str) -> str:
        """Protect what Markdown and MathJax would take for marks."""
        return re.sub(r"([\\`*_[\]<>$])", r"\\\1", text)


BACKEND = Markdown()


def translate(text: str, place: Place) -> str:
    """Write MyST as plain Markdown, and what Markdown has no words for as HTML."""
    lines, edits, done = text.split("\n"), [], 0
    for token in place.book.parser.parse(text):
        start, end = token.map or (done, done)
        here = place.below(start)
        refuse_unknown(token, here)
        if start < done or start == end:
            continue
        source = "\n".join(lines[start:end])
        new = None
        if token.type in ("fence", "colon_fence") and token.info.startswith("{"):
            new = textwrap.indent(directive(token, here), re.match(" *", source)[0])
        elif token.type == "dl_open":
            new = definitions(source, here)
        elif token.type == "myst_target":
            new = f'<a id="{token.content}"></a>\n'
        elif token.type == "inline":
            new = inline(source, here)
        elif token.type in ("fence", "math_block", "html_block", "code_block"):
            new = source
        if new is not None:
            edits.append((start, end, new))
            done = end
    for start, end, new in reversed(edits):
        lines[start:end] = [new]
    return "\n".join(lines).rstrip("\n")


def refuse_unknown(token: Any, here: Place) -> None:
    """Raise an error for what would stay in the notebook as it is, though no front end knows it."""
    for each in (token, *(token.children or [])):
        if not KNOWN.fullmatch(each.type):
            raise here.wrong(f"{each.type} has no form in a notebook; teach it to {__name__}, or write it otherwise")


def directive(token: Any, here: Place) -> str:
    """Write one directive in Markdown and HTML."""
    name, argument, options, body = apart(token)
    if name not in DIRECTIVES:
        raise here.wrong(f"the directive {name} has no form in a notebook; known are {', '.join(DIRECTIVES)}")
    return DIRECTIVES[name](argument, options, body, here)


def apart(token: Any) -> tuple[str, str, dict[str, str], str]:
    """Name, argument, options and body of a directive; the body begins as far below its first line as in the page."""
    name, argument = re.fullmatch(r"\{([\w:-]+)\} *(.*)", token.info.strip()).groups()
    lines = token.content.splitlines()
    settings = list(itertools.takewhile(lambda line: line.startswith(":"), lines))
    options = dict(options_to_items("\n".join(line[1:] for line in settings))[0])
    return name, argument, options, "\n".join(["", *("" for _ in settings), *lines[len(settings) :]])


def admonition(title: str, options: dict[str, str], body: str, here: Place) -> str:
    """A folded answer is <details>; anything else is a quotation with a title."""
    words = translate(body, here).strip("\n")
    if {"dropdown", "toggle"} & set(options.get("class", "").split()):
        return f"<details>\n<summary><b>{html.escape(title)}</b></summary>\n\n{words}\n\n</details>\n"
    return textwrap.indent(f"**{inline(title, here)}**\n\n{words}", "> ", lambda _: True)


def figure(name: str, options: dict[str, str], body: str, here: Place) -> str:
    """A drawing inside the notebook; its caption is a quotation, as those of figures that cells draw."""
    here.file(name)
    pixels = here.file(str(PurePath(name).with_suffix(".png")))  # by tools/drawings.py: Colab shows no embedded SVG
    data, alt = base64.b64encode(pixels.read_bytes()).decode(), html.escape(options.get("alt", ""))
    picture = f'<img width="700" alt="{alt}" src="data:image/png;base64,{data}">'
    return f"{picture}\n\n{textwrap.indent(translate(body, here).strip(), '> ')}"


def literalinclude(name: str, options: dict[str, str], _: str, here: Place) -> str:
    """The lines that Sphinx would show, below the name of their file."""
    path, convert = here.file(name), LiteralInclude.option_spec
    try:
        chosen = {option: convert[option](value) for option, value in options.items()}
        reader = LiteralIncludeReader(str(path), chosen, SimpleNamespace(source_encoding="utf-8"))
        text = reader.read()[0].rstrip("\n")
    except (KeyError, ValueError) as error:
        raise here.wrong(f"literalinclude of {name}: {error}") from error
    shown = os.path.relpath(path, here.book.root).removeprefix("code/")
    return f"**`{shown}`**\n\n```{options.get('language', '')}\n{text}\n```"


def bibliography(_: str, __: dict[str, str], ___: str, here: Place) -> str:
    """The works that the book cites, with the words and in the order of the page."""
    cited = {key: entry for key, entry in here.book.works.items() if key in here.book.cited}
    entries = STYLE().format_bibliography(BibliographyData(cited))
    return "\n".join(f"- {entry.text.render(BACKEND)}" for entry in entries)


def definitions(text: str, here: Place) -> str:
    """A list of terms in bold; further terms of the same definition (translations) stand behind the first one."""
    terms: list[str] = []
    lines = []
    for number, line in enumerate(text.split("\n")):
        words, inside = inline(line[2:], here.below(number)), line.startswith((": ", "  "))
        if inside and terms:
            lines.append(f"- **{terms[0]}**{''.join(f' ({each})' for each in terms[1:])}: {words}")
            terms = []
        elif inside or not line:
            lines.append(f"  {words}".rstrip())
        else:
            terms.append(inline(line, here.below(number)))
    return "\n".join(lines)


DIRECTIVES: dict[str, Callable[[str, dict[str, str], str, Place], str]] = {
    "admonition": admonition,
    "bibliography": bibliography,
    "dropdown": lambda title, options, *rest: admonition(title, options | {"class": "dropdown"}, *rest),
    "figure": figure,
    "glossary": lambda _, __, body, here: definitions(body, here).strip("\n"),
    "literalinclude": literalinclude,
    "margin": admonition,
    "note": lambda _, *rest: admonition("Note", *rest),
    "statements": lambda name, _, __, here: translate(paragraphs(here.file(name)), here),
    "table": lambda title, _, body, here: f"**{inline(title, here)}**\n\n{translate(body, here).strip()}",
    "tip": lambda _, *rest: admonition("Tip", *rest),
    "warning": lambda _, *rest: admonition("Warning", *rest),
}


def inline(text: str, here: Place) -> str:
    """Write the roles and links of a paragraph in Markdown; code and formulas stay as they are."""

    def one(found: re.Match[str]) -> str:
        at = here.below(text[: found.start()].count("\n"))
        if found["role"]:
            return cite(found["role"], found["content"], at)
        if found["words"] is not None:  # with a class, which only a page knows
            return inline(found["words"], at)
        return f"]({link(found['target'], at)})" if found["target"] else found[0]

    return INLINE.sub(one, text)


def link(target: str, here: Place) -> str:
    """Where a link leads from a notebook: to the notebook beside it or a file, or with an address to the page there."""
    path, mark, label = target.partition("#")
    if re.match(r"[a-z]+:", target) or not path:
        return target
    file = os.path.normpath(Path(here.page).parent / path)
    page, site = file.removesuffix(".md"), here.book.site.rstrip("/")
    if page in here.book.names and path.endswith(".md"):
        return f"{site}/{page}.html{mark}{label}" if site else here.book.names[page] + mark + label
    if not (here.book.root / file).is_file():
        raise here.wrong(f"{target} is neither a page nor a file of the book")
    digest = hashlib.md5(file.encode(), usedforsecurity=False).hexdigest()  # as Sphinx names its folders
    return f"{site}/_downloads/{digest}/{path.rpartition('/')[2]}" if site else f"../{file}"


def cite(role: str, keys: str, here: Place) -> str:
    """Author and year as the page prints them, with a link to the work."""
    if role not in ("cite", "cite:p", "cite:t"):
        raise here.wrong(f"the role {role} has no form in a notebook; known are cite and cite:t")
    return ("{}" if role == "cite:t" else "[{}]").format(", ".join(cited(role, keys, here)))


def cited(role: str, keys: str, here: Place) -> Iterator[str]:
    """Each work of one citation."""
    for key in map(str.strip, keys.split(",")):
        if key not in here.book.works:
            raise here.wrong(f"{key} is not in the bibliography")
        entry = here.book.works[key]
        data = {"entry": entry, "style": CITATION}
        authors = CITATION.person.author_or_editor_or_title(full=False).format_data(data).render(BACKEND)
        year, address = entry.fields["year"], entry.fields.get("url") or f"https://doi.org/{entry.fields['doi']}"
        yield f"{authors} [[{year}]({address})]" if role == "cite:t" else f"[{authors}, {year}]({address})"
