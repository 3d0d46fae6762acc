"""Layers that keep a state instead of keys and values, as plain data: sizes, parameters, FLOPs.

Each head's state is a matrix [key_size, value_size], and no part of it depends on the length of
the text. How it changes with a token is the rule:

    Gated DeltaNet         Yang et al. 2024 (https://arxiv.org/abs/2412.06464), section 3; the layer
                           of Qwen3-Next and Qwen3.5
    Kimi Delta Attention   Kimi Team 2025 (https://arxiv.org/abs/2510.26692), section 3: a decay for
                           each number of a key, from a narrow layer, as the gate of the output
    Mamba-2                Dao & Gu 2024 (https://arxiv.org/abs/2405.21060), sections 6 and 7: a
                           token adds to the state, and its step sets what it adds and what decays;
                           its B, C and x are keys, queries and values; the layer of Granite
                           4, Nemotron-H and Nemotron 3
"""

from dataclasses import dataclass
from math import prod

from shardlab.files.arguments import Count, checked

RULES = ("Gated DeltaNet", "Kimi Delta Attention", "Mamba-2")
CHUNK = 64  # tokens that kernels compute together: flash-linear-attention, and the paper on KDA


@dataclass(frozen=True, kw_only=True)
@checked
class Recurrent:
    """The layers of a model that keep states, and their sizes.

    Errors: ValueError for an unknown rule, for heads that do not share keys evenly, and for no
    layers or any that are not in order.
    """

    rule: str  # one of RULES
    layers: tuple[int, ...]  # their places among all layers, from 0
    num_heads: Count  # of values; each has a state
    key_heads: Count  # of queries and of keys, each of which serves as many heads of values
    key_size: Count  # numbers of one head's key, and of its query
    value_size: Count
    convolution: Count  # tokens, up to its own, from which a query, key or value is made
    chunk: Count = CHUNK  # tokens that are computed together

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ValueError(f"unknown rule={self.rule!r}; known: {', '.join(RULES)}")
        if self.num_heads % self.key_heads:
            raise ValueError(
                f"key_heads={self.key_heads} do not divide num_heads={self.num_heads}; "
                "use as many heads of values for each head of keys"
            )
        if not self.layers or list(self.layers) != sorted({*self.layers} - {-1}):
            raise ValueError(f"layers={self.layers} must be at least one place, in rising order")

    @property
    def corrects(self) -> bool:
        """Whether a token first takes out what its key reads: the delta rules do."""
        return self.rule != "Mamba-2"

    @property
    def keys(self) -> int:
        """The width of one token's keys, of all heads, and of its queries."""
        return self.key_heads * self.key_size

    @property
    def values(self) -> int:
        """The width of one token's values, of all heads, of its output and of the output's gate."""
        return self.num_heads * self.value_size

    @property
    def convolved(self) -> int:
        """The width of what passes the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def narrow(self) -> int:
        """The width of the narrow layers of decays and gates, 0 where they are computed directly.

        Each is as wide as one head's key.
        """
        return 2 * self.key_size if self.rule == "Kimi Delta Attention" else 0

    @property
    def decays(self) -> int:
        """Numbers by which one token's states decay: one for each head, or one for each key's."""
        return self.keys if self.narrow else self.num_heads

    def shapes(self, hidden_size: Count) -> dict[str, tuple[tuple[int, ...], int | None]]:
        """List the parameters of a layer: name -> shape, and the dimension of the heads.

        Matrices are [outputs, inputs]; None: no dimension belongs to heads.
        """
        strengths = self.num_heads  # of what a token writes; Mamba-2's steps also set decays
        gates = 0 if self.narrow else self.values + self.decays * self.corrects
        shapes: dict[str, tuple[tuple[int, ...], int | None]] = {
            "in.weight": ((self.convolved + strengths + gates, hidden_size), 0),
            "convolution": ((self.convolved, self.convolution), 0),
            "decay": ((self.num_heads + self.decays,), 0),
            "scale": ((self.value_size,), None),
            "out.weight": ((hidden_size, self.values), 1),
        }
        if not self.corrects:  # a weight of what passes a head's state by; a scale for each value
            shapes["convolution.bias"] = ((self.convolved,), 0)
            shapes["passing"] = ((self.num_heads,), 0)
            shapes["scale"] = ((self.values,), 0)
        if self.narrow:
            shapes["narrow.weight"] = ((self.narrow, hidden_size), None)
            shapes["wide.weight"] = ((self.decays + self.values, self.key_size), 0)
        return shapes

    def parameters(self, hidden_size: Count) -> int:
        """Count one layer's parameters."""
        return sum(prod(shape) for shape, _ in self.shapes(hidden_size).values())

    def matrices(self, hidden_size: Count) -> int:
        """Count one layer's parameters that multiply, without those of the convolution."""
        shapes = self.shapes(hidden_size)
        return sum(prod(shape) for name, (shape, _) in shapes.items() if name.endswith("weight"))

    def products(self) -> list[tuple[int, int, int]]:
        """List the products [m, k] x [k, n] of one head and one chunk of C tokens, as (m, k, n).

        K, Q [C, k] and V [C, v] are keys, queries and values, T [C, C] inverts a triangle.
        K K^T, Q K^T, T K, T V, then with the state S [k, v]: (T K) S, Q S, the rest's product with
        V, and K^T V. Of Mamba-2 only the last three; Q K^T is in `shared`. Sources: Yang et al.
        2024 (https://arxiv.org/abs/2406.06484), section 3.2, and the papers above.
        """
        chunk, k, v = self.chunk, self.key_size, self.value_size
        common = [(chunk, k, v), (chunk, chunk, v), (k, chunk, v)]
        scores = [(chunk, k, chunk)] * 2
        corrections = [*scores, (chunk, chunk, k), (chunk, chunk, v), (chunk, k, v)]
        return corrections * self.corrects + common

    def shared(self) -> list[tuple[int, int, int]]:
        """List the products of one head of keys and one chunk, which serve its heads of values."""
        return [] if self.corrects else [(self.chunk, self.key_size, self.chunk)]

    @property
    def flops(self) -> int:
        """FLOPs of one token's states in forward: 6kv + C(6k + 4v) + C^2/3 for each head.

        Products as in `products`, whole squares though a mask leaves half of some, and the
        inversion of a triangle by substitution; beside them the convolution. Of Mamba-2 it is
        4kv + 2Cv for each head and 2Ck for each head of keys.
        """
        head = _flops(self.products()) + self.corrects * (self.chunk**3 // 3)
        chunk = self.num_heads * head + self.key_heads * _flops(self.shared())
        return chunk // self.chunk + 2 * self.convolution * self.convolved


def _flops(products: list[tuple[int, int, int]]) -> int:
    return sum(2 * m * k * n for m, k, n in products)
