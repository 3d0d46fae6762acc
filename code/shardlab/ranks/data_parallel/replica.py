"""Plain data parallelism with the functions of `zero.Zero`, so that a trainer can hold either.

What ZeRO shards is whole here: parameters, gradients and optimizer states, on every rank.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab import comm

from . import averaging


class Replica:
    """Named parameters that every rank of a group holds whole, with their optimizer.

    optimizer: makes one from a list of parameters. Gradients add up until `zero_grad`; `reduce`
    averages them over ranks, once.
    """

    def __init__(
        self,
        named: Mapping[str, nn.Parameter],
        group: comm.Group,
        optimizer: Callable[[list[Tensor]], Optimizer],
    ) -> None:
        for parameter in named.values():
            parameter.data = parameter.data.contiguous()  # makes room for a hollow one
        self.named = named
        self.group = group
        self.reduced = False  # whether the gradients are averages already
        trainable: list[Tensor] = [p for p in named.values() if p.requires_grad]
        self.optimizer = optimizer(trainable)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing, for symmetry with `Zero.no_sync`: backward never communicates here."""
        yield

    def reduce(self) -> None:
        """Average the gradients, unless that is done; `clip` and `step` do so first.

        Every gradient is a message of its own. So if two groups average the same parameter beside
        different neighbours, as two stages with tied embeddings do, both get bitwise identical
        results.
        """
        if not self.reduced:
            for parameter in self.named.values():
                if parameter.grad is not None:
                    parameter.grad = averaging.mean(parameter.grad, self.group)
        self.reduced = True

    def nbytes(self) -> dict[str, int]:
        """Count the bytes held now, under the names of `Zero.nbytes`."""
        parameters = self.named.values()
        states = [x for each in self.optimizer.state.values() for x in each.values()]
        return {
            "parameters": sum(each.nbytes for each in parameters),
            "gradients": sum(each.grad.nbytes for each in parameters if each.grad is not None),
            "optimizer": sum(x.nbytes for x in states if isinstance(x, Tensor) and x.dim()),
        }

    def squared_norm(self, share: Callable[[str], float]) -> Tensor:
        """Return this rank's part of the sum of all squared gradients, in float64: [].

        Over the group the parts add up to the sum. share: the fraction that the parameter of a name
        counts for, where ranks of other groups hold it as well.
        """
        self.reduce()
        total = torch.zeros((), dtype=torch.float64, device=comm.device(self.group))
        for name, parameter in self.named.items():
            if parameter.grad is not None:
                norm = torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
                total += share(name) * norm**2
        return total / self.group.size()

    def clip(self, max_norm: float, norm: Tensor) -> Tensor:
        """Scale all gradients so that their norm, now `norm`, is at most `max_norm`; return it."""
        self.reduce()
        nn.utils.clip_grads_with_norm_(self.named.values(), max_norm, norm)
        return norm

    def step(self) -> None:
        """Step all parameters, on every rank."""
        self.reduce()
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.optimizer.zero_grad()
        self.reduced = False

    def full_state_dict(self) -> dict[str, Tensor]:
        """Copy the parameters, by name."""
        return {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def refresh(self) -> None:
        """Do nothing, for symmetry with `Zero.refresh`: no rank has copies that could be stale."""
