"""Rules: the type of a result from the types of its operands, or a refusal.

Each axis is looked at alone. Ranks do not communicate in an operation, only in a redistribution.

    product      all I, or all R              the same
                 one P, the others R          P: a product is linear in each factor
                 one dim cut, the others R    that cut; P where the dim is summed away
    addition     all I, all R or all P        the same: a sum of sums is a sum
                 one dim cut, and R where an addend lacks the dim     that cut
    function     P is refused; so is a cut dim along which it needs all numbers
    average      equal copies: the same
    close        a loss is I or P
    update       a parameter and its step are whole or cut alike; P is refused
    log          a number that is I or R
    look-up      a product with a one-hot matrix, of which each rank makes what it needs
    ring         attention to gathered keys, once as many blocks have come by as there are ranks

In an operand without a gradient, I means R and R means I: both only say that copies are equal.
"""

from collections.abc import Sequence
from dataclasses import replace

from shardlab.files.arguments import Count, checked

from .redistribution import Redistribution, Refused, redistribute
from .states import Dim, Sharding, along

FUNCTIONS = {  # -> along how many dims it needs all numbers
    **dict.fromkeys(
        ["exp", "gelu", "log", "reciprocal", "relu", "sigmoid", "sign", "sqrt", "square"], 0
    ),
    **{"normalize": 1, "softmax": 1, "orthogonalize": 2},
}
_DIFFERENT_CUTS = "rank r has piece r of each, and of the {n} x {n} pairs of pieces only {n} meet"
_INVARIANT = (
    "the ranks go on differently with a tensor that is I, so each of {n} ranks gets one term of "
    "its gradient, and nothing sums them"
)
_PRODUCT_OF_SUMS = "of the {n} x {n} products of terms, the ranks compute only {n}"
_TERM_WITH_PIECE = "each rank multiplies or adds one of {n} terms where it needs their sum"
_ADDED_TO_TERMS = (
    "the sum over ranks would count the addend {n} times; sum the terms first, or count the addend "
    "on one rank"
)
_FUNCTION_OF_TERMS = "the sum over {n} ranks of a function is not the function of the sum"
_REPEATED_LOSS = "each of {n} ranks starts backward from the whole loss: {n} times the gradients"
_STEP_OF_TERMS = "each rank would step by one of {n} terms, and copies would drift apart"
_LOGGED_TERM = "each rank would log one of {n} terms"
_SOME_BLOCKS = "each of {{n}} blocks must be met once, not in turns={met}; leave turns out"
_AVERAGED = {
    "P": "the average of {n} terms is their sum divided by {n}; sum them, and divide with mean",
    "S": "the average would mix {n} pieces",
}
_FUNCTION_OF_PIECES = "each rank would see a piece of {n}, and the function needs the whole dim"


@checked
def product(names: str, factors: Sequence[Sharding]) -> Sharding:
    """Return the type of a product of tensors that keeps the dims `names` and sums all others.

    One factor is a sum over dims. Errors: Refused; ValueError for a dim that no factor has.
    """
    kept = names.split()
    known = _dims(factors)
    unknown = [name for name in kept if name not in known]
    if unknown:
        raise ValueError(f"unknown dim {unknown[0]} in {names!r}; use {', '.join(known)}")
    states = {}
    for axis in _axes(factors):
        met = _met(axis, factors)
        result = _of_cuts(axis, met) or _of_factors(axis, met)
        summed = result[0] == "S" and result[2:-1] not in kept
        states[axis] = "P" if summed else result
    return _sharding([known[name] for name in kept], states, factors)


@checked
def add(x: Sharding, y: Sharding) -> Sharding:
    """Return the type of x + y, where one of them has all dims, and the other some of them.

    Errors: Refused; ValueError where each has a dim that the other lacks.
    """
    long, short = (x, y) if len(x.dims) >= len(y.dims) else (y, x)
    strange = [name for name in short.names if name not in long.names]
    if strange:
        raise ValueError(f"{x} + {y}: {long} has no dim {strange[0]}; sum over it first")
    known = _dims((x, y))
    states = {}
    for axis in _axes((x, y)):
        met = _met(axis, (x, y))
        states[axis] = _of_cuts(axis, met) or _of_addends(axis, met)
    return _sharding([known[name] for name in long.names], states, (x, y))


@checked
def function(x: Sharding, *dims: str) -> Sharding:
    """Return the type of a function of each number; or of all numbers along `dims`, as softmax.

    Errors: Refused; ValueError for a dim that x lacks.
    """
    unknown = [dim for dim in dims if dim not in x.names]
    if unknown:
        raise ValueError(f"unknown dim {unknown[0]} of {x}; use {', '.join(x.names)}")
    for axis in x.axes:
        state = along(x, axis)
        if state == "P":
            raise Refused(axis, ["P"], _FUNCTION_OF_TERMS)
        if state[0] == "S" and state[2:-1] in dims:
            raise Refused(axis, [state], _FUNCTION_OF_PIECES)
    return x


@checked
def average(x: Sharding, axis: str) -> Sharding:
    """Return the type of an average over the ranks of an axis, which have equal copies.

    Errors: Refused for P and for pieces.
    """
    state = along(x, axis)
    if state[0] in _AVERAGED:
        raise Refused(axis, [state], _AVERAGED[state[0]])
    return x


@checked
def look_up(table: Sharding, tokens: Sharding) -> Sharding:
    """Return the type of the rows of `table`, whose first dim is the vocabulary, for `tokens`.

    Errors: Refused; ValueError for tokens that have a gradient.
    """
    if not tokens.fixed:
        raise ValueError(f"tokens {tokens} cannot have a gradient; write '{tokens} fixed'")
    if not table.dims:
        raise ValueError(f"the table {table} has no dims; its first dim is the vocabulary")
    words, *width = table.dims
    for axis in words.axes:
        state = along(tokens, axis)
        if state[0] in "SP":
            raise Refused(axis, [f"S({words.name})", state], _DIFFERENT_CUTS)
    others = tuple(axis for axis in tokens.replicated if axis not in words.axes)
    one_hot = replace(tokens, dims=(*tokens.dims, words), replicated=others)
    names = (*tokens.names, *(dim.name for dim in width))
    return product(" ".join(names), [one_hot, table])


@checked
def close(loss: Sharding) -> Sharding:
    """Return the type of a loss from which backward may start: one number, I or P along each axis.

    Errors: Refused for R; ValueError for a loss with dims.
    """
    if loss.dims:
        raise ValueError(f"the loss {loss} has dims; sum over {', '.join(loss.names)} first")
    for axis in loss.replicated:
        raise Refused(axis, ["R"], _REPEATED_LOSS)
    return loss


@checked
def update(parameter: Sharding, step: Sharding) -> Sharding:
    """Return the type of a parameter minus a step, such as its gradient: without a gradient itself.

    Errors: Refused; ValueError for a step with other dims.
    """
    if set(parameter.names) != set(step.names):
        raise ValueError(f"a step {step} does not fit a parameter {parameter}; use the same dims")
    _dims((parameter, step))
    for axis in (*parameter.partial, *step.partial):
        raise Refused(axis, [along(parameter, axis), along(step, axis)], _STEP_OF_TERMS)
    return replace(parameter, fixed=True)


@checked
def log(number: Sharding) -> Sharding:
    """Return the type of a number that is logged.

    Errors: Refused for P; ValueError for a tensor with dims.
    """
    if number.dims:
        raise ValueError(f"{number} has dims; log one number, such as a sum over all dims")
    for axis in number.partial:
        raise Refused(axis, ["P"], _LOGGED_TERM)
    return number


@checked
def largest(x: Sharding, dim: str) -> Sharding:
    """Return the type of the largest numbers along `dim`, of all ranks that cut it.

    Errors: Refused for P; ValueError for x with a gradient, or without the dim.
    """
    if not x.fixed or dim not in x.names:
        raise ValueError(f"the largest along {dim} of {x}: detach it, and use {', '.join(x.names)}")
    for axis in x.partial:
        raise Refused(axis, ["P"], _FUNCTION_OF_TERMS)
    return replace(x, dims=tuple(each for each in x.dims if each.name != dim))


@checked
def ring(axis: str, met: Count, ranks: Count, operands: Sequence[Sharding]) -> Sharding:
    """Return the type of attention of q to k and v, whose blocks go round an axis.

    met: blocks that each rank has met; all of them are as good as gathered. Scores are sums over
    the last dim. Errors: Refused; ValueError for k or v that the axis does not cut alike.
    """
    q, *others = operands
    states = [along(x, axis) for x in operands]
    if met != ranks:
        raise Refused(axis, states, _SOME_BLOCKS.format(met=met))
    whole = (redistribute(x, Redistribution(axis, states[1], "R")) for x in others)
    k, v = (renamed(x, states[1][2:-1], "keys") for x in whole)
    scores = product(" ".join((*q.names[:-1], "keys")), [q, k])
    return product(" ".join(q.names), [function(scores, "keys"), v])


@checked
def renamed(x: Sharding, old: str, new: str) -> Sharding:
    """Return the type with another name of a dim."""
    names = {old: new}
    return replace(x, dims=tuple(Dim(names.get(dim.name, dim.name), dim.axes) for dim in x.dims))


def _dims(operands: Sequence[Sharding]) -> dict[str, Dim]:
    """Find each dim by name. Errors: Refused where two operands do not cut it alike."""
    known: dict[str, Dim] = {}
    for operand in operands:
        for dim in operand.dims:
            other = known.setdefault(dim.name, dim)
            if other.axes != dim.axes:
                axes = {*other.axes} ^ {*dim.axes} or {*dim.axes}
                reason = f"{other} of one operand is {dim} of another: their pieces do not match"
                raise Refused(min(axes), [str(other), str(dim)], reason)
    return known


def _axes(operands: Sequence[Sharding]) -> list[str]:
    return list(dict.fromkeys(axis for operand in operands for axis in operand.axes))


def _met(axis: str, operands: Sequence[Sharding]) -> list[str]:
    """List the states that meet, where a fixed operand that is equal on all ranks adapts."""
    states = [along(operand, axis) for operand in operands]
    pairs = list(zip(operands, states, strict=True))
    moving = {state for operand, state in pairs if not operand.fixed}
    equal = "I" if moving == {"I"} else "R"
    return [equal if operand.fixed and state in "IR" else state for operand, state in pairs]


def _of_cuts(axis: str, states: list[str]) -> str:
    """Return the cut where some operand is cut; "" where none is."""
    cuts = sorted({state for state in states if state[0] == "S"})
    if not cuts:
        return ""
    if len(cuts) > 1:
        raise Refused(axis, states, _DIFFERENT_CUTS)
    if "P" in states:
        raise Refused(axis, states, _TERM_WITH_PIECE)
    if "I" in states:
        raise Refused(axis, states, _INVARIANT)
    return cuts[0]


def _of_factors(axis: str, states: list[str]) -> str:
    if set(states) in ({"I"}, {"R"}):
        return states[0]
    if "I" in states:
        raise Refused(axis, states, _INVARIANT)
    if states.count("P") > 1:
        raise Refused(axis, states, _PRODUCT_OF_SUMS)
    return "P"


def _of_addends(axis: str, states: list[str]) -> str:
    if len(set(states)) == 1:
        return states[0]
    raise Refused(axis, states, _ADDED_TO_TERMS if "P" in states else _INVARIANT)


def _sharding(
    dims: Sequence[Dim], states: dict[str, str], operands: Sequence[Sharding]
) -> Sharding:
    others = {name: tuple(axis for axis in states if states[axis] == name) for name in "RP"}
    fixed = all(operand.fixed for operand in operands)
    return Sharding(tuple(dims), others["R"], others["P"], fixed)
