"""ZeRO, plainly: data parallelism in which every rank holds a piece of the states.

Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054. The engine: `ranks.zero`.

              optimizer's states   gradients               parameters
    ZeRO-1    1/N                  whole until the step    whole
    ZeRO-2    1/N                  whole for one layer     whole
    ZeRO-3    1/N                  whole for one layer     whole for one layer

    model = Transformer(spec)                     # different numbers on every rank
    data_parallel.copy_from_rank_0(model, group)  # the same numbers on every rank
    layers = [model.embedding, *model.blocks, nn.Sequential(model.norm, model.head)]
    states = zero.ZeRO1(layers, group, torch.optim.AdamW)  # or ZeRO2, ZeRO3
    for batch in batches:                         # [B, S + 1] tokens of all ranks
        mine = data_parallel.shard(batch, group)  # [B/N, S + 1], this rank's own
        share = len(mine) / len(batch)            # 1/N, if N divides B
        states.step(mine[:, :-1], mine[:, 1:], model.loss, share)

N = ranks, B = samples of all ranks, S = sequence, h = width between layers. Padded with
zeros, the P numbers of a parameter form N rows, [N, P/N]; row r is rank r's piece.
Whole: the same on every rank. Partial: a rank's term of a sum over ranks.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from shardlab import comm

Loss = Callable[..., Tensor]
MakeOptimizer = Callable[[list[Tensor]], torch.optim.Optimizer]


class Sharded:
    """Layers that compute one after another, and this rank's piece of each parameter."""

    def __init__(self, layers: list[nn.Module], group: comm.Group, make: MakeOptimizer):
        self.layers, self.group = layers, group
        self.parameters = list(nn.ModuleList(layers).parameters())
        self.shape: dict[Tensor, torch.Size] = {}
        self.piece: dict[Tensor, Tensor] = {}
        for p in self.parameters:
            row = rows(p.data, group)[group.rank()]
            self.piece[p] = row.clone()         # [P/N]
            self.shape[p] = p.shape
        self.optimizer = make(list(self.piece.values()))  # its states: [P/N], too

    def reduce_scatter(self, parameters: Iterable[Tensor]) -> None:
        """Sum gradients over the ranks; keep this rank's piece, and free the whole."""
        for p in parameters:
            if p.grad is None:                  # frozen, and so on every rank
                continue
            (new,) = comm.reduce_scatter(rows(p.grad, self.group), self.group)  # [P/N]
            piece = self.piece[p]
            if piece.grad is not None:          # of a tied p, used by another layer
                new = new + piece.grad
            piece.grad = new
            p.grad = None

    def update(self) -> None:
        """Let the optimizer change the pieces."""
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gather(self, parameters: Iterable[Tensor]) -> None:
        """Make parameters whole: P/N -> P."""
        for p in parameters:
            whole = comm.all_gather(self.piece[p][None], self.group)  # [N, P/N]
            shape = self.shape[p]
            whole = whole.flatten()[: shape.numel()]  # without the zeros
            p.data = whole.view(shape)

    def free(self, parameters: Iterable[Tensor]) -> None:
        """Forget whole parameters: P -> P/N, this rank's piece."""
        for p in parameters:
            p.data = p.new_empty(0)


class ZeRO1(Sharded):
    """The optimizer's states are divided."""

    def step(self, x: Tensor, targets: Tensor, loss: Loss, share: float) -> None:
        """Train on this rank's samples, a `share` of all."""
        for layer in self.layers:
            x = layer(x)                        # [B/N, S, h]
        (share * loss(x, targets)).backward()   # all gradients: [P], partial
        self.reduce_scatter(self.parameters)    # [P], partial -> [P/N]
        self.update()
        self.gather(self.parameters)            # [P/N] -> [P], whole


class ZeRO2(Sharded):
    """Gradients are divided, too: backward stops after each layer."""

    def step(self, x: Tensor, targets: Tensor, loss: Loss, share: float) -> None:
        """Train on this rank's samples, a `share` of all."""
        borders = []
        for layer in self.layers:
            y = layer(x)                        # [B/N, S, h]
            x = y.detach().requires_grad_()     # a border: backward stops here
            borders.append((y, x))
        (share * loss(x, targets)).backward()   # to the last border only
        for layer in reversed(self.layers):
            y, x = borders.pop()
            go_back(y, x.grad)                  # its gradients: [P], partial
            self.reduce_scatter(layer.parameters())  # [P], partial -> [P/N]
        self.update()
        self.gather(self.parameters)            # [P/N] -> [P], whole


class ZeRO3(Sharded):
    """Parameters are divided, too: each layer is gathered for its turns.

    Forward makes no graph, because a graph would keep parameters alive. Backward computes
    each layer once more, and must get the same: dropout would have to repeat its draws.
    """

    def step(self, x: Tensor, targets: Tensor, loss: Loss, share: float) -> None:
        """Train on this rank's samples, a `share` of all."""
        self.free(self.parameters)              # before the first step they are whole
        inputs = []
        for layer in self.layers:
            inputs.append(x)
            self.gather(layer.parameters())     # [P/N] -> [P], whole
            with torch.no_grad():
                y = layer(x)                    # [B/N, S, h]
            self.free(layer.parameters())       # [P], whole -> [P/N]
            x = y.detach().requires_grad_()     # a border: backward stops here
        (share * loss(x, targets)).backward()   # to the last border only
        for layer in reversed(self.layers):
            gradient = x.grad                   # [B/N, S, h], of this layer's output
            x = inputs.pop()
            self.gather(layer.parameters())     # [P/N] -> [P], whole
            go_back(layer(x), gradient)         # its gradients: [P], partial
            self.reduce_scatter(layer.parameters())  # [P], partial -> [P/N]
            self.free(layer.parameters())       # [P], whole -> [P/N]
        self.update()


def go_back(output: Tensor, gradient: Tensor | None) -> None:
    """Compute the gradients of one layer's parameters, and of its input."""
    if output.requires_grad:                    # unless the first layer is frozen
        output.backward(gradient)


def rows(x: Tensor, group: comm.Group) -> Tensor:
    """Flatten x, append zeros, and fold: [...] -> [N, P/N]."""
    zeros = x.new_zeros(-x.numel() % group.size())
    return torch.cat([x.flatten(), zeros]).view(group.size(), -1)
