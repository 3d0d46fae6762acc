"""What the rules accept computes what one process computes, and what they refuse does not."""

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardlab.ranks.players.players import FUNCTIONS, PlayedTensor, Players
from shardlab.ranks.players.spread import assemble, spread
from shardlab.sharding.types import rules
from shardlab.sharding.types.redistribution import possible
from shardlab.sharding.types.states import Dim, Sharding, gradient, parse
from shardlab.sharding.types.tracer import Refusal, Tracer

from ...sharding.types.shardings import MESH, shardings

ONE = dict.fromkeys(MESH, 1)  # one process, in which every redistribution changes nothing
SIZES = {"B": 4, "S": 4, "h": 8, "f": 4, "V": 8}


def random(sharding):
    """Small whole numbers, so that sums are exact."""
    return torch.randint(-2, 3, [SIZES[name] for name in sharding.names]).double()


def test_a_type_says_what_each_rank_holds():
    x = torch.arange(4.0)
    mesh = {"tp": 2}
    assert spread(x, parse("[B/tp]"), mesh).tolist() == [[0, 1], [2, 3]]
    assert spread(x, parse("[B] R@tp"), mesh).tolist() == [[0, 1, 2, 3]] * 2
    assert spread(x, parse("[B] P@tp"), mesh).sum(0).tolist() == x.tolist()
    with pytest.raises(ValueError, match="different numbers along tp, which is I"):
        assemble(torch.tensor([[1.0], [2.0]]), parse("[B]"), mesh)


@given(shardings())
def test_what_is_spread_is_put_together_again(x):
    whole = random(x)
    assert assemble(spread(whole, x, MESH), x, MESH).equal(whole)


# ---- random programs -----------------------------------------------------------------------------------------------


class Program:
    """A program that grows by lines that the tracer accepts, as they are or repaired."""

    def __init__(self, inputs):
        self.tracer = Tracer(MESH, SIZES)
        self.types = list(inputs)
        self.lines = []

    def write(self, draw, operands, call):
        """Add a line. A refusal that offers no repair, or bad dims, add nothing."""
        try:
            result = call(self.tracer, *(self.types[place] for place in operands))
        except Refusal as refusal:
            assume(refusal.repairs)
            for place, change in draw(st.sampled_from(refusal.repairs)).steps:
                operands = [*operands]
                self.move(operands[place], change)
                operands[place] = len(self.types) - 1
            result = call(self.tracer, *(self.types[place] for place in operands))
        self.lines.append((operands, call))
        self.types.append(result)

    def move(self, place, change):
        def call(on, x):
            return on.redistribute(x, change.axis, f"{change.source} -> {change.target}")

        self.lines.append(([place], call))
        self.types.append(call(self.tracer, self.types[place]))

    def play(self, wholes, mesh):
        """Run it on a mesh; return all values, the inputs first."""
        players = Players(mesh)
        values = [players.given(whole, x) for whole, x in zip(wholes, self.types, strict=False)]
        for operands, call in self.lines:
            values.append(call(players, *(values[place] for place in operands)))
        return values


@st.composite
def programs(draw):
    inputs = draw(st.lists(shardings(names=("B", "h", "f")), min_size=2, max_size=3))
    program = Program(inputs)
    for _ in range(draw(st.integers(1, 4))):
        verb = draw(st.sampled_from(["product", "add", "function", "along", "scale", "redistribute"]))
        places = st.integers(0, len(program.types) - 1)
        one, other = draw(places), draw(places)
        x, y = program.types[one], program.types[other]
        names = list(dict.fromkeys((*x.names, *y.names)))
        if verb == "product":
            kept = " ".join(draw(st.permutations(names))[: draw(st.integers(0, len(names)))])
            program.write(draw, [one, other], lambda on, a, b, kept=kept: on.product(kept, a, b))
        elif verb == "add":
            assume({*x.names} <= {*y.names} or {*y.names} <= {*x.names})
            program.write(draw, [one, other], lambda on, a, b: on.add(a, b))
        elif verb == "function":
            program.write(draw, [one], lambda on, a: on.function("gelu", a))
        elif verb == "along" and x.names:
            dim = draw(st.sampled_from(x.names))
            program.write(draw, [one], lambda on, a, dim=dim: on.function("softmax", a, dim))
        elif verb == "scale":
            program.write(draw, [one], lambda on, a: on.scale(a, -0.5))
        elif verb == "redistribute":
            changes = list(possible(x, draw(st.sampled_from(list(MESH)))))
            assume(changes)
            program.move(one, draw(st.sampled_from(changes)))
    program.write(draw, [len(program.types) - 1], lambda on, a: on.function("square", a))
    program.write(draw, [len(program.types) - 1], lambda on, a: on.product("", a))
    program.write(draw, [len(program.types) - 1], lambda on, a: on.close(a))
    return program, len(inputs)


@settings(max_examples=150, deadline=None)
@given(programs())
def test_an_accepted_program_computes_what_one_process_does(drawn):
    """Every value along the way, and the gradient of every input; refused lines are repaired as advised."""
    program, inputs = drawn
    assume(not program.types[-1].fixed)
    wholes = [random(x) for x in program.types[:inputs]]
    played, alone = program.play(wholes, MESH), program.play(wholes, ONE)
    for many, one, x in zip(played, alone, program.types, strict=True):
        value = assemble(one.held, x, ONE)
        assert torch.allclose(assemble(many.held, x, MESH), value), x
    for many, one, x in list(zip(played, alone, program.types, strict=True))[:inputs]:
        if one.held.grad is not None:
            expected = assemble(one.held.grad, gradient(x), ONE)
            assert torch.allclose(assemble(many.held.grad, gradient(x), MESH), expected), x


# ---- what is refused -----------------------------------------------------------------------------------------------

OPERATIONS = {  # dims of operands, of the result, how it is written, types of the operands that are accepted, of all
    "matrix product": (["B h", "h f"], "B f", lambda on, x, w: on.product("B f", x, w), 7, 25),
    "gain": (["B h", "h"], "B h", lambda on, x, gain: on.product("B h", x, gain), 6, 20),
    "mask": (["B h", "B fixed"], "B h", lambda on, x, mask: on.product("B h", x, mask), 10, 20),
    "sum": (["B h"], "B", lambda on, x: on.product("B", x), 5, 5),
    "bias": (["B h", "h"], "B h", lambda on, x, bias: on.add(x, bias), 5, 20),
    "positions": (["B h", "h fixed"], "B h", lambda on, x, positions: on.add(x, positions), 8, 20),
    "residual": (["B h", "B h"], "B h", lambda on, x, y: on.add(x, y), 5, 25),
    "function": (["B h"], "B h", lambda on, x: on.function("square", x), 4, 5),
    "mean": (["B h"], "B", lambda on, x: on.mean(x, "h"), 5, 5),
    "softmax": (["B h"], "B h", lambda on, x: on.function("softmax", x, "h"), 3, 5),
}


def types(text):
    """Every type of a tensor on an axis tp."""
    names, fixed = text.removesuffix(" fixed"), text.endswith(" fixed")
    dims = tuple(map(Dim, names.split()))
    yield from (Sharding(dims, fixed=fixed), Sharding(dims, ("tp",), fixed=fixed))
    yield Sharding(dims, partial=("tp",), fixed=fixed)
    for place, dim in enumerate(dims):
        yield Sharding((*dims[:place], Dim(dim.name, ("tp",)), *dims[place + 1 :]), fixed=fixed)


def values_and_gradients(call, wholes, operands, weights, claim, ranks):
    """Compute sum(weights * result) as if the result had the type that is claimed, and put all together."""
    mesh = {"tp": ranks}
    players = Players(mesh)
    inputs = [players.given(whole, x) for whole, x in zip(wholes, operands, strict=True)]
    result = PlayedTensor(call(players, *inputs).held, claim.dims)
    value = assemble(result.held, claim, mesh)
    apart = players.redistribute(result, "tp", "R -> P") if claim.replicated else result
    others = Sharding(claim.dims, replicated=claim.partial + claim.replicated, fixed=True)
    players.close(players.product("", apart, players.given(weights, others)))
    gradients = [
        assemble(x.held.grad, gradient(each), mesh)
        for x, each in zip(inputs, operands, strict=True)
        if not each.fixed
    ]
    return [value, *gradients]


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_refused_line_would_be_wrong_whatever_type_its_result_had(name, ranks):
    """And an accepted one is right with the type that the rules derive. Every state of every operand."""
    texts, names, call, num_accepted, num_types = OPERATIONS[name]
    tracer = Tracer({"tp": ranks}, SIZES)
    accepted, tried = 0, 0
    for operands in itertools.product(*(types(text) for text in texts)):
        wholes = [random(x) + 3 for x in operands]
        claims = list(types(names))
        weights = random(claims[0]) + 3
        alone = values_and_gradients(call, wholes, operands, weights, claims[0], 1)
        try:
            claims, expected = [call(tracer, *operands)], True
        except Refusal:
            expected = False
        right = [claim for claim in claims if agree(call, wholes, operands, weights, claim, ranks, alone)]
        assert bool(right) == expected, (name, list(map(str, operands)), list(map(str, right)))
        accepted, tried = accepted + expected, tried + 1
    assert (accepted, tried) == (num_accepted, num_types)


def agree(call, wholes, operands, weights, claim, ranks, alone):
    try:
        played = values_and_gradients(call, wholes, operands, weights, claim, ranks)
    except (ValueError, RuntimeError):  # ranks differ where they should not, or shapes do not fit
        return False
    pairs = zip(played, alone, strict=True)
    return all(one.shape == other.shape and torch.allclose(one, other) for one, other in pairs)


@pytest.mark.parametrize("text", ["[B, h]", "[B, h] R@tp"])
def test_an_average_of_equal_copies_is_the_copy_and_has_its_gradient(text):
    x, whole = parse(text), random(parse("[B, h]"))

    def call(on, x):
        return on.average(x, "tp")

    alone = values_and_gradients(call, [whole], [x], whole + 3, x, 1)
    assert Tracer({"tp": 2}, SIZES).average(x, "tp") == x
    assert agree(call, [whole], [x], whole + 3, x, 2, alone)


def test_an_average_of_terms_is_a_part_of_their_sum_on_every_rank():
    players = Players({"tp": 2})
    held = players.average(players.given(torch.tensor(6.0), parse("[] P@tp fixed")), "tp").held
    assert held.tolist() == [3, 3]


def test_both_readers_know_the_same_functions():
    assert set(FUNCTIONS) == set(rules.FUNCTIONS)


TABLES = ["[V, h]", "[V/tp, h] R@dp", "[V, h/tp] R@dp", "[V/dp/tp, h]", "[V/tp/dp, h]", "[V, h] R@dp R@tp"]


@pytest.mark.parametrize("text", TABLES)
@pytest.mark.parametrize("tokens", ["[B, S] fixed", "[B/dp, S] fixed"])
def test_a_look_up_takes_the_rows_of_a_table_that_is_cut(text, tokens):
    table, places = parse(text), parse(tokens)
    if "dp" in places.axes and "R@dp" not in text:
        with pytest.raises(rules.Refused):
            rules.look_up(table, places)
        return
    result = rules.look_up(table, places)
    whole, numbers = random(table), torch.randint(0, SIZES["V"], (4, 4))
    players = Players(MESH)
    found = players.look_up(players.given(whole, table), players.given(numbers, replace(places, fixed=True)))
    assert assemble(found.held, result, MESH).equal(whole[numbers])


RINGS = {  # types of q, and of k and v -> the type after as many turns as ranks, or "" if it is refused
    ("[B, S/tp, e]", "[B, S/tp, e]"): "[B, S/tp, e]",
    ("[B, S, e] R@tp", "[B, S/tp, e]"): "[B, S, e] R@tp",
    ("[B, S, e]", "[B, S/tp, e]"): "",
    ("[B, S, e] P@tp", "[B, S/tp, e]"): "",
}


@pytest.mark.parametrize(("queries", "keys"), RINGS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_is_attention_after_as_many_turns_as_ranks_and_no_state_before_or_after(queries, keys, ranks):
    """What is refused would be wrong whatever type it had, in values and gradients."""
    operands = [parse(queries), parse(keys), parse(keys)]
    on = Tracer({"tp": ranks}, SIZES | {"e": 2})
    wholes = [torch.randn(4, 4, 2, dtype=torch.double) for _ in operands]
    weights = random(parse("[B, S]"))[..., None] + torch.tensor([3.0, 4.0])
    alone = values_and_gradients(lambda on, *x: on.ring("tp", *x), wholes, operands, weights, parse("[B, S, e]"), 1)
    for turns in range(1, ranks + 2):

        def call(on, *x, turns=turns):
            return on.ring("tp", *x, turns=turns)

        claims = [claim for claim in types("B S e") if agree(call, wholes, operands, weights, claim, ranks, alone)]
        if turns == ranks and RINGS[queries, keys]:
            assert RINGS[queries, keys] == str(call(on, *operands))
            assert RINGS[queries, keys] in map(str, claims)
        else:
            assert not claims
            with pytest.raises(Refusal):
                call(on, *operands)
