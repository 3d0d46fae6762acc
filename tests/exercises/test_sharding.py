"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
import torch

from shardlab import exercises
from shardlab.exercises.checker import Case
from shardlab.exercises.sharding import cheapest, missing_sum, moves, reducer, states
from shardlab.exercises.shared import typed
from shardlab.ranks.players.players import Players
from shardlab.ranks.players.spread import spread
from shardlab.sharding.types import rules
from shardlab.sharding.types.redistribution import possible, redistribute, sent_bytes
from shardlab.sharding.types.states import gradient, parse

from .grading import Chapter, Graded, Mistake
from .solutions import sharding as solutions

CHAPTER = Chapter("sharding", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


@pytest.mark.parametrize("name", CHAPTER.names)
def test_no_answer_is_right_in_half_of_the_cases(name):
    exercise = exercises.find(name)
    function = getattr(solutions, exercise.function)
    answers = Counter(str(exercise.attempt(function, None, case, 0)) for case in exercise.cases)
    assert 2 * max(answers.values()) < len(exercise.cases)


# ---- what is asked -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_drawn_program_is_right_and_without_a_redistribution_it_is_not(seed):
    program = typed.right(seed, 1 + seed % 4)
    assert len(typed.states(program)) == len(program)
    for wrong in typed.mistakes(program):
        assert len(typed.states(wrong)) < len(wrong)
        answer = solutions.my_missing_sum(wrong)
        assert answer in list(typed.repairs(wrong))


def test_the_states_of_every_line_occur():
    kinds = {states.kind(case.given, line) for case in states.EXERCISE.cases for line in range(len(case.given))}
    assert kinds == {states.NAMED, states.KEPT, states.SUMMED, states.PARTIAL, states.EQUAL}


def test_sums_are_missing_in_forward_and_in_backward_and_doubled():
    """P -> I and P -> S are sums of forward, I -> R of backward; R -> P counts a bias once."""
    arrows = {arrow for case in missing_sum.EXERCISE.cases for _, _, arrow in typed.repairs(case.given)}
    assert arrows >= {"P -> I", "P -> S(S)", "I -> R", "S(S) -> R", "R -> P"}


def test_every_redistribution_is_asked_twice():
    dims = moves.DIMS.split()
    every = {
        (change.source[0], change.target[0])
        for state in ["I", "R", "P", *(f"S({dim})" for dim in dims)]
        for change in possible(typed.typed(dims, state), typed.AXIS)
    }
    asked = [tuple(state[0] for state in case.given[0].split(" -> ")) for case in moves.EXERCISE.cases]
    assert sorted(asked) == sorted([*every, *every])


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_no_detour_is_cheaper_than_the_price(ranks):
    """By every way of at most three redistributions."""
    for arrow, price in cheapest.prices(ranks).items():
        source, target = (state.replace("S", "S(width)") for state in arrow.split(" -> "))
        target = "S(tokens)" if source == target else target
        assert min(ways(typed.typed(cheapest.DIMS, source), target, ranks)) == pytest.approx(price * ranks**2)


def ways(x, target, ranks, left=3):
    for change in possible(x, typed.AXIS) if left else ():
        sizes = dict.fromkeys(cheapest.DIMS, ranks)
        sent = sum(sent_bytes(x, change, sizes, {typed.AXIS: ranks}, cheapest.ITEM))
        if change.target == target:
            yield sent
        yield from (sent + more for more in ways(redistribute(x, change), target, ranks, left - 1))


def test_the_solution_sends_what_the_tracer_counts():
    for case in cheapest.EXERCISE.cases:
        tokens, widths, ends, ranks = case.given
        for plan in product(cheapest.KINDS, repeat=len(widths) - 1):
            price = solutions.price_of(plan, tokens, widths, ends, cheapest.prices(ranks))
            assert price == pytest.approx(cheapest.nbytes(case.given, plan))


def test_columns_then_rows_are_cheapest_for_a_block_of_megatron():
    assert cheapest.cheapest((8, (32, 128, 32), "I", 4)) == ("columns", "rows")


def test_every_kind_of_best_plan_occurs():
    best = [cheapest.cheapest(case.given) for case in cheapest.EXERCISE.cases]
    assert all(any(kind(plan) for plan in best) for kind in (cheapest.stays, cheapest.moves, cheapest.mixes))


@pytest.mark.parametrize("name", reducer.PARAMETERS)
def test_a_reduced_gradient_is_that_of_one_process(name):
    case = Case(world_size=16, title=name, given=(name, dict.fromkeys(reducer.AXES, 2)))
    axes, factor = reducer.attempt(solutions.my_reducer, None, case, 0)
    kind, gradients = played(name, dict.fromkeys(reducer.AXES, 2))
    for axis in axes:
        gradients = gradients.sum(reducer.AXES.index(axis), keepdim=True).expand_as(gradients)
    _, alone = played(name, dict.fromkeys(reducer.AXES, 1))
    torch.testing.assert_close(factor * gradients, spread(alone[0, 0, 0, 0], kind, dict.fromkeys(reducer.AXES, 2)))


def played(name, degrees):
    """The parameter's type, and its gradient on all ranks; a loss is a mean over the tokens that a rank reads."""
    dims, *met = reducer.PARAMETERS[name]
    x, y = map(parse, met)
    parameter = gradient(rules.product(dims, [x, gradient(y)]))
    on, seed = Players(degrees), torch.Generator().manual_seed(0)
    inputs = []
    for kind in (replace(x, fixed=True), replace(gradient(y), fixed=True), parameter):
        shape = [4 if dim in ("B", "S") else 2 for dim in kind.names]
        inputs.append(on.given(torch.rand(shape, generator=seed, dtype=torch.float64), kind))
    sums = on.product("", on.product(" ".join(y.names), inputs[0], inputs[2]), inputs[1])
    tokens = 4 * 4 / prod(degrees[axis] for axis in parse(reducer.TOKENS).axes)
    (sums.held.sum() / tokens).backward()
    return parameter, inputs[2].held.grad


def test_an_experts_gradient_is_not_summed_over_ep():
    assert reducer.summed("experts, up") == ["dp", "cp"]
    assert reducer.summed("a gain on cut tokens") == ["dp", "cp", "tp", "ep"]


# ---- mistakes: what must fail (all else must hold), the smallest case, and a word of the report ----------------------


@mistake("states", states.SUMMED, at="1 rank, a program of 12 lines", says="expected  P")
def forgets_that_a_sum_is_left(program):
    right = solutions.my_states(program)
    new = ["P" not in [right[i] for i in line["of"]] and "arrow" not in line for line in program]
    return ["R" if here and state == "P" else state for here, state in zip(new, right, strict=True)]


@mistake("states", states.KEPT, at="1 rank, a program of 12 lines", says="expected  S(f)")
def forgets_that_pieces_stay_pieces(program):
    right = solutions.my_states(program)
    computed = [line["of"] and "arrow" not in line for line in program]
    return ["R" if here and state[0] == "S" else state for here, state in zip(computed, right, strict=True)]


@mistake("states", states.EQUAL, at="1 rank, a program of 12 lines", says="expected  I")
def takes_all_copies_for_r(program):
    right = solutions.my_states(program)
    computed = [line["of"] and "arrow" not in line for line in program]
    return ["R" if here and state == "I" else state for here, state in zip(computed, right, strict=True)]


@mistake("states", states.PARTIAL, at="1 rank, a program of 25 lines", says="expected  P")
def sums_whatever_comes_next(program):
    right = solutions.my_states(program)
    sums = [any(right[i] == "P" for i in line["of"]) and "arrow" not in line for line in program]
    return ["R" if late and state == "P" else state for late, state in zip(sums, right, strict=True)]


@mistake("states", states.NAMED, at="1 rank, a program of 12 lines", says="redistribute")
def names_where_a_redistribution_comes_from(program):
    right = solutions.my_states(program)
    return [line.get("arrow", state).split(" -> ")[0] for line, state in zip(program, right, strict=True)]


VERB, MIRROR, FORWARD, BACKWARD = moves.EXERCISE.properties


CHAPTER.changes({
    "turns the arrow around only": Mistake("moves", {MIRROR, BACKWARD}, at="2 ranks, I -> R", says="got       'R -> I'",
        old="mirrored.get(target, target), mirrored.get(source, source)", new="target, source"),
    "sends an all reduce once": Mistake("moves", {FORWARD, BACKWARD}, at="2 ranks, I -> R", says="I -> R",
        old='("all_reduce", 2 * ring)', new='("all_reduce", ring)'),
    "exchanges the whole tensor": Mistake("moves", {FORWARD, BACKWARD}, at="2 ranks, S(B) -> S(h)",
        old='("all_to_all", ring / ranks)', new='("all_to_all", ring)'),
    "sends in backward what forward sends": Mistake("moves", {BACKWARD}, at="2 ranks, I -> R", says="got       0",
        old="forward, backward\n", new="forward, forward\n"),
})


@mistake("moves", VERB, FORWARD, at="2 ranks, P -> S(h)", says="got       'all_reduce'")
def sums_first_and_cuts_then(source, target, nbytes, ranks):
    verb, mirror, forward, backward = solutions.my_moves(source, target, nbytes, ranks)
    if verb == "reduce_scatter":
        verb, forward = "all_reduce", 2 * forward
    return verb, mirror, forward, backward


LINE, HERE, LATER = missing_sum.EXERCISE.properties


CHAPTER.changes({
    "names the line where the operand is made": Mistake("missing_sum", {LINE},
        at="1 rank, a program of 11 lines", says="got       line",
        old="return line, operand,", new="return operand, operand,"),
    "knows the sum of forward only": Mistake("missing_sum", {HERE},
        at="1 rank, a program of 11 lines", says="got       P -> I of line",
        old='f"{state} -> {target}"', new='"P -> I"'),
    "names the operand by its place": Mistake("missing_sum", {HERE},
        at="1 rank, a program of 11 lines", says="an operand of line",
        old="return line, operand,", new='return line, -1 - program[line]["of"].index(operand),'),
})


@mistake("missing_sum", LATER, at="1 rank, a program of 11 lines", says="with which line")
def stops_after_the_line(program):
    """Take the last redistribution with which the line itself is right."""
    right = solutions.my_missing_sum(program)
    found, known = [right], typed.types(program)
    for operand in program[right[0]]["of"]:
        for change in possible(known[operand], typed.AXIS):
            arrow = f"{change.source} -> {change.target}"
            if len(typed.types(typed.repaired(program, right[0], operand, arrow))) >= right[0] + 2:
                found.append((right[0], operand, arrow))
    return found[-1]


PLAN, STAYS, MOVES, MIXES = cheapest.EXERCISE.properties


@mistake("cheapest", STAYS, MOVES, MIXES, at="2 ranks", says="bytes with")
def takes_turns(tokens, widths, ends, prices):
    return ["rows" if i % 2 else "columns" for i in range(len(widths) - 1)]


@mistake("cheapest", STAYS, MIXES, at="2 ranks", says="bytes with")
def gathers_all(tokens, widths, ends, prices):
    return ["gathered" for _ in widths[1:]]


CHAPTER.changes({
    "never gathers": Mistake("cheapest", {MOVES, MIXES}, at="2 ranks", says="bytes with",
        old='["columns", "rows", "gathered"]', new='["columns", "rows"]'),
    "forgets the way back": Mistake("cheapest", {STAYS, MOVES, MIXES}, at="2 ranks", says="bytes with",
        old="price_of(plan, tokens, widths, ends, prices)", new="way(plan, tokens, widths, ends, prices)[1]"),
})


@mistake("cheapest", STAYS, MOVES, MIXES, at="2 ranks", says="bytes with")
def looks_one_matrix_ahead(tokens, widths, ends, prices):
    plan = []
    for _ in widths[1:]:
        tries = [[*plan, kind] for kind in cheapest.KINDS]
        plan = min(tries, key=lambda each: solutions.way(each, tokens, widths, ends, prices)[1])
    return plan


@mistake("cheapest", PLAN, at="2 ranks", says="each one of columns, rows, gathered")
def returns_states(tokens, widths, ends, prices):
    return ["R" for _ in widths[1:]]


TERMS, OTHERS, FACTOR = reducer.EXERCISE.properties


CHAPTER.changes({
    "sums experts over ep": Mistake("reducer", {OTHERS}, at="2 ranks", says="over ep",
        old="cut + [axis for axis in terms if axis not in cut], 1",
        new='[axis for axis in degrees if axis in [*cut, *terms, "ep"]], 1'),
    "divides by what it sums over": Mistake("reducer", {FACTOR}, at="2 ranks",
        old="1 / apart", new="1 / prod(degrees[axis] for axis in {*cut, *terms})"),
    "never sums over tp": Mistake("reducer", {TERMS}, at="2 ranks", says="a sum over tp too",
        old="cut + [axis for axis in terms if axis not in cut], 1",
        new='[axis for axis in degrees if axis in cut + terms and axis != "tp"], 1'),
    "looks at cuts only": Mistake("reducer", {TERMS}, at="2 ranks", says="a key that all heads share",
        old="cut + [axis for axis in terms if axis not in cut], 1", new="cut, 1"),
    "divides by the world": Mistake("reducer", {FACTOR}, at="2 ranks", says="expected  1",
        old="1 / apart", new="1 / prod(degrees.values())"),
})


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("states")
def yields_states(program):
    yield from solutions.my_states(program)


@right("cheapest")
def in_an_array(*given):
    return np.array(solutions.my_cheapest(*given))
