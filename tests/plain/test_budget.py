"""A plain file can be read whole, aloud: how long, how wide and how dense it may be, and what it may lean on."""

import ast
from pathlib import Path

import pytest

from tests.density import density

PLAIN = Path(__file__).parents[2] / "code" / "shardlab" / "plain"
FILES = sorted(path for path in PLAIN.glob("*.py") if path.name != "__init__.py")
MAX_LINES, MAX_WIDTH, MAX_DENSITY = 150, 100, 7.5


def of_the_package(source):
    """What a file imports from shardlab, by its last name."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {node: node.module or "" for node in found if isinstance(node, ast.ImportFrom)}
    ours = [node for node, module in modules.items() if node.level or module.split(".")[0] == "shardlab"]
    return {name.name if node.module == "shardlab" else node.module for node in ours for name in node.names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_plain_file_is_short_narrow_and_light(path):
    source = path.read_text()
    assert len(source.splitlines()) <= MAX_LINES
    assert max(map(len, source.splitlines())) <= MAX_WIDTH
    assert density(source) <= MAX_DENSITY


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_plain_file_leans_on_torch_and_comm(path):
    source = path.read_text()
    assert of_the_package(source) <= {"comm"}
    imported = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    absolute = [node for node in imported if not getattr(node, "level", 0)]
    roots = {node.module if isinstance(node, ast.ImportFrom) else node.names[0].name for node in absolute}
    assert {root.split(".")[0] for root in roots} <= {"torch", "shardlab", "collections", "typing", "functools"}


def test_every_method_with_an_engine_beside_it_is_there():
    methods = {"data_parallel", "zero", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline"}
    parts = {"ring_attention", "linear_attention", "muon"}  # of context parallelism, of ZeRO
    numbers = {"low_precision", "rounded_linear"}  # of any method
    assert {path.stem for path in FILES} == methods | parts | numbers
    words = ast.get_docstring(ast.parse((PLAIN / "__init__.py").read_text()))
    assert all(path.stem in words for path in FILES)
