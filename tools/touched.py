"""Run the tests of what you have changed since you left main: those of its modules, of its pages, and the house rules.

    python tools/touched.py

A module is tested where tests/test_mirror.py says; a page by its cells, which run as on GPUs.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from shardlab.files.terminal import no_arguments
from tests.test_house import PACKAGE, ROOT, name
from tests.test_mirror import TESTED_IN, files_of, own, used

ALWAYS = [ROOT / "tests" / f"test_{each}.py" for each in ("house", "mirror")]
CELLS = "tests/book/test_chapters.py::test_cells_run_on_a_second_device"


def changes() -> list[Path]:
    """The files that differ from main, and new ones."""
    asked = ["diff", "--name-only", "--merge-base", "main"], ["ls-files", "--others", "--exclude-standard"]
    told = [subprocess.run(["git", *each], cwd=ROOT, capture_output=True, text=True, check=True) for each in asked]
    return [path for each in told for line in each.stdout.splitlines() if (path := ROOT / line).exists()]


def tests_of(path: Path) -> list[str]:
    """What pytest is given for one changed file; nothing where no test is quick."""
    if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_"):
        found = [path]
    elif path.is_relative_to(PACKAGE) and path.suffix == ".py":
        found = of_module(path)
    elif path.parent == ROOT / "book" and path.suffix == ".md" and "```{code-cell}" in path.read_text():
        return [f"{CELLS}[{path.stem}]"]
    else:
        found = []
    return [each.relative_to(ROOT).as_posix() for each in found]


def of_module(path: Path) -> list[Path]:
    """The test beside a module, the one that stands for it, or its folder's; else those whose imports lead to it."""
    listed = [TESTED_IN[each][0] for each in (name(path), name(path.parent)) if each in TESTED_IN]
    beside = own(path.parent / "__init__.py").parent
    found = [own(path), *(ROOT / "tests" / each for each in listed), beside.with_name(f"test_{beside.name}.py")]
    if there := [test for test in found if test.is_file()]:
        return there[:1]
    tests = sorted((ROOT / "tests").rglob("test_*.py"))
    if path.stem == "__init__":
        return sorted(beside.glob("test_*.py"))
    return [test for test in tests if path in files_of(test)] or [test for test in tests if path in used(test)]


if __name__ == "__main__":
    no_arguments(__doc__)
    files = changes()
    chosen = {file: tests_of(file) for file in files}
    for file, tests in chosen.items():
        print(file.relative_to(ROOT), "->", ", ".join(tests) or "make test-all, make test-book", flush=True)
    quick = [*sorted({test for tests in chosen.values() for test in tests}), *map(str, ALWAYS)]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "logical", "--maxprocesses", "4", *quick]
    sys.exit(subprocess.run(command, cwd=ROOT, check=False).returncode)
