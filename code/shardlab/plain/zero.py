"""ZeRO, plainly: data parallelism whose ranks divide the states, and copy nothing.

Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054. The engine: `ranks.zero`.

               optimizer's states   gradients               parameters
    stage 1    1/N                  whole until the step    whole
    stage 2    1/N                  whole for one layer     whole
    stage 3    1/N                  whole for one layer     whole for one layer

    model = Transformer(spec)                   # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    layers = [model.embedding, *model.blocks, nn.Sequential(model.norm, model.head)]
    states = zero.Sharded(layers, group, stage, torch.optim.AdamW)
    for batch in batches:                       # [B, S + 1] tokens of all ranks
        mine = batch.tensor_split(group.size())[group.rank()]  # [B/N, S + 1]
        share = len(mine) / len(batch)          # 1/N, if N divides B
        states.step(mine[:, :-1], mine[:, 1:], model.loss, share)

N = ranks, B = samples of all ranks, S = sequence, D = width between layers. The P
numbers of a parameter, filled up with zeros, are N rows, [N, P/N]; row r is rank
r's piece. "Partial": one rank's part of a sum over ranks.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from shardlab import comm

Make = Callable[[list[Tensor]], torch.optim.Optimizer]


class Sharded:
    """The states of layers that compute one after another, in N pieces."""

    def __init__(self, layers: list[nn.Module], group: comm.Group, stage: int, make: Make):
        if stage not in (1, 2, 3):
            raise ValueError(f"ZeRO has no stage {stage}; use 1, 2 or 3, or `data_parallel`")
        self.layers, self.group, self.stage = layers, group, stage
        self.whole = {p: rows(p.data, group) for p in nn.ModuleList(layers).parameters()}
        self.piece = {p: x[group.rank()].clone() for p, x in self.whole.items()}
        self.optimizer = make(list(self.piece.values()))  # states: [P/N] too
        self.gather(self.piece)
        self.free(self.piece if stage >= 3 else [])

    def step(self, x: Tensor, targets: Tensor, loss: Callable[..., Tensor], share: float) -> None:
        """Train on this rank's samples, a `share` of all."""
        xs, ys = [x], list[Tensor]()
        for layer in self.layers:
            if self.stage >= 3:
                self.gather(layer.parameters())  # P/N -> P
            ys.append(layer(xs[-1]))            # [B/N, S, D]
            if self.stage >= 3:
                self.free(layer.parameters())   # P -> P/N
            xs.append(ys[-1].detach().requires_grad_())  # [B/N, S, D]; a border
        (share * loss(xs[-1], targets)).backward()  # grad of the last x: partial
        for layer in reversed(self.layers):
            if self.stage >= 3:
                self.gather(layer.parameters())  # P/N -> P, for a second time
            y, gradient = ys.pop(), xs.pop().grad  # [B/N, S, D]
            if y.requires_grad:                 # not if all up to y is frozen
                y.backward(gradient)            # grads of p and of x: partial
            if self.stage >= 2:
                self.cut_gradients(layer.parameters())  # P -> P/N
            if self.stage >= 3:
                self.free(layer.parameters())   # P -> P/N
        self.cut_gradients(self.piece)          # in stage 1 all of them: P -> P/N
        self.optimizer.step()                   # P/N
        self.optimizer.zero_grad()
        self.gather(self.piece if self.stage < 3 else [])  # P/N -> P

    def cut_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum gradients over the ranks; keep this rank's piece, free the whole."""
        for p in parameters:
            if p.grad is not None:
                (new,) = comm.reduce_scatter(rows(p.grad, self.group), self.group)  # sums
                old = self.piece[p].grad        # of a tied p, in another layer
                self.piece[p].grad = new if old is None else old + new  # [P/N]
                p.grad = None

    def gather(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make parameters whole."""
        for p in parameters:
            whole = self.whole[p]
            whole.untyped_storage().resize_(whole.nbytes)  # memory again
            whole.copy_(comm.all_gather(self.piece[p][None], self.group))
            p.data = whole.flatten()[: p.numel()].view(p.shape)

    def free(self, parameters: Iterable[nn.Parameter]) -> None:
        """Keep this rank's pieces, until `gather` fills the same memory again."""
        for p in parameters:
            p.data = p.new_full((), torch.nan).expand(p.shape)  # if read: NaN
            self.whole[p].untyped_storage().resize_(0)  # autograd's views too


def rows(x: Tensor, group: comm.Group) -> Tensor:
    """Flatten x, append zeros, and fold: [...] -> [N, P/N]."""
    zeros = x.new_zeros(-x.numel() % group.size())
    return torch.cat([x.flatten(), zeros]).view(group.size(), -1)
