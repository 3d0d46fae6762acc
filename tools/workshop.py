"""The workshop edition of a chapter: what one works in during a class, made from the chapter's own page.

It has the guesses, each of which locks the next output; the plain file as a cell with holes, and its check; the
exercises. Cells that these need come along, opened unless they draw; all imports are in the first one. The text stays
in the reading edition.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import nbformat
from shardlab_notebooks import folded, notebook, state
from shardlab_source import Book

from shardlab.exercises import workshop
from shardlab.exercises.holes import HOLES

FOLDER = "workshop"  # beside the reading edition
INTRODUCTION = """# {title}: workshop

This notebook is for work in class; the text is in [the chapter]({name}). Run the first cell by itself, then work from
the top: a guess unlocks the output after it, and `check` judges every line that you write."""
CHECK = 'workshop.check("{0}")'
LOCK = 'guess.made("{0}")'
SET_UP = "from shardlab.exercises import workshop\nfrom shardlab.explorers import guess\n"
ASKED = re.compile(r"^guess\.(?:number|choice)\(.*?\bname=\"([\w-]+)\"", re.MULTILINE | re.DOTALL)
LISTING = re.compile(r"^\*\*`shardlab/plain/(\w+)\.py`\*\*$", re.MULTILINE)
HEADING = re.compile(r"^(?=##+ )", re.MULTILINE)
ANCHOR = re.compile(r'^<a id="[^"]*"></a>\n*', re.MULTILINE)
LINK = re.compile(r"\]\((?=\d\d_\w+\.ipynb)")
DEEPEST = 9
LISTED = "plain-file"  # the tag of its cell, whose imports stay there
DRAWS, NO_DRAWING = ("shardlab.figures", "shardlab.explorers"), {"shardlab.explorers.guess"}


@dataclass
class Part:
    """A piece of the notebook in the making: Markdown, or code with what it needs and binds."""

    kind: str
    source: str
    tags: list[str] = field(default_factory=list)
    wanted: bool = False  # for itself, not because another one needs it
    meant: str = ""  # the code to look at, where the source has holes

    @property
    def names(self) -> tuple[set[str], set[str]]:
        """The names that the code needs from cells before it, and those that it binds."""
        nodes = list(steps(ast.parse(self.meant or self.source).body))
        bound = [bound_by(node) for node in nodes]
        needs: set[str] = set()
        for number, node in enumerate(nodes):
            later = isinstance(node, ast.FunctionDef | ast.ClassDef)  # its names are looked up when it is called
            changed = isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
            used = globals_in(table_of(node)) | ({node.target.id} if changed else set())
            needs |= used - set().union(*(bound if later else bound[:number]))
        return needs - set(dir(builtins)), set().union(*bound)


def steps(nodes: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements in the order in which they run; a loop first binds its variable."""
    for node in nodes:
        match node:
            case ast.For():
                yield ast.Assign([node.target], node.iter, lineno=0)
            case ast.With():
                for each in node.items:
                    yield ast.Assign([each.optional_vars or ast.Name("_")], each.context_expr, lineno=0)
            case ast.If() | ast.While():
                yield ast.Expr(node.test)
            case ast.Try():
                yield from steps(node.body)
                for handler in node.handlers:
                    yield ast.Assign([ast.Name(handler.name or "_")], handler.type or ast.Constant(0), lineno=0)
                    yield from steps(handler.body)
                yield from steps(node.orelse + node.finalbody)
                continue
            case _:
                yield node
                continue
        yield from steps([*node.body, *getattr(node, "orelse", [])])


def table_of(node: ast.stmt) -> symtable.SymbolTable:
    """What Python knows of the names in a statement."""
    return symtable.symtable(ast.unparse(node), "cell", "exec")


def bound_by(node: ast.stmt) -> set[str]:
    """The names that a statement binds in the notebook."""
    return {each.get_name() for each in table_of(node).get_symbols() if each.is_assigned() or each.is_imported()}


def globals_in(table: symtable.SymbolTable) -> set[str]:
    """The names that code takes from the notebook, also within its functions."""
    outermost = table.get_type() == "module"
    used = [each for each in table.get_symbols() if each.is_referenced()]
    found = {each.get_name() for each in used if outermost or each.is_global()}
    return found.union(*map(globals_in, table.get_children()))


def edition(book: Book, page: str) -> nbformat.NotebookNode | None:
    """Make the workshop edition of a page; None where a page has no exercises."""
    reading, name = notebook(book, page), book.names[page]
    parts = list(apart(reading))
    if not any(part.source == "## Exercises" for part in parts):
        return None
    lock_outputs(parts)
    title = reading.cells[0].source.partition("\n")[0].removeprefix("# ")
    first = Part("markdown", INTRODUCTION.format(title=title, name=name))
    worked = [first, *with_headings(with_set_up(with_what_it_needs(parts)))]
    made = nbformat.from_dict({**reading, "cells": [cell(part, name) for part in worked]})
    for number, each in enumerate(made.cells):
        each.id = f"{Path(page).name[:40]}-workshop-{number}"
    made.metadata.shardlab.edition = state(made)
    return made


def cell(part: Part, name: str) -> nbformat.NotebookNode:
    """A cell of the notebook; links lead to the reading edition, whose name is given."""
    if part.kind == "code":
        tags = {"metadata": {"tags": part.tags, **folded(part.tags)}} if part.tags else {}
        return nbformat.v4.new_code_cell(part.source, **tags)
    text = part.source
    if part.kind == "heading":
        place = quote(text.lstrip("# ").replace(" ", "-"))  # the name that JupyterLab gives a heading
        text += f"\n\n[The text of this section]({name}#{place})"
    return nbformat.v4.new_markdown_cell(LINK.sub("](../", text))


def apart(reading: nbformat.NotebookNode) -> Iterator[Part]:
    """Take the reading edition apart: headings, cells, plain files, and all of the exercises."""
    exercises = False
    for each in reading.cells:
        if each.cell_type == "code":
            asked = ASKED.search(each.source)
            yield Part("code", each.source, each.metadata.get("tags", []), wanted=bool(exercises or asked))
            continue
        for text in HEADING.split(ANCHOR.sub("", each.source)):
            heading, _, below = text.partition("\n")
            if text.startswith("## "):
                exercises = heading == "## Exercises"
            if text.startswith("##"):
                yield Part("heading", heading)
                text = below.strip()
            if exercises and text.strip():
                yield Part("markdown", text, wanted=True)
            for name in LISTING.findall(text):
                if name in HOLES:  # of other files a page shows a function
                    yield from file_with_holes(name)


def file_with_holes(name: str) -> Iterator[Part]:
    """The cell to complete and the cell that checks it."""
    words = f"Put your own lines in place of each `raise` of `{name}.py`. Its first lines are how it is used."
    yield Part("markdown", words, wanted=True)
    yield Part("code", workshop.cell(name).rstrip("\n"), [LISTED], wanted=True, meant=workshop.plain(name))
    yield Part("code", CHECK.format(name), wanted=True)


def with_what_it_needs(parts: list[Part]) -> list[Part]:
    """Return the headings, what is wanted, and the cells that bind the names which that needs."""
    next(part for part in parts if part.kind == "code").wanted = True  # the chapter's own set-up
    kept: list[Part] = []
    needed: set[str] = set()
    for part in reversed(parts):
        needs, binds = part.names if part.kind == "code" else (set(), set())
        if part.wanted or part.kind == "heading" or binds & needed:
            needed = (needed - binds) | needs
            kept.insert(0, part)
    return kept


def with_headings(parts: Iterable[Part]) -> list[Part]:
    """Leave out headings of sections that hold nothing here."""
    kept: list[Part] = []
    depth = 0  # of what comes next: a cell is below every heading
    for part in reversed(list(parts)):
        heading = part.kind == "heading"
        own = len(part.source.partition(" ")[0]) if heading else DEEPEST
        if own < depth or not heading:
            kept.insert(0, part)
            depth = own
    return kept


def shows(source: str) -> bool:
    """Whether a cell of the chapter ends with something to be seen."""
    return isinstance(ast.parse(source).body[-1], ast.Expr) and not source.startswith("workshop.check(")


def lock_outputs(parts: list[Part]) -> None:
    """Want the next cell with an output after each guess, and begin it with a line that waits for the guess."""
    waiting: list[str] = []
    for part in (part for part in parts if part.kind == "code"):
        asked = ASKED.search(part.source)
        if asked:
            waiting.append(asked[1])
        elif waiting and shows(part.source):
            part.source = "\n".join([*map(LOCK.format, waiting), part.source])
            part.wanted, waiting = True, []


def with_set_up(parts: list[Part]) -> Iterator[Part]:
    """Yield a cell with all imports of names that mean one thing, then the parts without these."""
    code = [Part("code", SET_UP), *(part for part in parts if part.kind == "code")]
    meanings = meanings_in(code)
    imports: list[tuple[str, str]] = []
    for part in code:
        if LISTED not in part.tags:
            imports += taken_out(part, meanings)
        drawn = {each for name in part.names[0] for each in meanings.get(name, ()) if each.startswith(DRAWS)}
        if not (drawn - NO_DRAWING or "remove-input" in part.tags):
            part.tags = [tag for tag in part.tags if tag in ("raises-exception", LISTED)]
    first = code[1]
    modules = dict.fromkeys(module for module, _ in imports)
    names = {each: ", ".join(dict.fromkeys(name for module, name in imports if module == each)) for each in modules}
    lines = [f"from {module} import {names[module]}" if module else f"import {names[module]}" for module in modules]
    yield Part("code", "\n".join([*lines, "", first.source]).strip())
    yield from (part for part in parts if part is not first and part.source)


def meanings_in(code: list[Part]) -> dict[str, set[str]]:
    """What each name of the cells stands for: what is imported, or else where it is bound."""
    found: dict[str, set[str]] = {}
    for number, part in enumerate(code):
        for node in steps(ast.parse(part.meant or part.source).body):
            rest = bound_by(node)
            for name, meaning in (imported(node) or dict.fromkeys(rest, f"cell {number}")).items():
                found.setdefault(name, set()).add(meaning)
    return found


def imported(node: ast.stmt) -> dict[str, str]:
    """The names that an import binds, with what they stand for."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return {}
    module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
    return {each.asname or each.name.split(".")[0]: module + each.name for each in node.names}


def taken_out(part: Part, meanings: dict[str, set[str]]) -> Iterator[tuple[str, str]]:
    """Take the imports of names with one meaning out of a cell; yield each as its module and its name."""
    lines = part.source.split("\n")
    for node in ast.parse(part.source).body:
        names = imported(node)
        if names and all(len(meanings[name]) == 1 for name in names):
            module = node.module if isinstance(node, ast.ImportFrom) else ""
            yield from ((module, ast.unparse(each)) for each in node.names)
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    part.source = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip("\n")
