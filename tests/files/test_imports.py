"""The files that a module takes along, which are enough and few."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.files import imports, project
from shardlab.ranks import zero
from shardlab.ranks.data_parallel import engine
from shardlab.ranks.memory import recompute


def test_files_that_a_module_takes() -> None:
    names = [path.relative_to(project.PACKAGE).as_posix() for path in imports.files(engine)]
    taken = ["comm.py", "ranks/agreement.py", "ranks/backward.py", "ranks/data_parallel/buckets.py"]
    assert names == ["ranks/data_parallel/engine.py", *taken]
    assert imports.files(recompute) == [Path(recompute.__file__)]
    assert project.PACKAGE / "ranks" / "zero" / "gathering.py" in imports.files(zero)


def test_the_files_are_enough(tmp_path: Path) -> None:
    """Copied to an empty folder they can be imported, and nothing else of the package is."""
    taken = imports.files(importlib.import_module("shardlab.ranks.tensor_parallel"))
    for path in taken:
        copy = tmp_path / "shardlab" / path.relative_to(project.PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        for folder in (copy.parent, tmp_path / "shardlab"):
            (folder / "__init__.py").touch()
        copy.write_text(path.read_text())
    code = "import shardlab.ranks.tensor_parallel as m; print(m.__file__)"
    line = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=True)
    assert done.stdout.startswith(str(tmp_path))


PLAIN = ["data_parallel", "zero", "pipeline", "tensor_parallel", "context_parallel", "expert_parallel"]
PLAIN += ["ring_attention"]


@pytest.mark.parametrize("method", PLAIN)
def test_a_plain_method_is_two_files_and_few_lines(method):
    found = imports.files(importlib.import_module(f"shardlab.plain.{method}"))
    assert [path.name for path in found] == [f"{method}.py", "comm.py"]
    assert sum(path.read_text().count("\n") for path in found) <= 420
