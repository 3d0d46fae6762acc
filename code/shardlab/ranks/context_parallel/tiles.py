"""Attention in tiles: some queries meet some keys, and their softmax is merged online.

Milakov and Gimelshein 2018 (https://arxiv.org/abs/1805.02867) merge a softmax online;
FlashAttention (Dao et al. 2022, https://arxiv.org/abs/2205.14135) does so tile by tile, and
computes the scores again in backward from the log-sum-exp of each query. Scores exist for one tile
at a time.

Every query must see a key of the first tile that it is in; then no log-sum-exp stays infinite. The
tiles of `shardlab.sharding.sequences` are so: theirs are the same tokens, or all keys stand before.

Shapes: B = batch, K = key/value heads, G = query heads for each of them, c = tokens of this rank,
n = tokens of a block, Q and J = queries and keys of a tile, e = numbers per head.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from shardlab.sharding.sequences import Tile


@dataclass(frozen=True, kw_only=True)
class Running:
    """The output of the tiles so far, and the log-sum-exp of their scores; both grow in place."""

    y: Tensor                                                         # [B, K, G, c, e]
    lse: Tensor                                                       # [B, K, G, c, 1]


def begin(q: Tensor) -> Running:
    """Start with no keys: [B, K, G, c, e]."""
    return Running(y=torch.zeros_like(q), lse=torch.full_like(q[..., :1], -torch.inf))


def attend(q: Tensor, block: Tensor, tiles: Iterable[Tile], so_far: Running) -> None:
    """Add what the keys and values of a block give: q [B, K, G, c, e], block [2, B, K, n, e].

    The queries are scaled already.
    """
    groups = q.shape[2]
    for tile in tiles:
        here, there = _slices(tile)
        k, v = block[..., there, :]                                   # [B, K, J, e]
        scores = _scores(q, k, tile)                                  # [B, K, G, Q, J]
        before = so_far.lse[..., here, :]                             # [B, K, G, Q, 1]
        lse = torch.logaddexp(before, scores.logsumexp(-1, keepdim=True))
        weights = (scores - lse).exp()
        more = (weights.flatten(2, 3) @ v).unflatten(2, (groups, -1))  # [B, K, G, Q, e]
        so_far.y[..., here, :].mul_((before - lse).exp()).add_(more)
        so_far.lse[..., here, :] = lse


@dataclass(frozen=True, kw_only=True)
class Backward:
    """What backward knows of a rank's queries, [B, K, G, c, ...]; `dq` grows in place."""

    q: Tensor
    lse: Tensor
    dy: Tensor
    delta: Tensor                                                     # dy * y, summed over E
    dq: Tensor


def differentiate(at: Backward, block: Tensor, tiles: Iterable[Tile]) -> Tensor:
    """Add to the gradient of the queries, and return that of a block: [2, B, K, n, e], partial."""
    groups = at.q.shape[2]
    gradient = torch.zeros_like(block)
    for tile in tiles:
        here, there = _slices(tile)
        k, v = block[..., there, :]                                   # [B, K, J, e]
        dk, dv = gradient[..., there, :]
        q = at.q[..., here, :].flatten(2, 3)                          # [B, K, G*Q, e]
        dy = at.dy[..., here, :].flatten(2, 3)                        # [B, K, G*Q, e]
        weights = (_scores(at.q, k, tile) - at.lse[..., here, :]).exp()
        dweights = (dy @ v.mT).unflatten(2, (groups, -1))             # [B, K, G, Q, J]
        dv += weights.flatten(2, 3).mT @ dy
        ds = (weights * (dweights - at.delta[..., here, :])).flatten(2, 3)
        at.dq[..., here, :] += (ds @ k).unflatten(2, (groups, -1))
        dk += ds.mT @ q
    return gradient


def _slices(tile: Tile) -> tuple[slice, slice]:
    """Return where the tile's queries and keys are among those of their ranks."""
    here = slice(tile.row, tile.row + len(tile.queries))
    there = slice(tile.column, tile.column + len(tile.keys))
    return here, there


def _scores(q: Tensor, k: Tensor, tile: Tile) -> Tensor:
    """Multiply queries and keys of a tile: [B, K, G, c, e] and [B, K, J, e] -> [B, K, G, Q, J]."""
    rows = q[..., _slices(tile)[0], :].flatten(2, 3)                  # [B, K, G*Q, e]
    scores: Tensor = (rows @ k.mT).unflatten(2, (q.shape[2], -1))             # [B, K, G, Q, J]
    if tile.masked:
        queries = _arange(tile.queries, q.device)[:, None]
        keys = _arange(tile.keys, q.device)
        scores = scores.masked_fill(keys > queries, -torch.inf)
    return scores


def _arange(places: range, device: torch.device) -> Tensor:
    """Return the places as a tensor."""
    return torch.arange(places.start, places.stop, device=device)
