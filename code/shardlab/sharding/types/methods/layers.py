"""Layers: each returns an activation, and communicates where its text redistributes.

A parameter is R along axes over which the end of the step sums its gradient, and I along axes along
which the layer does. Heads, slots and groups are dims of their own, so that no dim is split.
"""

from typing import Any

from .method import layer


@layer(
    x="[B/dp, S, h]",
    up="[h, f/tp] R@dp",
    down="[f/tp, h] R@dp",
)
def tensor_parallel_mlp(on: Any, x: Any, up: Any, down: Any) -> Any:
    """Cut the columns of one matrix and the rows of the next (Megatron-LM, 1909.08053)."""
    x = on.redistribute(x, "tp", "I -> R")
    hidden = on.product("B S f", x, up)
    hidden = on.function("gelu", hidden)
    y = on.product("B S h", hidden, down)
    return on.redistribute(y, "tp", "P -> I")


@layer(
    x="[B/dp, S, h]",
    query="[h, H/tp, e] R@dp",
    key="[h, H/tp, e] R@dp",
    value="[h, H/tp, e] R@dp",
    out="[H/tp, e, h] R@dp",
)
def tensor_parallel_attention(on: Any, x: Any, query: Any, key: Any, value: Any, out: Any) -> Any:
    """Give each rank some heads; each head attends by itself."""
    x = on.redistribute(x, "tp", "I -> R")
    q = on.product("B H S e", x, query)
    k = on.product("B H S e", x, key)
    v = on.product("B H S e", x, value)
    y = _attend(on, q, k, v)
    y = on.product("B S h", y, out)
    return on.redistribute(y, "tp", "P -> I")


@layer(
    x="[B/dp, S/tp, h]",
    gain="[h] R@dp",
    up="[h, f/tp] R@dp",
    down="[f/tp, h] R@dp",
)
def sequence_parallel_mlp(on: Any, x: Any, gain: Any, up: Any, down: Any) -> Any:
    """Cut the sequence where tensor parallelism has copies (Korthikanti et al., 2205.05198)."""
    gain = on.redistribute(gain, "tp", "I -> R")
    x = on.function("normalize", x, "h")
    x = on.product("B S h", x, gain)
    x = on.redistribute(x, "tp", "S(S) -> R")
    hidden = on.product("B S f", x, up)
    hidden = on.function("gelu", hidden)
    y = on.product("B S h", hidden, down)
    return on.redistribute(y, "tp", "P -> S(S)")


@layer(
    table="[V/tp, h] R@dp",
    tokens="[B/dp, S] fixed",
)
def vocabulary_parallel_embedding(on: Any, table: Any, tokens: Any) -> Any:
    """Look up words in pieces of the table: zeros for words of other ranks."""
    rows = on.look_up(table, tokens)
    return on.redistribute(rows, "tp", "P -> I")


@layer(
    q="[B, H, S/cp, e]",
    k="[B, H, S/cp, e]",
    v="[B, H, S/cp, e]",
)
def gathered_keys(on: Any, q: Any, k: Any, v: Any) -> Any:
    """Let the queries of a part of the sequence attend to all keys (Llama 3, 2407.21783)."""
    k = on.redistribute(k, "cp", "S(S) -> R")
    v = on.redistribute(v, "cp", "S(S) -> R")
    return _attend(on, q, k, v)


@layer(
    q="[B, H, S/cp, e]",
    k="[B, H, S/cp, e]",
    v="[B, H, S/cp, e]",
)
def ulysses(on: Any, q: Any, k: Any, v: Any) -> Any:
    """Exchange parts of the sequence for some of the heads, and back (2309.14509)."""
    q = on.redistribute(q, "cp", "S(S) -> S(H)")
    k = on.redistribute(k, "cp", "S(S) -> S(H)")
    v = on.redistribute(v, "cp", "S(S) -> S(H)")
    y = _attend(on, q, k, v)
    return on.redistribute(y, "cp", "S(H) -> S(S)")


@layer(
    q="[B, H, S/cp, e]",
    k="[B, H, S/cp, e]",
    v="[B, H, S/cp, e]",
)
def ring_attention(on: Any, q: Any, k: Any, v: Any) -> Any:
    """Let keys and values go round, and correct the softmax with each block (2310.01889)."""
    return on.ring("cp", q, k, v)


@layer(
    x="[G/ep, T, h]",
    router="[h, E] R@ep",
    places="[G/ep, T, E, C] fixed",
    up="[E/ep, h, f]",
    down="[E/ep, f, h]",
)
def expert_parallel(on: Any, x: Any, router: Any, places: Any, up: Any, down: Any) -> Any:
    """Send tokens to slots of their experts, and the results home (GShard, 2006.16668).

    G groups of T tokens, one or more on a rank; `places` is 1 where a token has one of the C slots
    that each expert keeps for its group.
    """
    scores = on.product("G T E", x, router)
    scores = on.function("softmax", scores, "E")
    slots = on.product("G E C h", x, places)
    slots = on.redistribute(slots, "ep", "S(G) -> S(E)")
    hidden = on.product("G E C f", slots, up)
    hidden = on.function("gelu", hidden)
    slots = on.product("G E C h", hidden, down)
    slots = on.redistribute(slots, "ep", "S(E) -> S(G)")
    return on.product("G T h", slots, places, scores)


def _attend(on: Any, q: Any, k: Any, v: Any) -> Any:
    """Weigh values by the softmax of scores, along the positions T of the keys."""
    k = on.rename(k, "S", "T")
    v = on.rename(v, "S", "T")
    scores = on.product("B H S T", q, k)
    weights = on.function("softmax", scores, "T")
    return on.product("B H S e", weights, v)


LAYERS = (
    tensor_parallel_mlp,
    tensor_parallel_attention,
    sequence_parallel_mlp,
    vocabulary_parallel_embedding,
    gathered_keys,
    ulysses,
    ring_attention,
    expert_parallel,
)
