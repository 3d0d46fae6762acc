"""The explorer of the cuts of a product."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import prod

from shardlab.costs import units
from shardlab.costs.facts import models
from shardlab.figures import sharding as figures
from shardlab.sharding.types import rules
from shardlab.sharding.types.redistribution import (
    Redistribution,
    Refused,
    possible,
    redistribute,
    sent_bytes,
)
from shardlab.sharding.types.repairs import Repair, repairs
from shardlab.sharding.types.states import Dim, Sharding, along, gradient, local_shape

from .explorer import Explorer
from .view import View

MODEL = "Llama 3 8B"
MESH = {"dp": 2, "tp": 4}
BATCH, SEQUENCE = 8, 4096  # sequences, tokens of each
STATES = {
    "x_dp": ["S(B)", "S(h)", "R", "I"],
    "x_tp": ["S(S)", "S(h)", "R", "I", "P"],
    "w_dp": ["S(h)", "S(f)", "R", "I"],
    "w_tp": ["S(h)", "S(f)", "R", "I"],
}
SHOWN = 3  # repairs that a view lists


def cuts() -> Explorer:
    """Choose the states of x and w along both axes: see the type of y, or why it is refused."""
    names = {name: name.split("_") for name in STATES}
    return Explorer(
        product_view,
        STATES,
        title=f"Cuts of a product on 2 by 4 ranks: x [B, S, h] · w [h, f] of {MODEL}",
        labels={
            name: f"{tensor} along {axis}={MESH[axis]}" for name, (tensor, axis) in names.items()
        },
        default={"x_dp": "S(B)", "x_tp": "R", "w_dp": "R", "w_tp": "S(f)"},
    )


def product_view(*, x_dp: str, x_tp: str, w_dp: str, w_tp: str) -> View:
    """Show one state: what the ranks hold, and what the rules say."""
    operands = {
        "x": sharding_of("BSh", {"dp": x_dp, "tp": x_tp}),
        "w": sharding_of("hf", {"dp": w_dp, "tp": w_tp}),
    }
    factors = list(operands.values())
    try:
        operands["y"] = _multiplied(factors)
    except Refused as refused:
        found = repairs(_multiplied, factors, _sizes(), MESH)
        sentence = _refused(refused, found)
        changes = _repair_rows(factors, found[:SHOWN])
    else:
        sentence = _accepted(operands)
        changes = _sum_rows(operands)
    verdict = "the product is accepted" if "y" in operands else "the product is refused"
    figure = figures.held(operands, MESH, alt=f"What each of 8 ranks holds; {verdict}.")
    rows = [["", "type, or redistribution", "type of gradient, or sent", "a rank holds, or sends"]]
    rows += [[name, *_holding(sharding)] for name, sharding in operands.items()]
    return View(figure, sentence, rows + changes)


def sharding_of(names: str, states: dict[str, str]) -> Sharding:
    """Return the type of a tensor with dims of one letter from its state along each axis."""
    dims = [Dim(name, tuple(a for a in MESH if states[a] == f"S({name})")) for name in names]
    others = {kind: tuple(a for a in MESH if states[a] == kind) for kind in "RP"}
    return Sharding(tuple(dims), others["R"], others["P"])


def _multiplied(factors: Sequence[Sharding]) -> Sharding:
    return rules.product("B S f", factors)


@cache
def _sizes() -> dict[str, int]:
    spec = models.published(MODEL).spec
    return {"B": BATCH, "S": SEQUENCE, "h": spec.hidden_size, "f": spec.ffn}


def _holding(sharding: Sharding) -> list[str]:
    shape = local_shape(sharding, _sizes(), MESH)
    size = " · ".join(f"{length:,}" for length in shape)
    return [str(sharding), str(gradient(sharding)), f"{size}: {units.text(2 * prod(shape), 'B')}"]


def _accepted(operands: dict[str, Sharding]) -> str:
    y = operands["y"]
    cut = [axis for axis in MESH if any(along(operands[name], axis)[0] == "S" for name in "xw")]
    share = prod(MESH[axis] for axis in cut)
    work = f"1/{share} of the product" if share > 1 else "the whole product"
    words = [f"<b>Accepted:</b> y is <code>{y}</code>. Each rank computes {work}."]
    repeated = [axis for axis in MESH if axis not in cut and "P" not in _states(operands, axis)]
    if repeated:
        words.append(f"The ranks of {' and '.join(repeated)} compute the same.")
    for axis in y.partial:
        words.append(f"Along {axis} each rank has one of {MESH[axis]} terms of y.")
    for name in "xw":
        axes = " and ".join(operands[name].replicated)
        if axes:
            words.append(f"In backward each rank of {axes} gets a term of the gradient of {name}.")
    return " ".join(words)


def _states(operands: dict[str, Sharding], axis: str) -> list[str]:
    return [along(operand, axis) for operand in operands.values()]


def _refused(refused: Refused, found: Sequence[Repair]) -> str:
    ranks = MESH[refused.axis]
    met = " with ".join(refused.states)
    verdict = f"<b>Refused</b> along {refused.axis}, {met}: {refused.reason.format(n=ranks)}."
    if not found:
        return f"{verdict} No one or two redistributions repair it."
    cheapest = found[0]
    steps = " and ".join(_step(place, change) for place, change in cheapest.steps)
    sent = units.text(cheapest.nbytes, "B") if cheapest.nbytes else "nothing"
    number = "one redistribution" if len(cheapest.steps) == 1 else "two redistributions"
    return (
        f"{verdict} Cheapest repair by {number}: {steps}; a rank sends {sent}, backward included."
    )


def _step(place: int, change: Redistribution) -> str:
    return f"{'xw'[place]} {change.source} → {change.target} along {change.axis}"


def _repair_rows(operands: Sequence[Sharding], found: Sequence[Repair]) -> list[list[str]]:
    rows = []
    for number, repair in enumerate(found, start=1):
        changed = list(operands)
        for place, change in repair.steps:
            rows.append([f"repair {number}: {'xw'[place]}", *_sending(changed[place], change)])
            changed[place] = redistribute(changed[place], change)
    return rows


def _sum_rows(operands: dict[str, Sharding]) -> list[list[str]]:
    """List what may be done with terms of y, and what sums the terms of gradients."""
    y = operands["y"]
    rows = [["y", *_sending(y, change)] for axis in y.partial for change in possible(y, axis)]
    for name in "xw":
        terms = replace(gradient(operands[name]), fixed=True)
        for axis in terms.partial:
            summed = Redistribution(axis, "P", "I")
            sent, _ = sent_bytes(terms, summed, _sizes(), MESH)
            rows.append([f"gradient of {name}", str(summed), "", f"sends {units.text(sent, 'B')}"])
    return rows


def _sending(operand: Sharding, change: Redistribution) -> list[str]:
    """Name a redistribution, and the bytes that a rank sends in forward and in backward."""
    sent = sent_bytes(operand, change, _sizes(), MESH)
    said = [units.text(nbytes, "B") if nbytes else "nothing" for nbytes in sent]
    return [str(change), f"forward sends {said[0]}", f"backward sends {said[1]}"]
