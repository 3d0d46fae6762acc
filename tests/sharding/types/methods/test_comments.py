"""The comments of the plain files are types: what a text's tracer derives is what stands behind the line.

    [B, S/N]            a cut of the sequence        S(S)
    [B, S], whole       equal on all ranks           I or R
    [B, S], partial     each rank has a term         P

An arrow is a redistribution: from what a line takes to what it leaves.
"""

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from shardlab import plain
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.redistribution import redistribution
from shardlab.sharding.types.states import along, parse

FOLDER = Path(plain.__file__).parent
SIZES = dict.fromkeys("BSfHeTGEC", 4) | {"h": 8, "V": 8}


class Said(NamedTuple):
    """What a comment says of a tensor: its dims, with "/N" behind one that is cut, and the state."""

    dims: str
    state: str


def read(comment):
    """Read a comment: one tensor, or the two of an arrow."""
    found = []
    for part in comment.partition(";")[0].split(" -> "):
        dims = "".join(re.findall(r"\[(.*?)\]", part))
        cut = "".join(re.findall(r"([\w*]+)/N", dims))
        word = "".join(re.findall(r"whole|partial", part))
        found.append(Said(dims, f"S({cut})" if cut else {"whole": "equal", "partial": "P"}.get(word, "")))
    return found


def commented(file):
    """List the lines of code that have a comment: class and function, code, comment."""
    source = (FOLDER / f"{file}.py").read_text()
    names = {}
    for node in ast.walk(ast.parse(source)):  # the inner ones come later
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            for number in range(node.lineno, node.end_lineno + 1):
                names[number] = f"{names[number]}.{node.name}" if number in names else node.name
    parts = [(names.get(number, ""), *line.partition("  # ")) for number, line in enumerate(source.splitlines(), 1)]
    return [(scope, code.strip(), comment.strip()) for scope, code, mark, comment in parts if mark]


def derived(method, line, axis, names):
    """Trace a text: what its input or line is along an axis, and the state that an arrow starts from."""
    method = METHODS[method]
    inputs = {name: parse(text) for name, text in method.inputs.items()}
    mesh = dict.fromkeys((axis for x in inputs.values() for axis in x.axes), 2)
    code, result = "", inputs.get(line)
    if not result:  # of a line that computes several things, the last one
        lines = method.trace(mesh, SIZES).lines
        code = next(each.where for each in lines if line in each.where)
        *_, result = [each.result for each in lines if each.where == code]
    states = [along(result, axis)]
    arrow = re.search(r'"([^"]*->[^"]*)"', code)
    if arrow:
        states.insert(0, redistribution(axis, arrow[1]).source)
    return [named(result.names, state, names) for state in states]


def named(dims, state, names):
    """Write the state along an axis as comments do, with their names of the dims."""
    written = [names.get(dim, dim) + "/N" * (state == f"S({dim})") for dim in dims]
    cut = names.get(state[2:-1], state[2:-1])
    return Said(", ".join(filter(None, written)), {"I": "equal", "R": "equal", "P": "P"}.get(state, f"S({cut})"))


def mirrored(arrow, names):
    """Find what the gradient is before and after."""
    mirror = redistribution("tp", arrow).mirror
    return [named(["..."], state, names) for state in (mirror.source, mirror.target)]


MLP, LOSS, WORDS = "tensor parallel mlp", "vocabulary parallel loss", "vocabulary parallel embedding"
SAMPLES = ("data parallel step", "x", "dp", {"h": "S + 1"})
QUERIES, BLOCK = {"H": "K, H/K"}, {"B": "2, B", "H": "K, 1"}  # heads of queries that share a key are a dim
FLAT = {"h": "P", "f": ""}  # a parameter is one row of numbers
# file -> (class and function, start of the code) -> text, its line or input, the axis, other names of dims; or for a
# gradient the arrow whose mirror it is, and other names
COMPARED = {
    "data_parallel": {("", "mine ="): SAMPLES},
    "expert_parallel": {("", "mine ="): SAMPLES},
    "muon": {("", "mine ="): SAMPLES},
    "tensor_parallel": {
        ("", "for batch"): (WORDS, "tokens", "tp", {"S": "S + 1"}),
        ("CopyToRanks.forward", "return"): (MLP, '"I -> R"', "tp", {}),
        ("CopyToRanks.backward", "return"): ("I -> R", {}),
        ("SumOverRanks.forward", "return"): (MLP, '"P -> I"', "tp", {}),
        ("SumOverRanks.backward", "return"): ("P -> I", {}),
        ("ColumnLinear.__init__", "self.weight"): (MLP, "up", "tp", {"h": "inputs", "f": "outputs"}),
        ("ColumnLinear.forward", "def"): (MLP, "x", "tp", {}),
        ("ColumnLinear.forward", "x ="): (MLP, '"I -> R"', "tp", {}),
        ("ColumnLinear.forward", "return"): (MLP, "B S f", "tp", {"f": "outputs"}),
        ("RowLinear.__init__", "self.weight"): (MLP, "down", "tp", {"f": "inputs"}),
        ("RowLinear.forward", "def"): (MLP, "gelu", "tp", {"f": "inputs"}),
        ("RowLinear.forward", "x = functional"): (MLP, '"B S h"', "tp", {}),
        ("RowLinear.forward", "x = Sum"): (MLP, '"P -> I"', "tp", {}),
        ("VocabularyEmbedding.__init__", "self.weight"): (WORDS, "table", "tp", {}),
        ("VocabularyEmbedding.forward", "def"): (WORDS, "tokens", "tp", {}),
        ("VocabularyEmbedding.forward", "x = Sum"): (WORDS, '"P -> I"', "tp", {}),
        ("cross_entropy", "top"): (LOSS, "on.largest", "tp", {}),
        ("cross_entropy", "logits"): (LOSS, "logits = on.add", "tp", {}),
        ("cross_entropy", "total"): (LOSS, 'total, "tp", "P -> I"', "tp", {}),
        ("cross_entropy", "chosen = Sum"): (LOSS, 'chosen, "tp", "P -> I"', "tp", {}),
        ("cross_entropy", "return"): (LOSS, "on.close", "tp", {}),
    },
    "context_parallel": {
        ("", "for batch"): (WORDS, "tokens", "tp", {"S": "S + 1"}),
        ("Context.gathered", "k ="): ("gathered keys", "k = on.redist", "cp", {"H": "K"}),
        ("Context.gathered", "v ="): ("gathered keys", "v = on.redist", "cp", {"H": "K"}),
        ("Context.ulysses", "q ="): ("ulysses", "q = on.redist", "cp", {}),
        ("Context.ulysses", "k ="): ("ulysses", "k = on.redist", "cp", {"H": "K"}),
        ("Context.ulysses", "v ="): ("ulysses", "v = on.redist", "cp", {"H": "K"}),
        ("Context.ulysses", "whole"): ("ulysses", "S(H) -> S(S)", "cp", {}),
        ("GatherParts.forward", "return"): ("gathered keys", "k = on.redist", "cp", {"H": "K"}),
        ("GatherParts.backward", "mine"): ("S(S) -> R", {}),
    },
    "ring_attention": {
        ("", "for batch"): (WORDS, "tokens", "tp", {"S": "S + 1"}),
        ("ring", "q = q.unflatten"): ("ring attention", "q", "cp", QUERIES),
        ("ring", "block"): ("ring attention", "k", "cp", BLOCK),
        ("ring", "y:"): ("ring attention", "on.ring", "cp", QUERIES),
        ("ring", "return"): ("ring attention", "on.ring", "cp", {}),
        ("Ring.forward", "k, v"): ("ring attention", "k", "cp", BLOCK | {"B": "B"}),
    },
    "zero": {
        ("", "mine ="): SAMPLES,
        ("Sharded.__init__", "self.piece"): ("zero 1", "piece = on.redist", "dp", FLAT),
        ("Sharded.reduce_scatter", "(new,)"): ("zero 1", "gradient = on.redist", "dp", FLAT),
        ("ZeRO1.step", "x ="): ("zero 1", '"B f"', "dp", {"f": "S, h"}),
        ("ZeRO1.step", "(share"): ("zero 1", "on.gradient", "dp", FLAT),
        ("ZeRO1.step", "self.reduce"): ("zero 1", "gradient = on.redist", "dp", FLAT),
        ("ZeRO1.step", "self.gather"): ("zero 1", "S(h) -> R", "dp", FLAT),
        ("ZeRO2.step", "y = layer"): ("zero 1", '"B f"', "dp", {"f": "S, h"}),
        ("ZeRO2.step", "go_back"): ("zero 1", "on.gradient", "dp", FLAT),
        ("ZeRO2.step", "self.reduce"): ("zero 1", "gradient = on.redist", "dp", FLAT),
        ("ZeRO2.step", "self.gather"): ("zero 1", "S(h) -> R", "dp", FLAT),
        ("ZeRO3.step", "self.gather"): ("zero 3", "whole = on.redist", "dp", FLAT),
        ("ZeRO3.step", "y = layer"): ("zero 3", '"B f"', "dp", {"f": "S, h"}),
        ("ZeRO3.step", "self.reduce"): ("S(h) -> R", FLAT),
    },
}
LINES = [(file, *place) for file, places in COMPARED.items() for place in places]
# comments with a state that are not compared
NO_TEXT = {"context_parallel": 7, "muon": 1, "ring_attention": 7, "tensor_parallel": 3, "zero": 6}


def comments(file, scope, start):
    found = [comment for where, code, comment in commented(file) if where == scope and code.startswith(start)]
    assert found, f"{file}: no comment behind {start!r} in {scope!r}"
    return found


def expected(file, scope, start):
    """Return what the tracer derives: of an arrow both ends."""
    text = COMPARED[file][scope, start]
    found = mirrored(*text) if len(text) == 2 else derived(*text)
    if scope.endswith("Linear.__init__"):  # torch stores [outputs, inputs]
        found = [Said(", ".join(reversed(each.dims.split(", "))), each.state) for each in found]
    return found


def agree(said, found):
    """A comment of one tensor speaks of what a line leaves; dims that it does not name are any."""
    for one, other in zip(reversed(said), reversed(found), strict=False):
        any_dims = "..." in (one.dims or "...", other.dims)
        if one.state != other.state or not (any_dims or one.dims == other.dims):
            return False
    return True


@pytest.mark.parametrize(("file", "scope", "start"), LINES)
def test_a_comment_says_what_the_tracer_derives_and_nothing_else_would_do(file, scope, start):
    found = expected(file, scope, start)
    for comment in comments(file, scope, start):
        assert agree(read(comment), found), (comment, found)
        for word, other in [("whole", "partial"), ("partial", "whole"), ("/N", "")]:
            assert word not in comment or not agree(read(comment.replace(word, other)), found), word


@pytest.mark.parametrize("file", COMPARED)
def test_every_other_state_is_of_a_tensor_that_no_text_has(file):
    """Masks, positions, biases, buffers folded for a collective, and layers that are computed again."""
    stated = {(scope, code) for scope, code, comment in commented(file) if read(comment)[0].state}
    left = [
        (scope, code)
        for scope, code in stated
        if not any(scope == place and code.startswith(start) for place, start in COMPARED[file])
    ]
    assert len(left) == NO_TEXT.get(file, 0), sorted(left)
