"""The files that a module takes along, which are enough and few."""

from __future__ import annotations

import importlib
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


PLAIN = ["data_parallel", "zero", "pipeline", "tensor_parallel", "context_parallel", "expert_parallel"]
PLAIN += ["ring_attention"]


@pytest.mark.parametrize("method", PLAIN)
def test_a_plain_method_is_two_files(method):
    found = imports.files(importlib.import_module(f"shardlab.plain.{method}"))
    assert [path.name for path in found] == [f"{method}.py", "comm.py"]
