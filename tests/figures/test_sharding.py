"""The figures of sharding draw what types mean, and a step is what a tracer lists."""

import re

import pytest

from shardlab.figures import sharding as figures
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.states import parse
from tests.figures.drawn import data

MESH = {"dp": 2, "tp": 4}
SIZES = {"B": 4, "S": 4, "h": 8, "f": 16}


def test_a_rank_holds_its_piece_and_a_term_has_a_pattern():
    x, w = parse("[B/dp, S, h/tp]"), parse("[h/tp, f] R@dp")
    figure = figures.held({"x": x, "w": w, "y": parse("[B/dp, S, f] P@tp")}, MESH)
    assert figure.layout.meta["alt"]
    found = data(figure)
    assert found["y [B/dp, S, f] P@tp"].fillpattern.shape
    assert not found[f"x {x}"].fillpattern.shape
    left = [found[f"x {x}"].x[6 * rank] % figures.PANEL for rank in range(8)]
    assert left == pytest.approx([0, 0.25, 0.5, 0.75] * 2)
    tops = [found[f"w {w}"].y[6 * rank] for rank in range(8)]
    assert tops[:4] == pytest.approx([0, -0.25, -0.5, -0.75])
    places = [(rank.x, rank.y) for rank in figure.data if rank.mode == "text"]
    assert len(places[0][0]) == 8


def test_a_step_lists_lines_types_and_bytes_both_ways():
    text = figures.step(METHODS["tensor parallel mlp"], {"dp": 2, "tp": 2}, SIZES).data
    rows = re.findall(r"<tr>(.*?)</tr>", text)[1:]
    tracer = METHODS["tensor parallel mlp"].trace({"dp": 2, "tp": 2}, SIZES)
    assert len(rows) == len(tracer.lines)
    for row, line in zip(rows, tracer.lines, strict=True):
        assert str(line.result) in row
        assert row.count("all_<wbr>reduce") == len(line.forward) + len(line.backward)
    assert "on.product(&quot;B S f&quot;, x, up)" in rows[1]
    assert "128 B" in rows[0]  # 2 x 4 x 8 numbers of 2 bytes, of which a ring of two sends 1/2 twice


def test_the_end_of_a_step_comes_after_backward():
    method = METHODS["data parallel step"]
    tracer = method.trace({"dp": 2}, SIZES)
    text = figures.step(method, {"dp": 2}, SIZES).data
    assert text.count("after backward") == len(tracer.lines) - tracer.closed > 0
    assert "after backward" not in figures.step(METHODS["tensor parallel mlp"], MESH, SIZES).data
