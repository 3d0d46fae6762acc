"""How large everything is, and what grew most since the last release: a report, which fails nothing.

    python tools/sizes.py

Density is the number of names and operators for each line of code: 3.7 in minitorch, 4.8 in nanoGPT, 5.4 in torchgpipe.
"""

import ast
import io
import keyword
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from shardlab.files.terminal import no_arguments

ROOT = Path(__file__).resolve().parents[1]
MOST = 10  # rows of a list
WIDE, CELL = 100, 15  # columns of a line, lines of a cell that is easily read
CLOSING = set(")]},:;")  # one bracket of a pair counts; commas and colons do not


def code_lines(source: str) -> list[int]:
    """The numbers of lines that are neither empty, nor comment, nor docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    strings = [node.body[0] for node in nodes if ast.get_docstring(node) is not None]
    inside = {line for each in strings for line in range(each.lineno, each.end_lineno + 1)}
    lines = enumerate(source.splitlines(), start=1)
    return [n for n, line in lines if n not in inside and line.strip() and not line.strip().startswith("#")]


def tokens(source: str) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a source, without those in an f-string, which is one string to Python 3.11 and many to 3.12."""
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = tokenize.tok_name[token.type]
        depth += kind.endswith("STRING_START")
        if depth == 0:
            yield token
        depth -= kind.endswith("STRING_END")


def counted(token: tokenize.TokenInfo) -> bool:
    """Whether a token is a name that is no keyword, or an operator that neither closes nor separates."""
    is_name = token.type == tokenize.NAME and not keyword.iskeyword(token.string)
    return is_name or (token.type == tokenize.OP and token.string not in CLOSING)


def density(*sources: str) -> float:
    """Names and operators for each line of code, on average over all the sources together."""
    count = sum(counted(token) for source in sources for token in tokens(source))
    return count / sum(len(code_lines(source)) for source in sources)


def grown() -> Counter[str]:
    """Lines that each file has gained since the version was last changed."""
    release = git("log", "-1", "--format=%H", "-G^version", "--", "pyproject.toml").strip()
    rows = [row.split("\t") for row in git("diff", "--numstat", release, "--", "code", "tests", "book").splitlines()]
    return Counter({name: int(more) - int(less) for more, less, name in rows if more != "-"})


def git(*arguments: str) -> str:
    """What git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def cells(page: Path) -> Iterator[str]:
    """The first lines of the cells of a page that are long beside their imports."""
    for cell in re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", page.read_text(), re.M | re.S):
        lines = [line for line in cell.splitlines() if line and not line.startswith((":", "import ", "from "))]
        if len(lines) > CELL:
            yield f"{page.name}: a cell of {len(lines)} lines, {lines[0]}"


def listed(title: str, lines: list[str]) -> None:
    """Print the first lines of a list, and how many there are."""
    print(f"{title}: {len(lines)}", *(f"    {line}" for line in lines[:MOST]), sep="\n")


def main() -> None:
    """Print the report."""
    files = sorted((ROOT / "code").rglob("*.py"))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text() for path in files}
    rooms: Counter[str] = Counter()
    for name, source in sources.items():
        rooms[name.split("/")[2].removesuffix(".py")] += source.count("\n")
    tests = sum(path.read_text().count("\n") for path in (ROOT / "tests").rglob("*.py"))
    pages = sorted((ROOT / "book").glob("*.md"))
    words = sum(len(page.read_text().split()) for page in pages)
    print(f"package {rooms.total():,} lines, tests {tests:,}, pages {words:,} words")
    print("    " + ", ".join(f"{room} {count:,}" for room, count in rooms.most_common()))
    listed("grown since the release", [f"{more:+} {name}" for name, more in grown().most_common(MOST) if more > 0])
    plain = {name: source for name, source in sources.items() if "/plain/" in name and "__init__" not in name}
    dense = sorted(plain, key=lambda name: -density(plain[name]))
    listed("plain files", [f"{name}: {plain[name].count(chr(10))} lines, {density(plain[name]):.1f}" for name in dense])
    lines = [(name, n, line) for name, source in sources.items() for n, line in enumerate(source.splitlines(), 1)]
    wide = [f"{name}:{n}" for name, n, line in lines if len(line) > WIDE and "https://" not in line]
    listed(f"wider than {WIDE} columns", wide)
    listed(f"cells of more than {CELL} lines", [cell for page in pages for cell in cells(page)])


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
