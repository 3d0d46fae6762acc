"""A plain file can be read whole, aloud: how long, how wide and how dense it may be, and what it may lean on."""

import ast
import io
import keyword
import tokenize
from pathlib import Path

import pytest

from shardlab.ranks import plain

FILES = sorted(path for path in Path(plain.__file__).parent.glob("*.py") if path.name != "__init__.py")
MAX_LINES, MAX_CODE, MAX_WIDTH, MAX_DENSITY = 100, 60, 100, 9.5
MAY_IMPORT = {"tensor_parallel": {"comm", "conjugates"}}  # of the package; the others only comm
CLOSING = set(")]},:;")  # one bracket of a pair counts; commas and colons do not


def code_lines(source):
    """The numbers of lines that are neither empty, nor comment, nor docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [node.body[0] for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    strings = [each for each in nodes if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)]
    inside = {line for each in strings for line in range(each.lineno, each.end_lineno + 1)}
    lines = enumerate(source.splitlines(), start=1)
    return [n for n, line in lines if n not in inside and line.strip() and not line.strip().startswith("#")]


def density(source):
    """Names and operators for each line of code."""
    lines = set(code_lines(source))
    tokens = [t for t in tokenize.generate_tokens(io.StringIO(source).readline) if t.start[0] in lines]
    names = [t for t in tokens if t.type == tokenize.NAME and not keyword.iskeyword(t.string)]
    operators = [t for t in tokens if t.type == tokenize.OP and t.string not in CLOSING]
    return (len(names) + len(operators)) / len(lines)


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


def test_the_measure_measures():
    source = '"""Two\nlines."""\n\n# a comment\nx = f(a, b)  # and one\n\n\ndef g():\n    """One."""\n    return x\n'
    assert code_lines(source) == [5, 8, 10]
    assert density(source) == (4 + 2 + 1 + 1 + 1) / 3


def test_every_method_with_an_engine_beside_it_is_there():
    methods = {"data_parallel", "zero", "tensor_parallel", "context_parallel", "expert_parallel", "pipeline"}
    assert {path.stem for path in FILES} == methods | {"ring_attention"}  # a way of context parallelism
    assert all(path.stem in plain.__doc__ for path in FILES)
