"""A plain file can be read whole, aloud: how long, how wide and how dense it may be, and what it may lean on."""

import ast
from pathlib import Path

import pytest

from tests.density import code_lines, density

PLAIN = Path(__file__).parents[3] / "code" / "shardlab" / "ranks" / "plain"
FILES = sorted(path for path in PLAIN.glob("*.py") if path.name != "__init__.py")
MAX_LINES, MAX_CODE, MAX_WIDTH, MAX_DENSITY = 100, 60, 100, 9.5
MAY_IMPORT = {"tensor_parallel": {"comm", "conjugates"}}  # of the package; the others only comm


def of_the_package(source):
    """What a file imports from shardlab, by its last name."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    relative = [node for node in found if isinstance(node, ast.ImportFrom) and node.level]
    named = {name.name for node in found if node not in relative for name in node.names}
    modules = {node.module for node in found if isinstance(node, ast.ImportFrom) and node.module}
    assert not any("shardlab" in name for name in named | modules)
    return {node.module or name.name for node in relative for name in node.names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_plain_file_is_short_narrow_and_light(path):
    source = path.read_text()
    assert len(source.splitlines()) <= MAX_LINES
    assert len(code_lines(source)) <= MAX_CODE
    assert max(map(len, source.splitlines())) <= MAX_WIDTH
    assert density(source) <= MAX_DENSITY


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_plain_file_leans_on_torch_and_comm(path):
    source = path.read_text()
    allowed = MAY_IMPORT.get(path.stem, {"comm"})
    assert {name.rpartition(".")[2] for name in of_the_package(source)} == allowed
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    absolute = [node for node in imported if not getattr(node, "level", 0)]
    roots = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in absolute}
    assert {root.split(".")[0] for root in roots} <= {"torch", "collections", "typing", "functools"}


def test_every_method_with_an_engine_beside_it_is_there():
    methods = {"data_parallel", "zero", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline"}
    assert {path.stem for path in FILES} == methods | {"ring_attention"}  # a way of context parallelism
    words = ast.get_docstring(ast.parse((PLAIN / "__init__.py").read_text()))
    assert all(path.stem in words for path in FILES)
