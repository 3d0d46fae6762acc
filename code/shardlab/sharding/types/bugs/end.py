"""Norms, factors, statistics, updates, seeds, order, lengths, and numbers that are logged."""

from typing import Any

from .bug import Bug
from .sums import MISSING, OF_SUM

_MEGATRON = "https://github.com/NVIDIA/Megatron-LM"
_PARITY = "parity: ranks, played or real, and one process with the whole data differ"


def _norm(on: Any, right: bool, cut: Any, whole: Any) -> Any:
    cut = on.product("", on.function("square", cut))
    whole = on.function("square", whole)
    whole = _once(on, whole)
    if not right:
        cut = on.redistribute(cut, "tp", "R -> P")
    return _root(on, cut, whole)


def _copies(on: Any, right: bool, cut: Any, whole: Any) -> Any:
    cut = on.product("", on.function("square", cut))
    whole = on.function("square", whole)
    if right:
        whole = _once(on, whole)
    return _root(on, cut, whole)


def _once(on: Any, x: Any) -> Any:
    x = on.redistribute(x, "tp", "I -> R")
    return on.redistribute(x, "tp", "R -> P")


def _root(on: Any, cut: Any, whole: Any) -> Any:
    squares = on.redistribute(on.add(cut, whole), "tp", "P -> I")
    return on.log(on.function("sqrt", squares))


def _balance(on: Any, right: bool, aux: Any) -> Any:
    tokens = 4 if right else 4 / on.mesh["tp"]
    aux = on.scale(on.product("", aux), tokens)
    return on.scale(on.redistribute(aux, "tp", "P -> I"), 1 / 4)


def _load(on: Any, right: bool, load: Any) -> Any:
    load = on.product("E", load)
    if right:
        load = on.redistribute(load, "tp", "P -> I")
    mean = on.scale(on.product("", load), 1 / 2)
    above = on.add(on.scale(load, -1), mean)
    return on.scale(on.function("sign", above), 0.001)


def _relu(on: Any, right: bool, x: Any) -> Any:
    part = on.product("", x)
    if right:
        return on.function("relu", on.redistribute(part, "tp", "P -> I"))
    return on.redistribute(on.function("relu", part), "tp", "P -> I")


def _orthogonal(on: Any, right: bool, gradient: Any) -> Any:
    if right:
        gradient = on.redistribute(gradient, "tp", "S(M) -> I")
    update = on.function("orthogonalize", gradient, "M", "C")
    return on.redistribute(update, "tp", "I -> S(M)") if right else update


def _copy(on: Any, right: bool, w: Any, terms: Any) -> Any:
    gradient = on.product("C", terms)
    summed = on.redistribute(gradient, "tp", "P -> I")
    return on.update(w, on.scale(summed if right else gradient, -1))


def _dropout(on: Any, right: bool, x: Any, kept: Any) -> Any:
    return on.product("T", x, kept)


def _fused(on: Any, right: bool, q: Any, k: Any, v: Any) -> Any:
    return on.product("H", q, k, v)


def _lengths(on: Any, right: bool, losses: Any) -> Any:
    losses = on.redistribute(on.product("L", losses), "pp", "P -> I")
    return on.product("", losses)


def _rows(on: Any, right: bool, row: Any, uses: Any) -> Any:
    rows = on.redistribute(row, "cp", "S(T) -> R" if right else "S(T) -> I")
    on.close(on.product("", rows, uses))
    return on.gradient(row)


def _metric(on: Any, right: bool, logprobs: Any) -> Any:
    whole = on.redistribute(logprobs, "cp", "S(T) -> I")
    loss = on.product("", whole)
    return on.log(loss if right else on.redistribute(loss, "cp", "P -> I"))


KEPT = [0, 0, 1, 0, 0, 0, 1, 1], [1, 1, 1, 1, 0, 1, 1, 0]  # of seeds 0 and 1: 3 of 8 agree
END = (
    Bug(
        "A cut parameter counted on one rank",
        _norm,
        f"{_MEGATRON}/issues/7452",
        inputs=(("[H/tp] fixed", [3, 4]), ("[] fixed", 12)),
        right=13,
        wrong=12.3693,
        refusal="R -> P starts at R, but each rank has one of 2 terms",
    ),
    Bug(
        "A whole parameter counted on every rank",
        _copies,
        "https://github.com/ROCm/TransformerEngine/pull/715",
        inputs=(("[H/tp] fixed", [3, 4]), ("[] fixed", 12)),
        right=13,
        wrong=17.6918,
        refusal="the sum over ranks would count the addend 2 times",
    ),
    Bug(
        "A balance loss that shrinks with tp",
        _balance,
        f"{_MEGATRON}/pull/5047",
        inputs=(("[T/tp]", [0.5, 1.5]),),
        right=2,
        wrong=1,
        net=_PARITY,
    ),
    Bug(
        "The load of one slice",
        _load,
        "https://github.com/pytorch/torchtitan/pull/4154",
        inputs=(("[S/tp, E] fixed", [[3, 1], [1, 3]]),),
        right=[0, 0],
        wrong=[[-0.001, 0.001], [0.001, -0.001]],
        refusal=OF_SUM,
    ),
    Bug(
        "A function of a partial sum",
        _relu,
        "https://github.com/tile-ai/TileFoundry/pull/12",
        inputs=(("[F/tp]", [-3, 5]),),
        right=2,
        wrong=5,
        refusal=OF_SUM,
    ),
    Bug(
        "An update computed from a shard",
        _orthogonal,
        "https://github.com/deepspeedai/DeepSpeed/issues/8437",
        inputs=(("[M/tp, C] fixed", [[3, 0], [4, 5]]),),
        right=[[[0.8944, -0.4472]], [[0.4472, 0.8944]]],
        wrong=[[[1, 0]], [[0.6247, 0.7809]]],
        refusal="each rank would see a piece of 2",
    ),
    Bug(
        "The sum of a copy",
        _copy,
        "https://github.com/NovaSky-AI/SkyRL/pull/1886",
        inputs=(("[C]", [0, 0]), ("[S/tp, C] fixed", [[1, 3], [2, 6]])),
        right=[3, 9],
        wrong=[[1, 3], [2, 6]],
        refusal="each rank would step by one of 2 terms",
    ),
    Bug(
        "One seed for two slices",
        _dropout,
        "https://github.com/NVIDIA/TransformerEngine/pull/1272",
        inputs=(("[T/tp]", [1] * 16), ("[T/tp] fixed", [*KEPT[0], *KEPT[1]])),
        wrong_inputs=(("[T/tp]", [1] * 16), ("[T/tp] fixed", [*KEPT[0], *KEPT[0]])),
        right=KEPT,
        wrong=[KEPT[0], KEPT[0]],
        net=_PARITY,
    ),
    Bug(
        "Rows of a fused matrix",
        _fused,
        f"{_MEGATRON}/pull/1989",
        inputs=(("[H/tp]", [1, 2]), ("[H/tp]", [3, 4]), ("[H/tp]", [5, 6])),
        wrong_inputs=(("[H/tp]", [1, 4]), ("[H/tp]", [2, 5]), ("[H/tp]", [3, 6])),
        right=[[15], [48]],
        wrong=[[6], [120]],
        net=_PARITY,
    ),
    Bug(
        "Lengths that differ",
        _lengths,
        f"{_MEGATRON}/pull/3401",
        inputs=(("[K/pp, L] fixed", [[1, 1, 1], [1, 1, 1]]),),
        right=6,
        wrong=None,
        net="real ranks: the launcher compares calls and names the two that differ",
    ),
    Bug(
        "Rows that other ranks use",
        _rows,
        "https://github.com/NVIDIA-NeMo/Megatron-Bridge/pull/4784",
        inputs=(("[T/cp]", [1, 2]), ("[U/cp, T] fixed", [[1, 10], [100, 1000]])),
        right=[[101], [1010]],
        wrong=[[1], [1000]],
        refusal=MISSING,
    ),
    Bug(
        "A sum over equal copies",
        _metric,
        "https://github.com/NovaSky-AI/SkyRL/pull/1420",
        inputs=(("[T/cp] fixed", [1, 2, 3, 4]),),
        right=10,
        wrong=20,
        refusal="P -> I starts at P, but each rank has the whole of it already",
    ),
)
