"""The book as it is written: its pages in order, what _config.yml and the bibliography say, and places in a page.

Without Jupyter Book 1: it stays, with the names of the new configuration.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from markdown_it.renderer import RendererHTML
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser
from pybtex.database import Entry, parse_file
from sphinx_external_toc.parsing import parse_toc_yaml


@dataclass(frozen=True)
class Book:
    """The pages of `root`, in the order of _toc.yml. With `site`, links between them lead to the pages there."""

    root: Path
    site: str = ""

    @functools.cached_property
    def names(self) -> dict[str, str]:
        """Page -> file name of its notebook: `book/memory` -> `01_memory.ipynb`. The reference has none."""
        pages = [page for page in parse_toc_yaml(self.root / "_toc.yml") if Path(page).parent.name != "reference"]
        return {page: f"{number:02}_{Path(page).name}.ipynb" for number, page in enumerate(pages)}

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """What _config.yml says."""
        return dict(yaml.safe_load((self.root / "_config.yml").read_text()))

    @functools.cached_property
    def works(self) -> dict[str, Entry]:
        """The works in the book's bibliographies, by key."""
        files = [parse_file(str(self.root / name)) for name in self.settings.get("bibtex_bibfiles", [])]
        return {key: entry for file in files for key, entry in file.entries.items()}

    @functools.cached_property
    def cited(self) -> set[str]:
        """The keys of the works that a page cites."""
        text = "".join(self.path(page).read_text() for page in self.names)
        return {key.strip() for keys in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text) for key in keys.split(",")}

    @functools.cached_property
    def parser(self) -> Any:
        """MyST's parser with the extensions of the book."""
        extensions = set(self.settings["sphinx"]["config"]["myst_enable_extensions"])
        return create_md_parser(MdParserConfig(enable_extensions=extensions), RendererHTML)

    def path(self, page: str) -> Path:
        """The source of a page."""
        return self.root / f"{page}.md"


@dataclass(frozen=True)
class Place:
    """A line of a page: where links and files are looked for, and what an error names."""

    book: Book
    page: str
    line: int = 1

    def below(self, lines: int) -> Place:
        """Return the place `lines` lines further down."""
        return replace(self, line=self.line + lines)

    def wrong(self, what: str) -> ValueError:
        """An error to raise."""
        return ValueError(f"{self.page}.md, line {self.line}: {what}")

    def file(self, name: str) -> Path:
        """A file that the page names, relative to its folder."""
        path = self.book.path(self.page).parent / name
        if not path.is_file():
            raise self.wrong(f"there is no file {name}")
        return path
