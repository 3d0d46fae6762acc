"""What is made by hand and kept in the repository: which of it is older than its sources, and how to make it anew.

    python tools/stale.py           what this branch has made stale, since it left main
    python tools/stale.py --all     everything, before a release

The history says when a file was last made. A source counts as changed if what it does has: its comments, its imports
and how it is started do not. The sources of a measurement are its bench with the folders of bench/ that it imports,
and the modules that these name: what those import in turn is not looked at, and of the proofs the sources are the
marked tests.
"""

import argparse
import ast
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from shardlab.files.terminal import Parser
from tests.test_house import PACKAGE, ROOT
from tests.test_mirror import files_of, imported_by

BENCH, IMAGES = ROOT / "bench", ROOT / "book" / "images"
MARK = re.compile(r"^@pytest\.mark\.(parity|counted)\(", re.MULTILINE)  # as bench/proofs.py records them


class Made(NamedTuple):
    """A file of the repository that a command makes, and what it is made from."""

    file: Path
    command: str
    sources: set[Path]
    seconds: int | None = None  # that the command took


def everything() -> Iterator[Made]:
    """All such files."""
    for file in sorted(BENCH.glob("results/*.json")):
        setting = json.loads(file.read_text())["setting"]
        yield Made(file, setting["command"], measured(file.stem), setting.get("seconds"))
    for drawing in sorted(IMAGES.glob("*.svg")):
        yield Made(drawing.with_suffix(".png"), "python tools/drawings.py", {drawing})
    title = PACKAGE / "explorers" / "title.py"
    looks = {file for name in ("moving", "title") for file in title.parent.glob(f"{name}.*s")}
    yield Made(IMAGES / "title.png", "python tools/picture.py", {title, *named(title), *looks})


def measured(stem: str) -> set[Path]:
    """The sources of bench/results/<stem>.json."""
    bench = BENCH / f"{stem}.py"
    if stem == "proofs":
        return {bench, *(test for test in ROOT.glob("tests/**/test_*.py") if MARK.search(test.read_text()))}
    given = set((ROOT / "book" / "cluster").iterdir()) if stem == "templates" else set()
    files = {bench, *(file for each in imported_by(bench) for file in BENCH.glob(f"{each.split('.')[0]}/*.*"))}
    return files.union(given, *(named(each) for each in files if each.suffix == ".py"))


def named(file: Path) -> set[Path]:
    """The modules that a file imports, and those that a folder lists if it imports the folder."""
    found = files_of(file)
    listed = {each for folder in found if folder.stem == "__init__" for each in files_of(folder)}
    return {each for each in found | listed if PACKAGE / "files" not in each.parents}


def changed(made: Made, since: str = "") -> list[str]:
    """The sources whose code is another one than when the file was last made; of a file just made, none.

    since: a commit from which on changes count; none before the file was made.
    """
    if git("status", "--porcelain", "--", str(made.file)):
        return []
    then = git("log", "-1", "--format=%H", "--", str(made.file)).strip()
    if since and not git("log", "-1", "--format=%H", f"{since}..", "--", str(made.file)):
        then = since
    lines = git("diff", "--find-renames", "--name-status", then).splitlines()
    before = {new: old[0] if old else new for _, *old, new in (line.split("\t") for line in lines)}
    names = {each.relative_to(ROOT).as_posix() for each in made.sources}
    return [name for name in sorted(names & before.keys()) if differs(then, before[name], name)]


def differs(then: str, old: str, new: str) -> bool:
    """Whether the code of a file has changed since a commit, where it may have had another name."""
    texts = git("show", f"{then}:{old}"), (ROOT / new).read_text()
    return len({code(text) if new.endswith(".py") else text for text in texts}) > 1


def code(text: str) -> str:
    """What a module does: its statements without docstrings, imports, and the block that starts it as a script."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not idle(each)]
    return ast.dump(tree)


def idle(statement: ast.stmt) -> bool:
    """Whether a statement only tells, imports or starts."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.If):
        return "__name__" in ast.unparse(statement.test)
    return isinstance(statement, ast.Import | ast.ImportFrom)


def git(*arguments: str) -> str:
    """What git prints; nothing where it fails, as for a file that was not there."""
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def told(made: Made, since: list[str]) -> str:
    """A stale file in a few lines: its command, how long that took, and what has changed."""
    took = f", {made.seconds} s" if made.seconds else ""
    names = ", ".join(each.removeprefix("code/shardlab/") for each in since)
    return textwrap.fill(f"{made.command}{took}: {names}", 110, subsequent_indent="    ", break_on_hyphens=False)


if __name__ == "__main__":
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    start = "" if parser.parse_args().all else git("merge-base", "main", "HEAD").strip()
    found = list(everything())
    stale = {made.file: told(made, sources) for made in found if (sources := changed(made, start))}
    print(*stale.values(), f"{len(stale)} of {len(found)} files are older than their sources", sep="\n")
