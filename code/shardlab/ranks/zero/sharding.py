"""ZeRO: ranks that see different samples share the states that plain data parallelism keeps on all of them.

Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054). Each rank's optimizer steps on its own piece of the
parameters. Of stage 1 the optimizer's states are cut, of stage 2 the gradients, too, of stage 3 also the parameters.

    states = zero.shard(model, group, stage=3, optimizer=lambda pieces: torch.optim.AdamW(pieces, lr=1e-3))
    model(tokens, targets).backward()     # the model itself, on this rank's samples
    states.clip(1.0)
    states.step()
    states.zero_grad()
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import agreement, comm
from . import full, units
from .flat import Flat
from .gathering import Gathering, Unit
from .gradients import Gradients, Reducer

EPSILON = 1e-6  # beside the norm that clipping divides by, as in torch.nn.utils.clip_grad_norm_
OPTIMIZER, GRADIENTS, PARAMETERS = STAGES = (1, 2, 3)  # what each cuts, beside what those before it cut


def shard(
    module: nn.Module,
    group: comm.Group,
    *,
    stage: int,
    optimizer: Callable[[list[Tensor]], Optimizer],
    layers: Sequence[nn.Module] | None = None,
    precision: torch.dtype | None = None,
    gradients: torch.dtype | None = None,
) -> "Zero":
    """Share a module's states over the ranks of the group, in place. Every rank passes the same whole module.

    optimizer  makes one from a list of flat tensors: this rank's piece of each buffer. Any that treats numbers one by
               one (SGD, Adam, AdamW); one that looks at whole matrices (LAMB, Adafactor, Muon) would see pieces
    layers     modules that are gathered and averaged one by one, in the order in which they compute; None: the members
               of the module's lists (ModuleList, ModuleDict, Sequential). What is in none of them, or in several, is
               one unit more, and in stage 3 whole from forward to backward
    precision  what parameters are computed and sent in, such as torch.bfloat16; the pieces that the optimizer steps on
               keep their own dtype (what is frozen has none). None: the same
    gradients  what gradients are added up in over ranks and backwards; None: as `precision`

    All ranks begin with rank 0's numbers. Freeze parameters before.
    Errors: ValueError for an unknown stage, for modules that differ between ranks, for layers inside each other.
    """
    if stage not in STAGES:
        raise ValueError(f"ZeRO has the stages 1, 2 and 3, not {stage}; without any, use DataParallel")
    agreement.check(module, group)
    agreement.copy_from_first(list(module.buffers()), group)
    named = units.cut(module, units.listed(module) if layers is None else layers)
    parts = [
        Unit(part, [Flat(kind, group, precision=precision, cut=stage == PARAMETERS) for kind in units.sort(members)])
        for part, members in named
    ]
    return Zero(module, group, stage, parts, optimizer, gradients)


class Zero:
    """This rank's piece of the states of a module, and how to step it; made by `shard`.

    Gradients are averages over the ranks: see DataParallel for samples that do not divide. They add up until
    `zero_grad`. In stage 1 they stay whole with the parameters until the step; in stages 2 and 3 every backward
    averages and cuts them, buffer by buffer, and `grad` is None after it. Read parameters through `full_state_dict`:
    in stage 3 they are NaN but for the moments at which they compute.
    """

    def __init__(
        self,
        module: nn.Module,
        group: comm.Group,
        stage: int,
        parts: Sequence[Unit],
        optimizer: Callable[[list[Tensor]], Optimizer],
        dtype: torch.dtype | None,
    ):
        self.module, self.group, self.stage = module, group, stage
        self.flats = [flat for part in parts for flat in part.flats]
        self.gradients = [Gradients(flat, dtype) for flat in self.flats if flat.trainable]
        self.reducer = Reducer(self.gradients, listen=stage >= GRADIENTS)
        self.optimizer = optimizer([each.flat.master for each in self.gradients])
        self.gathering = Gathering(parts[-1], parts[:-1]) if stage == PARAMETERS else None
        if self.gathering:
            self.gathering.forget()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward adds to whole gradients on this rank and sends nothing; the step, or `reduce`, averages.

        Of many microbatches only the last need talk then, at the price of whole gradients (`grad` has them).
        """
        before, self.reducer.synchronize = self.reducer.synchronize, False
        try:
            yield
        finally:
            self.reducer.synchronize = before

    def reduce(self) -> None:
        """Average and cut the gradients that are whole still; `step`, `clip` and the norm do so first."""
        self.reducer.reduce()

    def squared_norm(self, share: Callable[[str], float] | None = None) -> Tensor:
        """This rank's part of the sum of all squared gradients; over the group it adds up to that of the module.

        share: how much of the parameter of that name counts, where ranks of other groups have it, too (1/tp of what
        every rank of tensor parallelism holds); None: all of it.
        """
        self.reduce()
        total = torch.zeros((), dtype=torch.float64, device=comm.device(self.group))
        for gradients in self.gradients:
            if gradients.average is not None:
                places = gradients.flat.held if share else [("", slice(None))]
                for name, place in places:
                    norm = torch.linalg.vector_norm(gradients.average[place], dtype=torch.float64)
                    total += (share(name) if share else 1) * norm**2
        return total

    def clip(self, max_norm: float, norm: Tensor | None = None) -> Tensor:
        """Scale all gradients so that their norm is at most `max_norm`; returns what it was, the same on every rank.

        norm: that over more groups than this one, from `squared_norm`; None: that of this group.
        """
        if norm is None:
            norm = comm.all_reduce(self.squared_norm(), self.group).sqrt()
        self.scale((max_norm / (norm + EPSILON)).clamp(max=1.0))
        return norm

    @torch.no_grad()
    def scale(self, factor: float | Tensor) -> None:
        """Multiply all gradients, such as by 1 over the factor of a loss in fp16."""
        self.reduce()
        for gradients in self.gradients:
            if gradients.average is not None:
                gradients.average.mul_(factor)

    @torch.no_grad()
    def step(self) -> None:
        """Step this rank's pieces, and let everyone have them: at once, or in stage 3 when they are needed."""
        self.reduce()
        for gradients in self.gradients:
            master, average = gradients.flat.master, gradients.average
            master.grad = None if average is None else average.to(master.dtype)
        self.optimizer.step()
        for gradients in self.gradients:
            gradients.flat.master.grad = None
        self._spread(self._trainable)

    def zero_grad(self) -> None:
        """Forget all gradients."""
        self.reducer.forget()

    def full_state_dict(self) -> dict[str, Any]:
        """The module's state dict as it would be on one process, from the pieces of all ranks; all ranks call it."""
        return full.parameters(self.module, self.flats)

    @torch.no_grad()
    def load_full_state_dict(self, state: dict[str, Any]) -> None:
        """Take this rank's pieces of the state dict of a whole module; every rank passes the same."""
        full.load_parameters(self.module, self.flats, state)
        self._spread(self.flats)

    @torch.no_grad()
    def refresh(self) -> None:
        """Let everyone have the masters as they are now, where others than `step` have changed them."""
        self._spread(self.flats)

    def full_optimizer_state(self) -> dict[str, dict[str, Any]]:
        """What the optimizer keeps of each parameter, whole: name -> key -> value; all ranks call it."""
        return full.optimizer_state(self.optimizer, self._trainable)

    @torch.no_grad()
    def load_full_optimizer_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Take this rank's pieces of such states, which may come from any number of ranks."""
        full.load_optimizer_state(self.optimizer, self._trainable, state)

    def nbytes(self) -> dict[str, int]:
        """Bytes held now, by the parts of a recipe in `costs`; not Adam's count of steps, one number for a buffer."""
        states = [value for flat in self._trainable for value in self.optimizer.state.get(flat.master, {}).values()]
        whole = [parameter.grad for flat in self._trainable for parameter in flat.parameters]
        tensors = {
            "parameters": [flat.piece if flat.cut else flat.whole for flat in self.flats],
            "gradients": [each for each in [*whole, *(g.average for g in self.gradients)] if each is not None],
            "optimizer": [value for value in states if isinstance(value, Tensor) and value.dim()]
            + [flat.master for flat in self._trainable if flat.master is not flat.piece],
        }
        return {part: sum(tensor.nbytes for tensor in held) for part, held in tensors.items()}

    @property
    def _trainable(self) -> list[Flat]:
        return [each.flat for each in self.gradients]

    def _spread(self, flats: Sequence[Flat]) -> None:
        for flat in flats:
            flat.update()
        for flat in flats:
            if not flat.cut:
                flat.ready()
