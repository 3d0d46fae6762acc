"""book/notation.md is the law: one meaning for each letter, in shapes of the code and in formulas of the book."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "book"
PACKAGE = ROOT / "code" / "shardlab"
FILES = sorted(p for folder in ("plain", "ranks", "exercises") for p in (PACKAGE / folder).rglob("*.py"))
FILES.append(PACKAGE / "comm.py")
PAGES = sorted(p for p in BOOK.glob("*.md") if "$" in p.read_text())

# What a file's legend may say of a letter: one of these words stands in its entry.
MEANINGS = {
    "B": "batch samples sequences vectors",
    "E": "experts",
    "H": "heads",
    "K": "heads",
    "L": "layers",
    "N": "rank ranks members",
    "P": "numbers of a parameter",
    "S": "sequence tokens",
    "T": "tokens",
    "V": "vocabulary",
    "c": "tokens",
    "e": "head size",
    "f": "width layer inputs",
    "h": "width hidden numbers inputs",
    "i": "rank",
    "k": "chooses chosen",
    "n": "samples microbatch numbers tokens elements length",
    "r": "rank",
    "t": "rank ranks",
}

# Letters of no table: page -> letter -> the words of the page that say what it is.
LOCAL = {
    "context_parallel.md": {"y": "$(y_a, \\ell_a)$"},
    "expert_parallel.md": {"lambda": "$\\lambda$ must be small"},
    "memory.md": {"x": "a layer $y = x W$", "y": "a layer $y = x W$"},
    "notation.md": {"Y": "$Y$ are the matrices"},
    "pipeline.md": {"x": "a layer $y = xW$", "y": "a layer $y = xW$"},
    "sharding.md": {"x": "the whole input $x$", "y": "$y = \\sum_r y_r$"},
    "tensor_parallel.md": {"Y": "$Y = XW$", "q": "queries", "z": "logit $z_"},
    "trainer_generator.md": {"A": "*advantage* $A$", "pi": "$\\pi$ the trainer's probability"},
}

GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega ell"
WORDS = re.compile(r"\\(begin|end|text|mathrm|operatorname)\s*\{[^}]*\}")
CODE = re.compile(r"```\{code-cell\}.*?```|`[^`\n]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n\x22]+?)(?<!\\)\$", re.DOTALL)
SHAPE = re.compile(r"(?<![\w\])])\[((?:(?! for )[\w .*/+,-])*)\]")
LETTER = re.compile(r"(?<![\w.'])([A-Za-z])(?![\w(])")
ENTRY = re.compile(r"(?<![\w/*'])([A-Zb-z]) (?:= )?((?:[a-z][\w' /]*)+)")


def letters(formula):
    """The letters of a formula, Greek ones by their names; words in it do not count."""
    found = re.findall(r"\\?[A-Za-z]+", WORDS.sub(" ", formula))
    greek = {name[1:] for name in found if name.startswith("\\") and name[1:] in GREEK.split()}
    return greek | {letter for name in found if not name.startswith("\\") for letter in name}


def formulas(text):
    return [one or other for one, other in FORMULA.findall(CODE.sub("", text))]


def table():
    """The letters in the first column of notation.md's first table."""
    rows = re.findall(r"^\| (\$.*?) \|", (BOOK / "notation.md").read_text(), re.MULTILINE)
    return {letter for row in rows for formula in formulas(row) for letter in letters(formula)}


def legend(source):
    """The paragraphs of a file's docstring that explain its letters."""
    paragraphs = (ast.get_docstring(ast.parse(source)) or "").split("\n\n")
    said = [p for p in paragraphs if re.search(r"^Shapes|^[^ ].*\b[A-Za-z] = [a-z]{2}", p, re.MULTILINE)]
    return SHAPE.sub("", " ".join(said).replace("\n", " "))


def shapes(source):
    """Every [...] of comments and docstrings that is no index."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.endswith(('"""', "'''"))):
            yield from SHAPE.findall(token.string)


def unknown(source, *shared):
    """Letters of shapes that neither the table nor a legend has."""
    explained = table() | {letter for each in (source, *shared) for letter in LETTER.findall(legend(each))}
    return {letter for shape in shapes(source) for letter in LETTER.findall(shape)} - explained


def defined_anew(source):
    """Entries of a legend that give a letter of the table another meaning, or one that no table lists."""
    entries = [(letter, words) for letter, words in ENTRY.findall(legend(source)) if letter in table()]
    return {
        letter: words
        for letter, words in entries
        if not set(MEANINGS.get(letter, "").split()) & set(re.split(r"[^a-z]+", words))
    }


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_letter_in_a_shape_is_in_the_table_or_in_the_legend(path):
    source = path.read_text()
    used = re.findall(r"from \.\.shared import (.*)", source)
    shared = [PACKAGE / "exercises" / "shared" / f"{name}.py" for names in used for name in names.split(", ")]
    assert unknown(source, *(p.read_text() for p in shared)) == set()
    assert defined_anew(source) == {}


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_a_letter_in_a_formula_is_in_the_table_or_explained_on_its_page(path):
    text = path.read_text()
    local = LOCAL.get(path.name, {})
    used = {letter for formula in formulas(text) for letter in letters(formula)}
    assert used - table() == set(local)
    assert [words for words in local.values() if words not in text] == []


def test_wrong_letters_are_found():
    source = (PACKAGE / "ranks" / "transformer.py").read_text()
    assert unknown(source.replace("# [B, S, h]", "# [B, S, Z]")) == {"Z"}
    assert defined_anew(source.replace("h = hidden_size", "D = hidden_size")) == {"D": "hidden_size"}
    assert letters(r"\frac{2 P}{F_\text{peak}} + \alpha") == {"P", "F", "alpha"}
