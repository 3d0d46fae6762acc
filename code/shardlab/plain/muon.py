"""Muon, plainly: an optimizer that needs whole matrices, over ranks that hold pieces.

Jordan 2024, https://kellerjordan.github.io/posts/muon/, without Nesterov's momentum. Singular
values of a mean of gradients come near 1, and what a row becomes depends on all other rows.

                 momentum       whole to be orthogonalised by      sent, beside the gradients
    Redundant    whole          every rank: N times the work       nothing
    Gathered     rows: 1/N      every rank: N times the work       the momentum, 1 gather
    Owned        matrices: 1/N  its owner                          the parameters, 1 broadcast
    AllToAll     rows: 1/N      one rank, N matrices at a time     2/N of it, and the update

    model = Transformer(spec)                     # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    trained = [p for p in model.blocks.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.dim() == 2]  # AdamW has the others: left out here
    optimizer = muon.RedundantMuon(matrices, group)  # or Gathered, Owned, …
    for batch in batches:                         # [B, S + 1] tokens of all ranks
        mine = data_parallel.shard(batch, group)  # [B/N, S + 1], this rank's own
        share = len(mine) / len(batch)            # 1/N, if N divides B
        model.zero_grad()
        (share * model(mine[:, :-1], mine[:, 1:])).backward()
        optimizer.step()

N = ranks, which divides the rows of each matrix; B = samples of all ranks, S = sequence.
A `piece` is a rank's rows of a matrix: [rows/N, columns].
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from shardlab import comm

A, B, C = 3.4445, -4.7750, 2.0315  # of the polynomial that brings singular values near 1
RATE, DECAY = 0.02, 0.95


def orthogonalized(x: Tensor, rounds: int = 5) -> Tensor:
    """Bring the singular values of a matrix near 1, by products alone: shapes stay."""
    if x.shape[0] > x.shape[1]:
        return orthogonalized(x.mT, rounds).mT
    x = x / (x.norm() + 1e-7)                  # now no singular value is above 1
    for _ in range(rounds):
        gram = x @ x.mT                        # [rows, rows]
        x = A * x + (B * gram + C * gram @ gram) @ x
    return x


class Muon:
    """Matrices that are whole on every rank, and their momentum, which may be cut."""

    def __init__(self, matrices: list[Tensor], group: comm.Group):
        self.matrices, self.group = matrices, group
        self.momentum: dict[Tensor, Tensor] = {}

    def grow(self, p: Tensor, gradient: Tensor) -> Tensor:
        """Add a gradient, or a piece of it, to the momentum; return that."""
        old = self.momentum.get(p, 0)          # 0: the first step
        self.momentum[p] = DECAY * old + gradient
        return self.momentum[p]

    def change(self, p: Tensor, update: Tensor) -> None:
        """Take a step along an update: [rows, columns]."""
        p.data -= RATE * update

    def summed(self, p: Tensor) -> Tensor:
        """Sum a gradient over the ranks: [rows, columns]."""
        assert p.grad is not None
        return comm.all_reduce(p.grad, self.group)

    def piece(self, p: Tensor) -> Tensor:
        """Sum a gradient over the ranks, and keep this rank's rows: [rows/N, columns]."""
        assert p.grad is not None
        return comm.reduce_scatter(p.grad, self.group)


class RedundantMuon(Muon):
    """Every rank has all of the momentum, and does all the work."""

    def step(self) -> None:
        """Change the matrices by their gradients, of which each rank has a term."""
        for p in self.matrices:
            momentum = self.grow(p, self.summed(p))
            self.change(p, orthogonalized(momentum))


class GatheredMuon(Muon):
    """Momentum is cut by rows, and whole for a moment on every rank."""

    def step(self) -> None:
        """Change the matrices by their gradients, of which each rank has a term."""
        for p in self.matrices:
            piece = self.grow(p, self.piece(p))
            whole = comm.all_gather(piece, self.group)
            self.change(p, orthogonalized(whole))


class OwnedMuon(Muon):
    """Each matrix has an owner, who keeps its momentum and does its work."""

    def step(self) -> None:
        """Change the matrices by their gradients, of which each rank has a term."""
        owner = owners_of(self.matrices, self.group.size())
        mine = [p for p in self.matrices if owner[p] == self.group.rank()]
        sums = {}
        for p in self.matrices:
            sums[p] = self.summed(p)           # only its owner needs the sum
        for p in mine:                         # all owners at the same time
            momentum = self.grow(p, sums[p])
            self.change(p, orthogonalized(momentum))
        for p in self.matrices:
            p.data = comm.broadcast(p.data, self.group, owner[p])


class AllToAllMuon(Muon):
    """Momentum is cut by rows. Of N matrices each rank makes one whole, and its rows again."""

    def step(self) -> None:
        """Change the matrices by their gradients, of which each rank has a term."""
        size = self.group.size()
        for batch in alike(self.matrices, size):
            pieces = [self.grow(p, self.piece(p)) for p in batch]
            pieces += [torch.zeros_like(pieces[0])] * (size - len(pieces))
            x = torch.stack(pieces)            # [N, rows/N, columns]: of N matrices
            x = comm.all_to_all(x, self.group)  # all rows of one matrix
            whole = orthogonalized(x.flatten(0, 1))  # [rows, columns]
            x = whole.view_as(x)
            x = comm.all_to_all(x, self.group)  # rows of N matrices again
            for p, piece in zip(batch, x, strict=False):
                update = comm.all_gather(piece, self.group)
                self.change(p, update)


def owners_of(matrices: list[Tensor], ranks: int) -> dict[Tensor, int]:
    """Deal matrices to ranks, the largest first, each to the rank that has least."""
    load = [0] * ranks
    owner = {}
    for p in sorted(matrices, key=Tensor.numel, reverse=True):
        owner[p] = load.index(min(load))
        load[owner[p]] += p.numel()
    return owner


def alike(matrices: list[Tensor], count: int) -> Iterator[list[Tensor]]:
    """Yield up to `count` matrices of one shape at a time."""
    for shape in sorted({p.shape for p in matrices}):
        same = [p for p in matrices if p.shape == shape]
        for first in range(0, len(same), count):
            yield same[first : first + count]
