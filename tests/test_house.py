"""The import graph is the architecture, and chapters only use what the package has."""

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "code" / "shardlab"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent.name == "launch")
CHAPTERS = sorted((ROOT / "book").glob("*.md"))
BRIDGES = {"spec", "trace", "layout", "schedules", "cuts", "exchanges", "measured", "project", "learner"}
MAY_IMPORT = {  # room -> rooms it may use, beside itself
    **{bridge: BRIDGES for bridge in BRIDGES},
    "costs": BRIDGES,
    "ranks": BRIDGES,
    "figures": BRIDGES,
    "explorers": BRIDGES | {"costs", "figures"},
    "exercises": BRIDGES | {"costs", "ranks"},
}
NAMES_TORCH_DISTRIBUTED = {"ranks/comm.py", "ranks/observe/ledger.py", "ranks/checkpoint/files.py"}
COMPOSES = {  # adds up, or joins, what its siblings count or cut
    "costs/data_parallel/run.py",
    "costs/data_parallel/machines.py",
    "costs/memory/parts.py",
    "costs/memory/timeline.py",
    "costs/pipeline/stage_costs.py",
    "costs/planning/planner.py",
    "costs/traces/replay.py",
    "costs/step/breakdown.py",
    "costs/tensor_parallel/run.py",
    "costs/zero/step.py",
    "costs/published/steps.py",
    "ranks/tensor_parallel/engine.py",
    "ranks/train.py",
    "ranks/zero/sharding.py",
}
MAX_SIBLINGS, MAX_LINES, MAX_CELL, MAX_WIDTH = 2, 300, 15, 86


def name(path):
    return path.relative_to(PACKAGE).as_posix()


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Everything a module imports, by absolute dotted name."""
    here = ["shardlab", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def rooms_of(found):
    return {parts[1] for parts in (each.split(".") for each in found) if parts[0] == "shardlab" and len(parts) > 1}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_data_flows_one_way(path):
    allowed = MAY_IMPORT[room(path)] | {room(path)}
    assert rooms_of(imports(path)) <= allowed


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) in {"costs", *BRIDGES}], ids=name)
def test_what_a_run_should_take_is_pure_python(path):
    assert not {each for each in imports(path) if each.split(".")[0] in ("torch", "numpy", "plotly")}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_few_modules_name_torch_distributed(path):
    if name(path) not in NAMES_TORCH_DISTRIBUTED and "launch" not in path.parts:
        assert not {each for each in imports(path) if each.startswith("torch.distributed")}


@pytest.mark.parametrize("path", [path for path in MODULES if room(path) == "ranks"], ids=name)
def test_ranks_draw_nothing(path):
    assert not {each for each in imports(path) if each.split(".")[0] in ("plotly", "ipywidgets")}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_is_one_file_and_its_neighbours(path):
    """Homework is a file, `comm`, and at most one more."""
    folder = ".".join(["shardlab", *path.relative_to(PACKAGE).parts[:-1], ""])
    siblings = {each.removeprefix(folder).split(".")[0] for each in imports(path) if each.startswith(folder)}
    siblings -= {path.stem, "units", "style"}
    if room(path) in ("costs", "ranks") and name(path) not in COMPOSES and "launch" not in path.parts:
        assert len(siblings) <= MAX_SIBLINGS, siblings


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_file_holds_one_idea(path):
    assert path.read_text().count("\n") <= MAX_LINES


def test_the_code_folder_is_not_a_package():
    assert not (ROOT / "code" / "__init__.py").exists()
    import code

    assert hasattr(code, "InteractiveConsole"), "the standard library's `code` is shadowed"


# ---- chapters ------------------------------------------------------------------------------------------------------


def cells(chapter):
    """The code cells of a MyST notebook, without their directives."""
    blocks = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", chapter.read_text(), re.MULTILINE | re.DOTALL)
    return [re.sub(r"\A(:[^\n]*\n|---\n.*?\n---\n)*", "", block, flags=re.DOTALL) for block in blocks]


@functools.cache
def public_names():
    trees = [ast.parse(path.read_text()) for path in MODULES]
    nodes = [node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    return {node.name for node in nodes if not node.name.startswith("_")}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_redefines_nothing_of_the_package(chapter):
    trees = [ast.parse(cell) for cell in cells(chapter)]
    defined = {n.name for tree in trees for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    assert not defined & public_names()


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_a_cell_is_short(chapter):
    for cell in cells(chapter):
        lines = [line for line in cell.strip().splitlines() if not line.startswith(("import ", "from "))]
        assert len(lines) <= MAX_CELL, cell
        assert max(map(len, cell.splitlines())) <= MAX_WIDTH, cell


def test_chapters_are_text_without_outputs():
    tracked = subprocess.run(["git", "ls-files", "*.ipynb"], cwd=ROOT, capture_output=True, text=True).stdout
    assert tracked == "", "chapters are .md; a notebook is made from them"


def test_no_chapter_stands_in_the_contents_that_is_not_written():
    listed = re.findall(r"(?:root|file): *(\S+)", (ROOT / "_toc.yml").read_text())
    assert {f"book/{path.stem}" for path in CHAPTERS} == set(listed)
