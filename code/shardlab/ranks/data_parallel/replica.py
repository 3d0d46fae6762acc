"""The states of replicas that keep all of them: what ZeRO cuts, before it is cut, under the same verbs.

Plain data parallelism, of `averaging`, for those who compose methods: `zero.Zero` has the same functions.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import comm
from . import averaging


class Replica:
    """Named parameters that all ranks of a group keep, whole, with their optimizer's states.

    optimizer: makes one from a list of parameters. Gradients add up until `zero_grad`, and are averaged over ranks
    once, by `reduce`.
    """

    def __init__(
        self, named: Mapping[str, nn.Parameter], group: comm.Group, optimizer: Callable[[list[Tensor]], Optimizer]
    ) -> None:
        self.named, self.group, self.reduced = named, group, False
        self.optimizer = optimizer([parameter for parameter in named.values() if parameter.requires_grad])

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward sends nothing: nor does it outside."""
        yield

    def reduce(self) -> None:
        """Average the gradients; the functions below do so first.

        One message for each: so two groups that sum the same parameter, beside others, have it equal to the last bit.
        """
        if not self.reduced:
            averaging.average_gradients(self.named.values(), self.group)
        self.reduced = True

    def squared_norm(self, share: Callable[[str], float]) -> Tensor:
        """This rank's part of the sum of all squared gradients; over the group it adds up to the whole.

        share: how much of the parameter of that name counts, where ranks of other groups have it, too.
        """
        self.reduce()
        total = torch.zeros((), dtype=torch.float64, device=comm.device(self.group))
        for name, parameter in self.named.items():
            if parameter.grad is not None:
                total += share(name) * torch.linalg.vector_norm(parameter.grad, dtype=torch.float64) ** 2
        return total / self.group.size()

    def clip(self, max_norm: float, norm: Tensor) -> None:
        """Scale all gradients so that their norm is at most `max_norm`; norm: what it is, over all ranks there are."""
        self.reduce()
        nn.utils.clip_grads_with_norm_(self.named.values(), max_norm, norm)

    def step(self) -> None:
        """Step everything, on every rank."""
        self.reduce()
        self.optimizer.step()

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.optimizer.zero_grad()
        self.reduced = False

    def full_state_dict(self) -> dict[str, Tensor]:
        """The parameters by name; copies."""
        return {name: parameter.detach().clone() for name, parameter in self.named.items()}

    def refresh(self) -> None:
        """Somebody has changed the parameters, on all ranks: nobody else has copies of them."""
