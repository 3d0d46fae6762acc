"""Steps: each closes a loss, sums gradients, updates parameters, and logs.

The reducer is part of the text, so a gradient that is left partial is refused where it is used.
"""

from typing import Any

from .method import step


@step(
    logits="[B/dp, S, V/tp]",
    targets="[B/dp, S, V/tp] fixed",
    counted="[B/dp, S] fixed",
)
def vocabulary_parallel_loss(on: Any, logits: Any, targets: Any, counted: Any) -> Any:
    """Compute the mean cross-entropy of logits whose words are cut; targets are one-hot."""
    largest = on.largest(on.detach(logits), "V")
    logits = on.add(logits, on.scale(largest, -1))
    total = on.product("B S", on.function("exp", logits))
    total = on.redistribute(total, "tp", "P -> I")
    chosen = on.product("B S", logits, targets)
    chosen = on.redistribute(chosen, "tp", "P -> I")
    losses = on.add(on.function("log", total), on.scale(chosen, -1))
    loss = _mean(on, losses, counted)
    return _logged(on, loss)


@step(
    x="[B/dp, h] fixed",
    counted="[B/dp] fixed",
    w="[h, f] R@dp",
)
def data_parallel_step(on: Any, x: Any, counted: Any, w: Any) -> Any:
    """Give each replica its samples; sum the gradients at the end of the step (2006.15704)."""
    loss = _loss(on, x, counted, w)
    gradient = on.gradient(w)
    gradient = on.redistribute(gradient, "dp", "P -> I")
    return on.update(w, gradient), _logged(on, loss)


@step(
    x="[B/dp, h] fixed",
    counted="[B/dp] fixed",
    w="[h, f] R@dp",
)
def zero_1(on: Any, x: Any, counted: Any, w: Any) -> Any:
    """Update a piece of each parameter (1910.02054).

    ZeRO-2 has the same lines; it sums each gradient during backward, as soon as it is there.
    """
    loss = _loss(on, x, counted, w)
    gradient = on.gradient(w)
    gradient = on.redistribute(gradient, "dp", "P -> S(h)")
    piece = on.redistribute(on.detach(w), "dp", "R -> S(h)")
    piece = on.update(piece, gradient)
    return on.redistribute(piece, "dp", "S(h) -> R"), _logged(on, loss)


@step(
    x="[B/dp, h] fixed",
    counted="[B/dp] fixed",
    w="[h/dp, f]",
)
def zero_3(on: Any, x: Any, counted: Any, w: Any) -> Any:
    """Keep a piece of each parameter; gather it in forward, and again in backward (2304.11277)."""
    whole = on.redistribute(w, "dp", "S(h) -> R", again=True)
    loss = _loss(on, x, counted, whole)
    gradient = on.gradient(w)
    return on.update(w, gradient), _logged(on, loss)


@step(
    x="[B/dp, S, h]",
    gain="[h] R@dp",
    up="[h, f/tp] R@dp",
)
def normalized_step(on: Any, x: Any, gain: Any, up: Any) -> Any:
    """Divide all gradients by their norm, as clipping does, and log it.

    A copied gradient counts once, and a gradient that is cut counts on each rank.
    """
    x = on.product("B S h", x, gain)
    x = on.redistribute(x, "tp", "I -> R")
    y = on.function("gelu", on.product("B S f", x, up))
    loss = on.product("", on.function("square", y))
    loss = on.redistribute(loss, "tp", "P -> I")
    on.close(loss)
    copied = on.redistribute(on.gradient(gain), "dp", "P -> I")
    cut = on.redistribute(on.gradient(up), "dp", "P -> I")
    once = on.product("", on.function("square", copied))
    once = on.redistribute(once, "tp", "I -> R")
    once = on.redistribute(once, "tp", "R -> P")
    squares = on.add(once, on.product("", on.function("square", cut)))
    squares = on.redistribute(squares, "tp", "P -> I")
    norm = on.function("sqrt", squares)
    factor = on.function("reciprocal", norm)
    gain = on.update(gain, on.product("h", copied, factor))
    up = on.update(up, on.product("h f", cut, factor))
    return gain, up, on.log(norm)


def _loss(on: Any, x: Any, counted: Any, w: Any) -> Any:
    """Compute and close the mean of squares over the samples that count."""
    y = on.function("square", on.product("B f", x, w))
    losses = on.product("B", y)
    return _mean(on, losses, counted)


def _mean(on: Any, losses: Any, counted: Any) -> Any:
    """Close the mean over what counts on all replicas: a count is a sum over ranks, too."""
    number = on.product("", counted)
    number = on.redistribute(number, "dp", "P -> R")
    share = on.function("reciprocal", number)
    return on.close(on.product("", losses, counted, share))


def _logged(on: Any, loss: Any) -> Any:
    """Log the loss of all replicas."""
    loss = on.redistribute(on.detach(loss), "dp", "P -> I")
    return on.log(loss)


STEPS = (
    vocabulary_parallel_loss,
    data_parallel_step,
    zero_1,
    zero_3,
    normalized_step,
)
