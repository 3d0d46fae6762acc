"""Sums over ranks that are missing, doubled, or of something that is no term of a sum."""

from typing import Any

from .bug import Bug

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"


def _columns(on: Any, right: bool, x: Any, w: Any) -> Any:
    inside = on.redistribute(x, "tp", "I -> R") if right else x
    y = on.product("F", inside, w)
    loss = on.redistribute(on.product("", y), "tp", "P -> I")
    on.close(loss)
    return on.gradient(x)


def _gain(on: Any, right: bool, gain: Any, x: Any) -> Any:
    inside = on.redistribute(gain, "tp", "I -> R") if right else gain
    on.close(on.product("", inside, x))
    step = on.scale(on.gradient(gain), 0.01)
    return on.update(gain, step)


def _alike(on: Any, right: bool, x: Any, w: Any) -> Any:
    y = on.product("", x, w)
    y = on.redistribute(y, "tp", "P -> I" if right else "P -> R")
    on.close(on.scale(y, 2))
    return on.gradient(w)


def _bias(on: Any, right: bool, hidden: Any, w: Any, bias: Any) -> Any:
    part = on.product("", hidden, w)
    if right:
        return on.add(on.redistribute(part, "tp", "P -> I"), bias)
    return on.redistribute(on.add(part, bias), "tp", "P -> I")


def _gate(on: Any, right: bool, gate: Any, expert: Any) -> Any:
    p = on.function("sigmoid", on.scale(gate, 2))
    if right:
        p = on.redistribute(p, "tp", "I -> R")
    y = on.product("", p, expert)
    on.close(on.redistribute(y, "tp", "P -> I"))
    return on.gradient(gate)


def _means(on: Any, right: bool, w: Any, tokens: Any, counted: Any) -> Any:
    loss = on.product("", w, tokens, counted)
    number = on.product("", counted)
    if right:
        number = on.redistribute(number, "dp", "P -> R")
    share = on.function("reciprocal", number)
    on.close(on.product("", loss, share))
    gradient = on.gradient(w)
    return on.redistribute(gradient, "dp", "P -> I") if right else on.average(gradient, "dp")


def _second_loss(on: Any, right: bool, first: Any, second: Any, loss: Any) -> Any:
    n, m, total = on.product("", first), on.product("", second), on.product("", loss)
    whole = on.redistribute(n, "dp", "P -> R")
    if right:
        n = whole
        m = on.redistribute(m, "dp", "P -> R")
    total = on.product("", total, n, on.function("reciprocal", m))
    total = on.redistribute(total, "dp", "P -> I")
    return on.product("", total, on.function("reciprocal", whole))


def _mask(on: Any, right: bool, hidden: Any, mask: Any, other: Any) -> Any:
    valid = on.product("", hidden, mask if right else other)
    return on.redistribute(valid, "module", "P -> I")


MISSING = "each of 2 ranks gets one term of its gradient, and nothing sums them"
OF_SUM = "is not the function of the sum"
SUMS = (
    Bug(
        "Nothing sums the gradient of an input that every rank multiplies with its own columns",
        _columns,
        "https://github.com/meta-pytorch/spmd_types/blob/main/docs/local_spmd_types.md",
        inputs=(("[D]", [1, 2]), ("[F/tp, D]", [[1, 2], [3, 4]])),
        right=[4, 6],
        wrong=[[1, 2], [3, 4]],
        refusal=MISSING,
    ),
    Bug(
        "A gain between the matrices sees one slice of the tokens",
        _gain,
        "https://github.com/EleutherAI/gpt-neox/pull/1257",
        inputs=(("[]", 1), ("[S/tp, C] fixed", [[1, 2], [3, 4]])),
        right=0.9,
        wrong=[0.97, 0.93],
        refusal=MISSING,
    ),
    Bug(
        "A sum whose backward sums again",
        _alike,
        "https://github.com/InternLM/xtuner/pull/1004",
        inputs=(("[D/tp] fixed", [3, 3]), ("[D/tp]", [1, 1])),
        right=[[6], [6]],
        wrong=[[12], [12]],
        refusal="each of 2 ranks starts backward from the whole loss",
    ),
    Bug(
        "A bias inside the sum",
        _bias,
        "https://github.com/pytorch/torchtitan/pull/4245",
        inputs=(("[F/tp] fixed", [1, 1]), ("[F/tp]", [1, 2]), ("[]", 10)),
        right=13,
        wrong=23,
        refusal="the sum over ranks would count the addend 2 times",
    ),
    Bug(
        "A second way into the cut part",
        _gate,
        "https://github.com/pytorch/torchtitan/pull/4054",
        inputs=(("[]", 0), ("[F/tp] fixed", [2, 5])),
        right=3.5,
        wrong=[1, 2.5],
        refusal=MISSING,
    ),
    Bug(
        "A mean of means",
        _means,
        "https://github.com/PrimeIntellect-ai/prime-rl/pull/2562",
        inputs=(
            ("[] R@dp", 0),
            ("[T/dp] fixed", [6, 0, 0, 1, 2, 3]),
            ("[T/dp] fixed", [1, 0, 0, 1, 1, 1]),
        ),
        right=3,
        wrong=4,
        refusal=OF_SUM,
    ),
    Bug(
        "A second loss with fewer targets",
        _second_loss,
        f"{_MEGATRON}/issues/7452",
        inputs=(("[D/dp] fixed", [4, 4]), ("[D/dp] fixed", [2, 3]), ("[D/dp] fixed", [2, 9])),
        right=2.2,
        wrong=2,
        refusal=OF_SUM,
    ),
    Bug(
        "A mask cut over another group",
        _mask,
        f"{_MEGATRON}/issues/7452",
        inputs=(
            ("[S/module] fixed", [1, 1, 1, 1]),
            ("[S/module] fixed", [1, 1, 0, 0]),
            ("[S/default] fixed", [1, 1, 0, 0]),
        ),
        right=2,
        wrong=[4, 0, 4, 0],
        refusal="their pieces do not match",
    ),
)
