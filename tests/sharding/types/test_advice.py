"""Advice is read to the end of a text: what it says first gives the right number on all ranks."""

from contextlib import suppress

import pytest
import torch

from shardlab.ranks.players.players import Players
from shardlab.ranks.players.spread import assemble
from shardlab.sharding.types.advice import advice
from shardlab.sharding.types.altered import Altered
from shardlab.sharding.types.bugs import BUGS
from shardlab.sharding.types.bugs.bug import Bug
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.mutants import mutants
from shardlab.sharding.types.tracer import Refusal, Tracer


def gathered(on, right, logits):
    """Logits are gathered, and then given to a loss for one part of the vocabulary."""
    logits = on.redistribute(logits, "tp", "S(V) -> I")
    total = on.product("", logits)
    return on.log(total if right else on.redistribute(total, "tp", "P -> I"))


def other_axis(on, right, expert, dense):
    """The squares of experts are summed over tp, not over ep."""
    expert = on.product("", on.function("square", expert))
    dense = on.product("", on.function("square", dense))
    expert = on.redistribute(expert, "ep" if right else "tp", "P -> I")
    return on.log(on.add(expert, on.redistribute(dense, "tp", "P -> I")))


def local_mean(on, right, losses):
    """The mean over this rank's tokens is logged for all."""
    mean = on.mean(losses, "T")
    return on.log(on.redistribute(mean, "cp", "P -> I") if right else mean)


def averaged(on, right, losses):
    """A reducer averages terms that are divided already."""
    mean = on.mean(losses, "T")
    return on.log(on.redistribute(mean, "cp", "P -> I") if right else on.average(mean, "cp"))


def own_count(on, right, losses, counts):
    """Each replica divides by its own number of tokens."""
    total, count = on.product("", losses), on.product("", counts)
    if right:
        count = on.redistribute(count, "dp", "P -> R")
    share = on.product("", total, on.function("reciprocal", count))
    return on.log(on.redistribute(share, "dp", "P -> I"))


def case(text, *inputs, right, refusal):
    return Bug(text.__name__, text, "", inputs=inputs, right=right, wrong=None, refusal=refusal)


WHOLE = "starts at P, but each rank has the whole of it already"
FURTHER = [
    (case(gathered, ("[V/tp] fixed", [1, 2, 3, 4]), right=10, refusal=WHOLE), "leave out S(V) -> I @tp"),
    (
        case(other_axis, ("[E/ep] fixed", [1, 2]), ("[F/tp] fixed", [3, 4]), right=30, refusal=WHOLE),
        "write P -> I @ep for P -> I @tp",
    ),
    (
        case(local_mean, ("[T/cp] fixed", [1, 2, 3, 6]), right=3, refusal="would log one of 2 terms"),
        "redistribute operand 1: P -> I @cp",
    ),
    (
        case(averaged, ("[T/cp] fixed", [1, 2, 3, 6]), right=3, refusal="the average of 2 terms"),
        "redistribute operand 1: P -> I @cp",
    ),
    (
        case(
            own_count,
            ("[T/dp] fixed", [6, 0, 1, 5]),
            ("[T/dp] fixed", [1, 0, 1, 1]),
            right=4,
            refusal="not the function of the sum",
        ),
        "redistribute operand 1: P -> I @dp",
    ),
]
FIRST = {  # the number of a bug -> the first advice, without its lines
    1: "redistribute operand 1: I -> R @tp",
    2: "redistribute operand 1: I -> R @tp",
    3: "leave out P -> R @tp",
    4: "redistribute operand 1: P -> I @tp, leave out P -> I @tp",
    5: "redistribute operand 1: I -> R @tp",
    6: "redistribute operand 1: P -> I @dp, redistribute operand 1: P -> I @dp",
    7: "redistribute operand 1: P -> I @dp, redistribute operand 1: P -> I @dp",
    8: "redistribute operand 1: S(S) -> P @module and operand 2: S(S) -> I @default",
    9: "leave out R -> P @tp",
    10: "redistribute operand 2: R -> P @tp",
    12: "redistribute operand 1: P -> S(E) @tp",
    13: "redistribute operand 1: P -> I @tp, leave out P -> I @tp",
    14: "redistribute operand 1: S(M) -> I @tp",
    15: "redistribute operand 2: P -> I @tp",
    19: "write S(T) -> R @cp for S(T) -> I @cp",
    20: "leave out S(T) -> I @cp",
}
CASES = [*((BUGS[number - 1], first) for number, first in FIRST.items()), *FURTHER]


def results(bug, right, *changes):
    """The type and the whole number of what a text returns, when all ranks play it."""
    tracer, players = Tracer(bug.mesh, bug.sizes), Players(bug.mesh)
    types = [tracer.given(text) for text, _ in bug.inputs]
    wholes = [torch.tensor(whole, dtype=torch.double) for _, whole in bug.inputs]
    played = [players.given(*each) for each in zip(wholes, types, strict=True)]
    of_types = bug.text(Altered(tracer, *changes), right, *types)
    of_ranks = bug.text(Altered(players, *changes), right, *played)
    return assemble(of_ranks.held.detach(), of_types, bug.mesh)


@pytest.mark.parametrize(("bug", "first"), CASES, ids=lambda each: getattr(each, "title", None))
def test_all_advice_for_a_bug_is_accepted_to_the_end_and_gives_the_right_number(bug, first):
    bug.trace(right=True)
    with pytest.raises(Refusal) as refusal:
        bug.trace(right=False)
    assert bug.refusal in str(refusal.value)
    found = refusal.value.repairs
    assert ", ".join(change.advice for change in found[0].changes) == first
    assert str(refusal.value).endswith("; or ".join(map(str, found[:3])))
    expected = results(bug, True)
    if bug.title in [each.title for each, _ in FURTHER]:
        assert expected == bug.right
    for each in found:
        assert torch.allclose(results(bug, False, *each.changes), expected), str(each)


def test_a_refusal_names_the_line_that_set_the_state_and_its_file():
    with pytest.raises(Refusal) as refusal:
        BUGS[19].trace(right=False)
    _, why, since, way = str(refusal.value).split("\n")
    assert why == "cp=2: I: P -> I starts at P, but each rank has the whole of it already"
    assert since.startswith("operand 1 is I since end.py line ")
    assert since.endswith('whole = on.redistribute(logprobs, "cp", "S(T) -> I")')
    assert "leave out P -> I @cp in end.py line" in way


SIZES = dict.fromkeys("BSfHeTGEC", 4) | {"h": 8, "V": 8}


@pytest.mark.parametrize("name", ["sequence parallel mlp", "data parallel step", "zero 1", "zero 3"])
def test_each_refused_mutant_of_a_method_gets_advice(name):
    method = METHODS[name]
    mesh = {axis: 2 for x in method.types for axis in x.axes}
    for mutant in mutants(method, mesh, SIZES):

        def text(on, *inputs, mutant=mutant):
            return method(Altered(on, mutant), *inputs)

        with suppress(ValueError):
            text(Tracer(mesh, SIZES), *method.types)
            continue
        found = advice(text, Tracer(mesh, SIZES), *method.types)
        assert found, str(mutant)


@pytest.mark.parametrize(
    ("text", "arrow", "result"),
    [("[B] fixed", "R -> P", "[B] P@tp fixed"), ("[B] R@tp fixed", "I -> S(B)", "[B/tp] fixed")],
)
def test_equal_copies_without_a_gradient_are_i_and_r_in_arrows_too(text, arrow, result):
    on = Tracer({"tp": 2}, {"B": 4})
    assert str(on.redistribute(on.given(text), "tp", arrow)) == result
