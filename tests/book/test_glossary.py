"""Every term has Korean, a definition and a chapter that uses it; every acronym of a page is explained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from . import myst
from .conftest import ROOT

BOOK = ROOT / "book"
PAGES = [path for path in sorted(BOOK.glob("*.md")) if path.stem not in ("glossary", "notation", "bibliography")]
HANGUL = re.compile(r"[가-힣]")
ACRONYM = re.compile(r"\b[A-Za-z]*[A-Z]{2}[A-Za-z]*\b")
# What is a name and nothing else: of makers, models, systems, licences, and of what a program prints.
NAMES = {"AMD", "BY", "CC", "MIT", "MPICH", "MT", "NET", "NLG", "NVIDIA", "OpenAI", "PaLM", "README", "RTX", "SMPI"}
NAMES |= {"AA", "CMU", "CSE", "DeepGEMM", "HTML", "MathML", "MoonEP", "PDF", "PNG", "SVG", "TRL", "UC", "VS", "nanoGPT"}
NAMES |= {"AMPeD", "ASTRA", "BLOOM", "DeepEP", "JSON", "LAMB", "NVRx", "SimAI", "TIMEOUT", "XL", "macOS", "oneCCL"}
NAMES |= {"AReaL", "GLM", "NIXL", "OLMo", "PipelineRL", "RL", "SGLang", "vLLM"}


class Entry(NamedTuple):
    """One term as the page has it."""

    term: str
    korean: str
    definition: str


def entries() -> list[Entry]:
    (block,) = re.findall(r"^```\{glossary\}\n(.*?)^```", (BOOK / "glossary.md").read_text(), re.MULTILINE | re.DOTALL)
    return [Entry(*entry.splitlines()) for entry in block.strip().split("\n\n")]


def words(page: str) -> str:
    """What a reader of a page sees, without code, formulas and addresses."""
    prose = "\n".join(map(myst.words, myst.blocks(page)))
    return re.sub("`[^`]*`", " ", prose)


ENTRIES = entries()


def test_the_order_is_alphabetical_and_no_term_stands_twice() -> None:
    keys = [re.sub(r"[^a-z0-9]+", " ", entry.term.lower()) for entry in ENTRIES]
    assert keys == sorted(set(keys))
    assert len({entry.korean for entry in ENTRIES}) == len(ENTRIES)  # Sphinx would warn


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.term)
def test_a_term_has_korean_a_definition_and_its_chapter(entry: Entry) -> None:
    assert HANGUL.search(entry.korean)
    found = re.fullmatch(r"  \S.*[.)…] \[[^]]+\]\((\w+)\.md\)", entry.definition)
    assert found, "a sentence, then a link to a chapter"
    text = re.sub(r"[\s*`]+", " ", (BOOK / f"{found[1]}.md").read_text())
    spelled = re.sub(r"[- ]", "[- ]", re.escape(entry.term).replace("\\", ""))
    assert re.search(rf"(?<![A-Za-z0-9]){spelled}", text, re.IGNORECASE), "the chapter does not use it"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_acronym_is_explained(path: Path) -> None:
    known = words((BOOK / "glossary.md").read_text()) + words((BOOK / "notation.md").read_text())
    used = {word.removesuffix("s") for word in ACRONYM.findall(words(path.read_text()))}
    missing = {word for word in used - NAMES if not re.search(rf"\b{word}s?\b", known)}
    assert not missing, "say what these are in the glossary (or in NAMES, if they are only names)"
