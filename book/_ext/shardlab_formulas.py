"""Simple formulas before MathJax sets them: legible, and as wide as they will be, so that no line breaks elsewhere.

Without Jupyter Book 1: it goes, as mystmd sets formulas in its build.
"""

from __future__ import annotations

import functools
import html
import re
import unicodedata

import shardlab_mathjax
from shardlab_search import typed

WORD = r"_\\text\{\w+\}"
PART = rf"((?:[\w\s+-]|\\,|{WORD})+)"
FRACTION = re.compile(rf"\\frac\{{{PART}\}}\{{{PART}\}}")
COMMAND = r"\\[,;]|\\(?:alpha|beta|sigma|lambda|cdot|times|[lg]e|approx)(?![A-Za-z])"
SIMPLE = re.compile(rf"{FRACTION.pattern}|{WORD}|{COMMAND}|[\w\s.,/()+=<>{{}}_^-]")
INDEX = re.compile(r"([_^])(?:(?:\\text)?\{([^{}]*)\}|(\w))")
TOKEN = re.compile(rf"{FRACTION.pattern}|{INDEX.pattern}|(\\[,;]|\\[a-z]+|[^\s{{}}])")
PARTS = {"_": "<sub>", "/_": "</sub>", "^": "<sup>", "/^": "</sup>"}
PARTS |= {"(": '<span class="over"><span>', "|": "</span><span>", ")": "</span></span>"}
# Ems of TeX's Computer Modern; the spaces are those of The TeXbook, chapter 18.
SIGNS = {**dict.fromkeys("0123456789/", 0.5), **dict.fromkeys("()", 0.389), **dict.fromkeys("+-\u00d7=<>≤≥≈", 0.778)}
SIGNS |= {"·": 0.278, ",": 0.278, ".": 0.278, r"\,": 0.167, r"\;": 0.278}
SPACES = {**dict.fromkeys("+-\u00d7·", 0.444), **dict.fromkeys("=<>≤≥≈", 0.556), ",": 0.167}
SMALL = 0.707  # an index, or a part of a fraction
EM = 1.1  # of MathJax, in ems of the text around: its letters are as tall as those of Source Sans 3


def legible(formula: re.Match[str]) -> str:
    """Return a simple formula as it reads without MathJax; formulas.js finds its TeX beside it."""
    tex = html.unescape(formula[2])[2:-2]
    if SIMPLE.sub("", tex):
        return formula[0]
    marked = FRACTION.sub(r"\0(\1\0|\2\0)", tex).replace("\\0", "\0")
    marked = INDEX.sub(lambda found: f"\0{found[1]}{found[2] or found[3]}\0/{found[1]}", marked)
    words = re.sub(r"\0(/?.)", lambda found: PARTS[found[1]], html.escape(typed(marked)))
    return f'{formula[1]} data-tex="{formula[2]}"><i style="width: {EM * width(tex):.2f}em">{words}</i></span>'


def width(tex: str, spaced: bool = True) -> float:
    """Return the ems that MathJax needs for a simple formula; `spaced`: signs have spaces around them."""
    ems = 0.0
    for over, under, _, several, one, sign in TOKEN.findall(tex):
        before = ems
        if over:
            ems += 0.44 + SMALL * max(width(over, False), width(under, False))
        elif several or one:
            ems += 0.05 + SMALL * width(several or one, False)
        else:
            read = typed(sign).strip() or sign
            ems += {**letters(), **SIGNS}[read]
            ems += SPACES.get(read, 0) if spaced and before else 0  # a leading sign has none
    return ems


@functools.cache
def letters() -> dict[str, float]:
    """Return the ems of MathJax's italic letters, Greek ones included, with their italic correction."""
    entry = r"\b(\d{4,6}):\[[\d.]+,-?[\d.]+,([\d.]+)(?:,{ic:([\d.]+))?"
    found = re.findall(entry, shardlab_mathjax.source(shardlab_mathjax.LETTERS))
    ems = {chr(int(code)): float(each) + float(correction or 0) for code, each, correction in found}
    italic = (each for each in ems if each == "\u210e" or unicodedata.name(each, "").startswith("MATHEMATICAL ITALIC"))
    return {unicodedata.normalize("NFKC", each): ems[each] for each in italic}
