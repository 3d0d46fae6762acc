"""Context parallelism of a whole model: `parallelize` replaces its attention and its positions.

    context = parallelize(model, group)                # a ring, zig-zag
    replica = DataParallel(model, group)               # the ranks average their gradients
    for tokens, targets in batches:                    # [B, S], the same on every rank
        loss = replica(*context.shard(tokens, targets))
        loss.backward()

On a grid, ranks that follow each other exchange heads (Ulysses), and keys travel between groups of
such ranks, as in USP (Fang and Zhao 2024, https://arxiv.org/abs/2405.07719).

Shapes: B sequences of S tokens, c tokens of each on this rank; H heads, K key/value heads, e
numbers per head; N ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shardlab import comm
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import sequences
from shardlab.sharding.layout import divisors, listed
from shardlab.sharding.sequences import Runs, Tile

from .. import agreement, transformer
from ..mixture import mixtures
from ..transformer import Attention, Transformer
from . import heads, ring

TILE = 1024  # queries, and keys, of a tile at most: its scores are what attention holds besides


@dataclass(frozen=True, kw_only=True)
class ContextStrategy:
    """How queries come to see the keys of other ranks: by default in a zig-zag ring.

    Errors: ValueError for gathered keys in a grid.
    """

    ulysses: int = 1  # ranks that exchange heads; all for Ulysses alone, 1 for a ring alone
    gathered: bool = False  # every rank gathers all keys and values instead
    placement: str = "zig-zag"  # or "contiguous": see `shardlab.sharding.sequences`
    causal: bool = True  # whether a token sees only itself and those before it

    def __post_init__(self) -> None:
        if self.gathered and self.ulysses > 1:
            raise ValueError(
                f"keys are gathered or exchanged, not both: "
                f"use gathered=False or ulysses=1, not {self.ulysses}"
            )


RING = ContextStrategy()


class ContextParallel:
    """How the ranks of a group share sequences: `parallelize` makes it, `shard` deals a batch.

    places  what each rank holds of the present sequences, by rank
    mine    where this rank's tokens stand in them, [c]
    """

    def __init__(self, spec: TransformerSpec, group: comm.Group, strategy: ContextStrategy) -> None:
        self.spec = spec
        self.group = group
        self.strategy = strategy
        size, width = group.size(), strategy.ulysses
        if width < 1 or size % width:
            raise ValueError(
                f"cp={size} ranks do not split into groups of ulysses={width}; "
                f"use ulysses = {listed(divisors(size))}"
            )
        is_grid = 1 < width < size
        self.heads = comm.split(group, width) if is_grid else group  # ranks that exchange heads
        self.ring = comm.across(group, width) if is_grid else group  # ranks whose keys come by
        self.num_blocks = size // width  # that come by, this rank's own included
        self.ring_place, self.heads_place = divmod(group.rank(), width)

    def shard(
        self, *tensors: Tensor, documents: Sequence[int] | None = None
    ) -> tuple[Tensor, ...]:
        """Take this rank's tokens of a batch, and attend and count positions accordingly.

        tensors    [B, S], such as tokens and targets, the same on every rank -> [B, c]
        documents  tokens of each document in a sequence; None: one document

        What is set here must stay until backward has ended. Errors: ValueError for sequences that
        are shorter than the ranks or longer than the model's context, and for documents that do not
        cover them.
        """
        length = tensors[0].shape[1]
        self.spec.tokens(len(tensors[0]), length)
        self.length = length
        self.documents = sequences.documents(length, documents)
        self.places = sequences.place(length, self.group.size(), self.strategy.placement)
        self.mine = _places(self.places[self.group.rank()]).to(tensors[0].device)
        starts = [text.start for text in self.documents for _ in text]
        first = torch.tensor(starts, device=self.mine.device)
        self.positions = self.mine - first[self.mine]
        self.blocks, self.tiles = self.meet()
        return tuple(x[:, self.mine] for x in tensors)

    def locate(self, x: Tensor) -> Tensor:
        """Return the positions of this rank's tokens in their documents: [c]."""
        return self.positions.to(x.device)

    def weighted(self, loss: Tensor) -> Tensor:
        """Scale a mean over this rank's tokens, so that the ranks' mean is that of the sequence."""
        return loss * (len(self.mine) * self.group.size() / self.length)

    def line_up(self, x: Tensor) -> Tensor:
        """Join what ranks have of each token, in the order of sequences: [B, c, n] -> [B, S, n]."""
        lengths = [sequences.count(runs) for runs in self.places]
        rows = x.new_zeros(max(lengths), len(x), x.shape[-1])         # [longest, B, n]
        rows[: x.shape[1]] = x.movedim(1, 0)
        parts = comm.all_gather(rows[None], self.group)               # [N, longest, B, n]
        found = x.new_empty(len(x), self.length, x.shape[-1])
        for runs, part, length in zip(self.places, parts, lengths, strict=True):
            found[:, _places(runs).to(x.device)] = part[:length].movedim(0, 1)
        return found

    def pick(self, x: Tensor) -> Tensor:
        """Take this rank's tokens of whole sequences: [B, S, n] -> [B, c, n]."""
        return x[:, self.mine]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attend to the tokens of all ranks: q [B, H, c, e], k and v [B, K, c, e] -> like q."""
        by_turn = [sequences.count(runs) for runs in self.blocks]
        plan = ring.Round(group=self.ring, lengths=by_turn, tiles=self.tiles)
        if self.strategy.gathered:
            lengths = [sequences.count(runs) for runs in self.places]
            k, v = heads.Gather.apply(torch.stack([k, v]), self.group, lengths)
            return ring.attend(q, k, v, plan)
        if self.strategy.ulysses == 1:
            return ring.attend(q, k, v, plan)
        lengths = [sequences.count(runs) for runs in self.peers(self.ring_place)]
        times = sequences.copies(q.shape[1], k.shape[1], self.strategy.ulysses)
        kv = torch.cat([k, v]).repeat_interleave(times, dim=1)        # [2B, K*times, c, e]
        q = heads.ToHeads.apply(q, self.heads, lengths)
        k, v = heads.ToHeads.apply(kv, self.heads, lengths).chunk(2)
        y = ring.attend(q, k, v, plan)                                # [B, H/ulysses, tokens, e]
        whole: Tensor = heads.ToTokens.apply(y, self.heads, lengths)
        return whole

    def peers(self, place: int) -> list[Runs]:
        """List what each rank at a place of the ring holds: those exchange heads."""
        width = self.strategy.ulysses
        return self.places[place * width : (place + 1) * width]

    def meet(self) -> tuple[list[Runs], list[list[Tile]]]:
        """List what each block holds that comes by, and the tiles that it makes, by turn."""
        blocks = [_union(self.peers(place)) for place in range(self.num_blocks)]
        order = [blocks[self.ring_place - turn] for turn in range(self.num_blocks)]
        mine = order[0]
        if self.strategy.gathered:  # all keys in one block, in the order of ranks
            mine = self.places[self.group.rank()]
            order = [_union(self.places)]
        cut = partial(
            sequences.tiles, mine, texts=self.documents, causal=self.strategy.causal, largest=TILE
        )
        return order, [cut(keys) for keys in order]


def parallelize(
    model: Transformer, group: comm.Group, strategy: ContextStrategy = RING
) -> ContextParallel:
    """Let the ranks of a group share every sequence; all pass the same model, which is changed.

    Afterwards pass every batch through `shard`. The loss of the model is scaled so that its mean
    over ranks is the mean over all tokens: average gradients as in data parallelism.

    Errors: ValueError for ranks of Ulysses that do not divide the group or the heads, and for
    models that differ between ranks.
    """
    agreement.check_equal(model, group)
    check_heads(model, strategy.ulysses)
    context = ContextParallel(model.spec, group, strategy)
    for block in model.blocks:
        transformer.replace(block, attend=context.attend)
    transformer.replace(model, locate=context.locate)
    mean = model.loss
    model.loss = lambda logits, targets: context.weighted(mean(logits, targets))
    for mixture in mixtures(model):
        mixture.place(line_up=context.line_up, pick=context.pick, weigh=context.weighted)
    return context


def check_heads(model: Transformer, ulysses: int) -> None:
    """Check that ranks can exchange heads. Errors: ValueError where they do not divide them."""
    for module in model.modules():
        if isinstance(module, Attention):
            heads, kv_heads = (len(x.weight) // module.head_size for x in (module.q, module.k))
            sequences.copies(heads, kv_heads, ulysses)


def _union(places: Sequence[Runs]) -> Runs:
    """Return what some ranks hold together, in the order of ranks."""
    return tuple(run for runs in places for run in runs)


def _places(runs: Runs) -> Tensor:
    """Return the places of tokens in the sequence, run after run: [c]."""
    return torch.cat([torch.arange(run.start, run.stop) for run in runs])
