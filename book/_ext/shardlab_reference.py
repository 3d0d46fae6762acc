"""Sphinx extension: the reference of the package, made from its docstrings, and links from chapters into it.

A page of the reference has lines such as `% modules: shardlab.ranks.zero`; each becomes a section for every module of
that package. autodoc finds signatures and docstrings. Docstrings here are plain text, not reStructuredText.

Without Jupyter Book 1: a Sphinx site of its own, which mystmd links through its inventory.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import itertools
import pkgutil
import re
import textwrap
from collections.abc import Iterator, Set
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

LINE = re.compile(r"^% modules: (\S+)$", re.MULTILINE)
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
MARKUP = re.compile(r"([\\*_|<>\[\]])")
# Lists, tables and code; and arguments, each with its meaning.
ALIGNED = re.compile(r"^\s|\S {3,}\S|^(?:[-*]|\d+\.) |^[\w, ]+: .*\n(?:.*\n)*[\w, ]+: ", re.MULTILINE)


def expand(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a section for each module in the place of the line that names their package."""
    pages = Path(app.srcdir, "book", "reference").glob("*.md")
    named = {name for path in pages for name in LINE.findall(path.read_text(encoding="utf-8"))}
    source[0] = LINE.sub(lambda line: "\n".join(map(_section, modules(line[1], named - {line[1]}))), source[0])


def modules(name: str, apart: Set[str] = frozenset()) -> list[ModuleType]:
    """List a module or package and the public ones inside, in the order in which a package imports them.

    apart: packages with a line of their own, on this page or on another.
    """
    if name in apart:
        return []
    package = importlib.import_module(name)
    if not hasattr(package, "__path__"):
        return [package]
    found = pkgutil.iter_modules(package.__path__)
    inside = sorted(each.name for each in found if not each.name.startswith("_"))
    return [package, *(module for each in inside for module in modules(f"{name}.{each}", apart))]


def _section(module: ModuleType) -> str:
    title = module.__name__.removeprefix("shardlab.")
    directive = f".. automodule:: {module.__name__}\n   :members:\n   :ignore-module-all:"
    return f"\n## `{title}`\n\n```{{eval-rst}}\n{directive}\n```\n"


def rewrite_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Set paragraphs as prose, and as they stand where lines are aligned; add the fields of a data class."""
    first, *others = "\n".join(lines).strip().split("\n\n")
    lines[:] = [_prose(first), ""]
    if what == "class":
        lines += _literal("python", _fields(thing))
    for aligned, blocks in itertools.groupby(others, lambda block: bool(ALIGNED.search(block))):
        if aligned:
            lines += _literal("text", "\n\n".join(blocks))
        else:
            lines += itertools.chain.from_iterable((_prose(block), "") for block in blocks)


def rewrite_signature(app: Sphinx, what: str, name: str, thing: Any, options: Any, given: str, result: str) -> Any:
    """Give the signature as it is written in the source, with the names of its hints."""
    if what == "class":
        return "", ""
    if what not in ("function", "method"):
        return None
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body
    except (OSError, TypeError, SyntaxError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    if what == "method" and node.args.args and node.args.args[0].arg in ("self", "cls"):
        del node.args.args[0]
    return f"({ast.unparse(node.args)})", node.returns and ast.unparse(node.returns)


def skip_aliases(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out the fields of named tuples, which stand in the source of their class."""
    return True if (getattr(thing, "__doc__", None) or "").startswith("Alias for field") else None


def _prose(text: str) -> str:
    """Escape what reStructuredText would read as markup; what stands between single backticks becomes code."""
    parts = " ".join(text.split()).replace("::", ":\\:").split("`")
    return "".join(f"``{part}``" if odd % 2 else MARKUP.sub(r"\\\1", part) for odd, part in enumerate(parts))


def _literal(language: str, text: str) -> Iterator[str]:
    if text:
        yield from (f".. code-block:: {language}", "", *textwrap.indent(text, "   ").splitlines(), "")


def _fields(thing: type) -> str:
    """The source of a class's fields, where units and meanings stand as comments."""
    if not (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields")):
        return ""
    source = textwrap.dedent(inspect.getsource(thing))
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
    if not fields:
        return ""
    lines = source.splitlines()
    first, last = fields[0].lineno, fields[-1].end_lineno
    return textwrap.dedent("\n".join(lines[first - 1 : last]))


class Types(SphinxPostTransform):
    """In a signature, a type that several classes are called leads nowhere."""

    default_priority = 5  # before references are resolved

    def run(self, **_: Any) -> None:
        """Replace such references by their text."""
        names = [name.rpartition(".")[2] for name in self.env.domains["py"].data["objects"]]
        for signature in self.document.findall(addnodes.desc_signature):
            for reference in [*signature.findall(addnodes.pending_xref)]:
                if names.count(reference["reftarget"].rpartition(".")[2]) != 1:
                    reference.parent.replace(reference, reference.children)


class Links(SphinxPostTransform):
    """In a chapter, code such as `checkpoint.save` leads to the reference, if one thing alone is called so."""

    default_priority = 400

    def run(self, **_: Any) -> None:
        """Wrap each such literal of the page in a reference."""
        if self.env.docname.startswith("book/reference/"):
            return
        for literal in [*self.document.findall(nodes.literal)]:
            words = literal.astext().removesuffix("()")
            if DOTTED.fullmatch(words) and not isinstance(literal.parent, nodes.reference):
                self.link(literal, words)

    def link(self, literal: nodes.literal, words: str) -> None:
        """Lead to what is called so, or leave the literal alone."""
        objects = self.env.domains["py"].data["objects"] | self.env.domains["py"].data["modules"]
        found = called(frozenset(objects)).get(words, set())
        if len(found) == 1:
            (name,) = found
            entry = objects[name]
            target = make_refnode(self.app.builder, self.env.docname, entry.docname, entry.node_id, literal.deepcopy())
            literal.parent.replace(literal, target)


@functools.lru_cache(maxsize=1)
def called(names: frozenset[str]) -> dict[str, set[str]]:
    """Every dotted end of a name, of two parts or more -> the things that it can mean."""
    ends: dict[str, set[str]] = {}
    for name in names:
        for full in {name, *_offered(name)}:
            parts = full.split(".")
            for start in range(len(parts) - 1):
                ends.setdefault(".".join(parts[start:]), set()).add(name)
    return ends


def _offered(name: str) -> Iterator[str]:
    """The names under which packages above offer a thing in their `__all__`."""
    path, _, last = name.rpartition(".")
    while "." in path:
        path = path.rpartition(".")[0]
        module = importlib.import_module(path) if path else None
        thing = getattr(module, last, None)
        if thing is not None and f"{getattr(thing, '__module__', '')}.{last}" == name:
            yield f"{path}.{last}"


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.setup_extension("sphinx.ext.autodoc")
    app.config.toc_object_entries = False
    app.config.add_module_names = False
    app.connect("source-read", expand)
    app.connect("autodoc-process-docstring", rewrite_docstring)
    app.connect("autodoc-process-signature", rewrite_signature)
    app.connect("autodoc-skip-member", skip_aliases)
    app.add_post_transform(Types)
    app.add_post_transform(Links)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
