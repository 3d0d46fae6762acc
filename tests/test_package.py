"""The package stands alone: a wheel and a source distribution hold all it needs, and it works in an empty folder."""

from __future__ import annotations

import ast
import builtins
import email
import hashlib
import os
import re
import subprocess
import symtable
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import pytest
import yaml
from packaging.version import Version

from shardlab.exercises import CHAPTERS, every
from shardlab.ranks import text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
CODE = ROOT / "code"
READS_FILES = re.compile(r"\b(measured|project)\.[a-zA-Z]")  # text.read() has one file, and the test above
CARRIED = [
    ROOT / "LICENSE",
    *ROOT.glob("book/**/*.md"),
    *ROOT.glob("book/*.py"),
    *ROOT.glob("bench/*.py"),
    *ROOT.glob("bench/results/*.json"),
]


def tracked() -> list[Path]:
    """Every file of the project that git has or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in map(Path, listed.split("\0")[:-1]) if (ROOT / path).is_file()]


MODULES = {path.relative_to("code").as_posix() for path in tracked() if path.is_relative_to("code/shardlab")}


def build(source: Path, kind: str, target: Path) -> Path:
    """Build a wheel or an sdist, as pip does, with the setuptools of this environment."""
    call = f"from setuptools import build_meta as b; print(b.build_{kind}({str(target)!r}))"
    told = subprocess.run([sys.executable, "-c", call], cwd=source, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return target / told.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds project/, a copy of the project as git has it, and whatever the other fixtures build."""
    folder = tmp_path_factory.mktemp("package")
    for path in tracked():
        copy = folder / "project" / path
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / path).read_bytes())
    return folder


@pytest.fixture(scope="module")
def sdist(folder: Path) -> Path:
    return build(folder / "project", "sdist", folder)


@pytest.fixture(scope="module")
def wheel(folder: Path) -> Path:
    return build(folder / "project", "wheel", folder)


@pytest.fixture(scope="module")
def installed(folder: Path, wheel: Path) -> Path:
    """Where the wheel is installed, and nothing else."""
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile", "--quiet"]
    subprocess.run([*pip, "--target", str(folder / "installed"), str(wheel)], check=True)
    return folder / "installed"


def inside(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def run_in_empty_folder(installed: Path, tmp_path: Path, code: str) -> str:
    """Run the code where there is no file, with the installed package before any other; return what it printed."""
    empty = tmp_path / "empty"
    empty.mkdir()
    code = f"import shardlab; assert shardlab.__file__.startswith({str(installed)!r}), shardlab.__file__\n{code}"
    environment = {**os.environ, "PYTHONPATH": str(installed), "SHARDLAB_STATIC": "1"}
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=empty, env=environment, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    assert not [*empty.iterdir()]
    return told.stdout


# ---- what is in it -------------------------------------------------------------------------------------------------


def test_a_wheel_holds_modules_scripts_and_data_and_nothing_else(wheel: Path) -> None:
    names = {name for name in inside(wheel) if ".dist-info/" not in name}
    data = {f"shardlab/_data/{path.relative_to(ROOT).as_posix()}" for path in CARRIED}
    assert names == MODULES | data
    for needed in ("py.typed", "explorers/explorer.js", "explorers/explorer.css", "_data/book/memory.md"):
        assert f"shardlab/{needed}" in names


def test_what_it_carries_is_what_git_has(wheel: Path) -> None:
    held = inside(wheel)
    for path in CARRIED:
        assert held[f"shardlab/_data/{path.relative_to(ROOT).as_posix()}"] == path.read_bytes()


def test_a_source_distribution_has_no_tests_and_gives_the_same_wheel(
    sdist: Path, wheel: Path, folder: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        names = [PurePosixPath(*PurePosixPath(name).parts[1:]) for name in archive.getnames()]
        archive.extractall(folder / "unpacked", filter="data")
    assert not [name for name in names if name.is_relative_to("tests")]
    assert {PurePosixPath(name) for name in ("LICENSE", "CHANGELOG.md", "README.md")} <= {*names}
    (source,) = (folder / "unpacked").iterdir()
    assert inside(build(source, "wheel", tmp_path)) == inside(wheel)


def test_a_second_build_drops_a_chapter_that_is_gone(folder: Path, wheel: Path, tmp_path: Path) -> None:
    chapter = folder / "project" / "book" / "gone.md"
    chapter.write_text("# Gone\n")
    assert "shardlab/_data/book/gone.md" in inside(build(folder / "project", "wheel", tmp_path))
    chapter.unlink()
    assert inside(build(folder / "project", "wheel", tmp_path)) == inside(wheel)


def test_metadata_agrees_with_the_changelog_and_the_citation(wheel: Path) -> None:
    (name,) = [name for name in inside(wheel) if name.endswith(".dist-info/METADATA")]
    told = email.message_from_bytes(inside(wheel)[name])
    (version,) = re.findall(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert (told["Name"], told["Version"]) == ("shardlab", version)
    citation = (ROOT / "CITATION.cff").read_text()
    for author in re.findall(r'^  - name: "(.*)"', citation, re.MULTILINE):
        assert told["Author"] == author
    assert told["Keywords"] == ",".join(re.findall(r"^keywords: \[(.*)\]", citation, re.MULTILINE)[0].split(", "))
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.findall(r"^version: (\S+)\ndate-released: (\S+)", citation, re.MULTILINE)
    assert cited == released[:1]
    assert Version(version) >= Version(released[0][0])


def test_the_paper_has_what_its_journal_asks_for() -> None:
    """Fields and length as https://openjournals.readthedocs.io/en/jose says; its counts are today's."""
    _, front, text = (ROOT / "paper" / "paper.md").read_text().split("---\n", 2)
    fields = yaml.safe_load(front)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} <= fields.keys()
    known = re.findall(r"^@\w+\{(\w+),", (ROOT / "paper" / fields["bibliography"]).read_text(), re.MULTILINE)
    assert sorted(re.findall(r"\[@(\w+)\]", text)) == sorted(known)
    assert 250 <= len(text.split()) <= 1000
    assert f": {len(every())} in all" in text
    assert "eighteen Jupyter notebooks" in text
    assert len(CHAPTERS) == 18


# ---- in an empty folder --------------------------------------------------------------------------------------------


def test_text_and_results_are_found_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    told = run_in_empty_folder(
        installed,
        tmp_path,
        "import hashlib; from shardlab.files import measured; from shardlab.ranks import text\n"
        "print(hashlib.sha256(bytes(text.read().tolist())).hexdigest(), *measured.stems())",
    )
    digest, *stems = told.split()
    assert digest == hashlib.sha256(text.PROSE.read_bytes()).hexdigest()
    assert stems == sorted(path.stem for path in ROOT.glob("bench/results/*.json"))


def names(statement: str) -> tuple[set[str], set[str]]:
    """Names that a statement gives to those after it, and names that it takes from those before it."""
    whole = symtable.symtable(statement, "statement", "exec")
    tables = [whole]
    for table in tables:
        tables += table.get_children()
    given = {each.get_name() for each in whole.get_symbols() if each.is_assigned() or each.is_imported()}
    taken = {each.get_name() for table in tables for each in table.get_symbols() if each.is_global()}
    for each in ast.walk(ast.parse(statement)):  # x[i] = ... and x.y = ... change x
        if isinstance(each, ast.Subscript | ast.Attribute) and isinstance(each.value, ast.Name):
            given |= {each.value.id} if isinstance(each.ctx, ast.Store) else set()
    return given, taken | {each.get_name() for each in whole.get_symbols() if each.is_referenced()}


def with_what_they_need(cells: Sequence[str]) -> list[str]:
    """The statements that read files, and before them those that give names which they use, in the chapter's order."""
    missing: set[str] = set()
    kept: list[str] = []
    for statement in map(ast.unparse, reversed([each for cell in cells for each in ast.parse(cell).body])):
        given, taken = names(statement)
        if READS_FILES.search(statement) or given & missing:
            kept.append(statement)
            missing = missing - given | taken - {*dir(builtins)}
    return kept[::-1]


def test_cells_that_read_files_run_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    """Every cell can run there; here are those of its statements that read something."""
    import jupytext  # here, because it takes a second of every worker that collects tests

    chapters = {}
    for chapter in sorted(ROOT.glob("book/*.md")):
        cells = [cell.source for cell in jupytext.read(chapter, fmt="md:myst").cells if cell.cell_type == "code"]
        chapters[chapter.name] = with_what_they_need(cells)
    chapters = {name: cells for name, cells in chapters.items() if cells}
    assert {"data_parallel.md", "operations.md", "measured.md"} <= chapters.keys()
    run_in_empty_folder(
        installed,
        tmp_path,
        f"for name, cells in {chapters!r}.items():\n"
        "    names = {'__name__': '__main__'}\n"
        "    for cell in cells:\n"
        "        exec(compile(cell, name, 'exec'), names)",
    )
