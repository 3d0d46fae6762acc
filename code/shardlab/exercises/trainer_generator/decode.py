"""Exercise: read tokens into a cache of keys and values on several ranks, and draw the next."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from shardlab import comm

from .. import evidence, tensors
from ..checker import Case, Exercise

VOCABULARY, WIDTH, HEADS, KEPT, SIZE, LAYERS = 7, 6, 8, 4, 2, 2  # V, h, H, K, e
ROWS, ROOM, SEED = 3, 6, 5  # S = ROOM
OUTPUTS = ("log_p", "tokens")


class DecodeCall(NamedTuple):
    """One call of the function: texts, the rows that they are in, and the tokens that it reads."""

    texts: tuple[int, ...]
    rows: tuple[int, ...]
    starts: tuple[int, ...]  # tokens of each text that are in the cache
    length: int = 1  # tokens that it reads of each


class CutModel:
    """One rank's heads of a model of attention layers. N = ranks, B texts of n tokens."""

    def __init__(self, place: int = 0, group: comm.Group | None = None) -> None:
        ranks = group.size() if group else 1

        def weight(seed: int, *shape: int) -> Tensor:
            return evidence.whole_numbers(seed, *shape) / 8 - 0.375

        sizes = {"q": HEADS, "k": KEPT, "v": KEPT, "out": HEADS}
        self._group = group
        self._tokens, self._places = weight(1, VOCABULARY, WIDTH), weight(2, ROOM, WIDTH)
        self._layers = [
            {
                name: weight(9 * layer + n, heads * SIZE, WIDTH).chunk(ranks)[place]
                for n, (name, heads) in enumerate(sizes.items(), 3)
            }
            for layer in range(LAYERS)
        ]

    def embed(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Embed tokens that stand at these positions, both [B, n]: [B, n, h]."""
        return self._tokens[tokens] + self._places[positions]

    def project(self, layer: int, x: Tensor) -> list[Tensor]:
        """Return queries, keys and values: [B, H/N, n, e], and twice [B, K/N, n, e]."""
        products = [x @ self._layers[layer][name].mT for name in "qkv"]
        return [y.unflatten(2, (-1, SIZE)).transpose(1, 2) for y in products]

    def close(self, layer: int, x: Tensor, y: Tensor) -> Tensor:
        """Add what all ranks' heads returned to x: [B, n, h], y: [B, H/N, n, e] -> [B, n, h]."""
        y = y.transpose(1, 2).flatten(2) @ self._layers[layer]["out"]
        return x + (comm.all_reduce(y, self._group) if self._group else y)

    def log_p(self, x: Tensor) -> Tensor:
        """Return the log-probabilities of the next token: [B, h] -> [B, V]."""
        return (x @ self._tokens.mT).log_softmax(-1)

    def draw(self, log_p: Tensor, seed: int) -> Tensor:
        """Draw a token of each text: [B, V] -> [B]."""
        points = torch.rand(len(log_p), 1, generator=torch.Generator().manual_seed(seed))
        return (log_p.exp().cumsum(-1) < points).sum(-1).clamp(max=VOCABULARY - 1)


def text(number: int) -> Tensor:
    """Make the tokens of a text: [S]."""
    return evidence.whole_numbers(number, ROOM, below=VOCABULARY).long()


def call(
    function: Callable[..., Any], _: Mapping[str, Tensor], group: comm.Group, case: Case, rank: int
) -> Any:
    """Call the function as often as the case says, and join what it returns."""
    model, shape, found = CutModel(rank, group), (ROWS, KEPT // group.size(), ROOM, SIZE), []
    caches = [(torch.zeros(shape).double(), torch.zeros(shape).double()) for _ in range(LAYERS)]
    for n, (texts, rows, starts, length) in enumerate(case.given):
        tokens = torch.stack([text(t)[s : s + length] for t, s in zip(texts, starts, strict=True)])
        places = torch.tensor(rows), torch.tensor(starts)
        found.append(function(model, caches, tokens, *places, SEED + n, group))
    try:
        log_p, drawn = zip(*found, strict=True)
        return torch.cat(log_p), torch.cat(drawn)
    except (TypeError, ValueError, RuntimeError):
        return found[0]


@cache
def alone(calls: tuple[DecodeCall, ...]) -> tuple[Tensor, Tensor]:
    """Read each text from its beginning, in one process without a cache: log p and tokens."""
    model, found, drawn = CutModel(), [], []
    for n, (texts, _, starts, length) in enumerate(calls):
        for number, start in zip(texts, starts, strict=True):
            end = start + length
            x = model.embed(text(number)[None, :end], torch.arange(end)[None])
            for layer in range(LAYERS):
                q, k, v = model.project(layer, x)
                y = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                x = model.close(layer, x, y)
            found.append(model.log_p(x[:, -1]))
        drawn.append(model.draw(torch.cat(found[-len(texts) :]), SEED + n))
    return torch.cat(found), torch.cat(drawn)


def reference(case: Case, rank: int) -> evidence.Named:
    """Return what every rank has to return."""
    return dict(zip(OUTPUTS, alone(case.given), strict=True))


def _given(case: Case) -> str:
    return "; ".join(
        f"texts {c.texts} in rows {c.rows}, {c.length} tokens from {c.starts}" for c in case.given
    )


PROMPT, ANSWER = DecodeCall((0,), (1,), (0,), 3), DecodeCall((0,), (1,), (3,))
CALLS = {
    "a prompt and a token": (PROMPT, ANSWER),
    "a prompt in two parts": (DecodeCall((0,), (1,), (0,), 2), DecodeCall((0,), (1,), (2,), 3)),
    "texts of unequal lengths": (
        PROMPT,
        DecodeCall((1,), (0,), (0,), 1),
        DecodeCall((0, 1), (1, 0), (3, 1), 2),
    ),
    "a text leaves and another enters": (
        PROMPT,
        ANSWER,
        DecodeCall((2,), (1,), (0,), 2),
        DecodeCall((2,), (1,), (2,)),
    ),
}
TENSORS = tensors.Comparison(
    inputs=lambda case, rank: {}, reference=reference, outputs=OUTPUTS, call=call, given=_given
)
EXERCISE = Exercise(
    name="trainer_generator.decode",
    compare="shardlab.plain.generator.Cache.attend",
    points=4,
    cases=[
        Case(world_size=ranks, title=title, given=calls)
        for ranks in (1, 2, 4)
        for title, calls in CALLS.items()
    ],
    attempt=TENSORS.attempt,
    properties={
        "log p is that of the whole model without a cache": TENSORS.has("log_p"),
        "every rank draws the same tokens": TENSORS.has("tokens"),
    },
)
