"""The methods of the book: equal to one process, and each of their wrong redistributions."""

import pytest
import torch

from shardlab.ranks.players.mutation import MutationScore, inputs, mutation_score, play
from shardlab.sharding.types import rules
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.methods.method import layer

SIZES = dict.fromkeys(("B", "S", "f", "H", "e", "T", "G", "E", "C"), 4) | {"h": 8, "V": 8}
CHECKED = {  # method -> mutants that are refused, and that change nothing
    "tensor parallel mlp": (10, 3),
    "tensor parallel attention": (10, 3),
    "sequence parallel mlp": (15, 3),
    "vocabulary parallel embedding": (4, 3),
    "gathered keys": (16, 0),
    "ulysses": (28, 4),
    "ring attention": (0, 0),  # has no redistribution: its turns are in test_players.py
    "expert parallel": (16, 0),
    "vocabulary parallel loss": (17, 1),
    "data parallel step": (10, 1),
    "zero 1": (17, 5),
    "zero 3": (11, 1),
    "normalized step": (25, 3),
}


def mesh_of(method, ranks):
    return {axis: ranks for x in method.types for axis in x.axes}


@pytest.mark.parity("sharding", "each text on all ranks and on one: results, logged numbers, gradients")
@pytest.mark.parametrize("name", METHODS)
def test_a_method_computes_on_many_ranks_what_it_does_on_one(name):
    """What it returns, new parameters and numbers that are logged among it, and all gradients."""
    method = METHODS[name]
    wholes = inputs(method, SIZES)
    played, alone = (play(method, mesh_of(method, ranks), wholes) for ranks in (2, 1))
    for many, one in zip(played, alone, strict=True):
        assert torch.allclose(many, one)


@pytest.mark.parametrize("name", METHODS)
def test_every_wrong_redistribution_of_a_method_is_refused_or_changes_no_number(name):
    method = METHODS[name]
    assert mutation_score(method, mesh_of(method, 2), SIZES) == MutationScore(*CHECKED[name], ())


def test_a_mutant_that_changes_a_number_has_escaped(monkeypatch):
    """As it would if a rule let an invariant tensor meet one that is cut."""

    @layer(x="[B, h]", w="[h, f/tp]")
    def columns(on, x, w):
        x = on.redistribute(x, "tp", "I -> R")
        return on.redistribute(on.product("B f", x, w), "tp", "S(f) -> I")

    monkeypatch.setattr(rules, "_of_cuts", lambda axis, states: next((each for each in states if each[0] == "S"), ""))
    escaped = mutation_score(columns, {"tp": 2}, SIZES).escaped
    assert "number 1, I -> R @tp, removed: nothing: ranks hold different numbers along tp, which is I" in escaped
