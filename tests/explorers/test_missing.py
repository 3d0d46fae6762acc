"""A puzzle is wrong first where the types refuse it, and whole again where its arrow belongs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from shardlab.explorers import missing
from shardlab.ranks.players.lines import read
from shardlab.ranks.players.spread import assemble
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.states import along, gradient

PICTURE = missing.Missing(read)
PAGE = PICTURE.html()
PACKED = re.search(r"data-missing='([^']*)'", PAGE)[1]
DATA = json.loads(PACKED.replace("&#39;", "'").replace("&amp;", "&"))
BOTH = list(zip(PICTURE.puzzles, DATA, strict=True))
NAMES = [f"{puzzle.name}, {puzzle.axis}, {puzzle.number}" for puzzle, _ in BOTH]
EVERY_PUZZLE = pytest.mark.parametrize(("puzzle", "drawn"), BOTH, ids=NAMES)
HARMLESS = "normalized step", 6, 14  # I → R after R → P: refused, and changes no number


def healed(row):
    """State, numbers and gradients of a row once the arrow is back."""
    _, *now, _ = row[:5]
    return [new or old for new, old in zip(row[5:] or [0] * 3, now, strict=True)]


def alone(puzzle):
    """The lines of one process, which runs the same text on the same whole inputs."""
    mesh = dict.fromkeys([axis for kind in METHODS[puzzle.name].types for axis in kind.axes], 1)
    return replace(puzzle, read=lambda method, _, *rest: read(method, mesh, *rest)).right.lines


def test_every_puzzle_lacks_another_redistribution():
    assert len(DATA) == len(set(NAMES)) == 24


@EVERY_PUZZLE
def test_the_healed_numbers_are_those_of_one_process(puzzle, drawn):
    lines, gap = puzzle.right.lines, drawn["gap"]
    mesh = {axis: 1 + (axis == puzzle.axis) for line in lines for axis in line.type.axes}
    for line, whole in zip(lines, alone(puzzle), strict=True):
        pairs = [(line.held, line.type, whole.held)]
        if line.held.grad is not None:
            pairs.append((line.held.grad, gradient(line.type), whole.held.grad))
        for held, kind, one in pairs:
            assert torch.allclose(assemble(held.detach(), kind, mesh).flatten(), one.flatten())
    rows = [healed(row) for row in drawn["rows"]]
    rows.insert(gap, drawn["missing"][1:])
    for line, (state, *held) in zip(lines, rows, strict=True):
        assert state == along(line.type, puzzle.axis)
        assert held == ["|".join(map(missing.text, each)) for each in (line.numbers(), line.gradients())]


@EVERY_PUZZLE
def test_it_is_wrong_first_where_the_types_refuse_it(puzzle, drawn):
    """Either the refused line computes something else, or what it reads gets another gradient."""
    backward, at, rank = next(puzzle.red())
    refused = puzzle.wrong.refused
    if not backward:
        assert at == refused
    else:
        assert "I" in puzzle.wrong.why.states
        name = puzzle.wrong.lines[at].code.partition(": ")[0].partition(" = ")[0]
        assert at < refused
        assert re.search(rf"\b{name}\b", puzzle.wrong.lines[refused].code)
    assert drawn["rows"][at][4] >> (2 * backward + rank) & 1
    has, should = (each[1 + backward].split("|")[rank] for each in (drawn["rows"][at][1:4], healed(drawn["rows"][at])))
    assert f": rank {rank} has {has} where " in drawn["told"]
    assert drawn["told"].endswith(f" {should}.")
    assert has != should


def outcome(reading):
    """The gradients of inputs, new parameters and what is logged, or the loss of a layer, as printed."""
    found = [line.gradients() for line in reading.lines[: reading.inputs]]
    ends = [line for line in reading.lines if re.search(r"on\.(update|log)\(", line.code)]
    found += [line.numbers() for line in ends or reading.lines[-1:]]
    return [[missing.text(rank) for rank in held] for held in found]


@EVERY_PUZZLE
def test_the_right_click_heals_all_and_a_wrong_one_does_not(puzzle, drawn):
    right = outcome(puzzle.right)
    assert outcome(puzzle.wrong) != right
    assert drawn["helps"][puzzle.wrong.refused - drawn["inputs"]] == -1
    for at, help in enumerate(drawn["helps"], start=drawn["inputs"]):
        try:
            put = puzzle.reading(puzzle.number, (puzzle.wrong.change, at))
        except ValueError:  # a gradient that no loss depends on
            assert help > 0
            continue
        assert put.placed == (help != 0)
        assert bool(put.why) == (help >= 0)
        harmless = (puzzle.name, puzzle.number, at) == HARMLESS
        assert (outcome(put) == right) == (help < 0 or harmless)


def test_without_javascript_the_table_has_a_puzzle_and_every_answer_and_the_page_is_light():
    for code, state, *held in (row[:4] for row in DATA[0]["rows"]):
        cells = [state, *(each.replace("|", ", ") for each in held)]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in PAGE, code
    for drawn in DATA:
        assert f"<td>{drawn['arrow']}</td><td>{drawn['told']}</td><td>{drawn['why']}</td>" in PAGE
    files = Path(missing.__file__).parent.glob("missing.*")
    assert len(PAGE) + sum(file.stat().st_size for file in files if file.suffix != ".py") < 60_000
