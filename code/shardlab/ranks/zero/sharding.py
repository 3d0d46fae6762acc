"""ZeRO: ranks share the states that plain data parallelism keeps on all of them.

Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054). Each rank's optimizer steps on its own
piece of the parameters. Stage 1 shards the optimizer's states, stage 2 the gradients as well, stage
3 also the parameters.

    adamw = lambda pieces: torch.optim.AdamW(pieces, lr=1e-3)
    states = zero.shard(model, group, stage=3, optimizer=adamw)
    model(tokens, targets).backward()     # the model itself, on this rank's samples
    states.clip(1.0)
    states.step()
    states.zero_grad()
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from shardlab import comm

from .. import agreement
from . import full, units
from .flat import Flat
from .gathering import Gathering, Unit
from .gradients import Gradients, Reducer

EPSILON = 1e-6  # added to the norm by which clipping divides, as in torch's clip_grad_norm_
STAGES = (1, 2, 3)
GRADIENTS = 2  # the first stage that shards gradients
PARAMETERS = 3  # the stage that shards parameters


def shard(
    module: nn.Module,
    group: comm.Group,
    *,
    stage: int,
    optimizer: Callable[[list[Tensor]], Optimizer],
    layers: Sequence[nn.Module] | None = None,
    ignored: Collection[nn.Parameter] = (),
    precision: torch.dtype | None = None,
    gradients: torch.dtype | None = None,
) -> "Zero":
    """Share a module's states over the ranks of `group`, in place; all pass the same whole module.

    optimizer  makes one from a list of flat tensors, this rank's piece of each buffer. It must
               treat each element by itself (SGD, Adam, AdamW), not whole matrices (LAMB, Adafactor,
               Muon)
    layers     modules that are gathered and averaged one by one, in the order in which they
               compute; None: the members of the module's lists (ModuleList, ModuleDict,
               Sequential). What is in none of them, or in several, is one more unit, in stage 3
               whole from forward to backward
    ignored    parameters that stay as they are, such as those that other ranks hold as well
    precision  the dtype in which parameters are computed and sent, such as torch.bfloat16; None:
               their own. The pieces that the optimizer steps on keep their own dtype; frozen ones
               have none
    gradients  the dtype in which gradients are summed over ranks and backwards; None: as
               `precision`

    All ranks begin with rank 0's numbers. Freeze parameters before. Errors: ValueError for an
    unknown stage, for modules that differ between ranks, for nested layers.
    """
    if stage not in STAGES:
        raise ValueError(
            f"ZeRO has the stages 1, 2 and 3, not {stage}; without any, use DataParallel"
        )
    agreement.check(module, group, ignored)
    agreement.copy_from_first(list(module.buffers()), group)
    if layers is None:
        layers = units.layers_in_lists(module)
    parts = []
    for part, members in units.split(module, layers, ignored):
        flats = [
            Flat(kind, group, precision=precision, sharded=stage == PARAMETERS)
            for kind in units.by_kind(members)
        ]
        parts.append(Unit(part, flats))
    return Zero(module, group, stage, parts, optimizer, gradients)


class Zero:
    """This rank's pieces of the states of a module, and the functions that step them; see `shard`.

    Gradients are averages over ranks (see DataParallel for samples that do not divide) and add up
    until `zero_grad`. In stage 1 they stay whole with the parameters until the step. In stages 2
    and 3 every backward averages and shards them, buffer by buffer, and `grad` is None after it.
    Read parameters through `full_state_dict`: in stage 3 they are NaN except while they compute.
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
        self.module = module
        self.group = group
        self.stage = stage
        self.flats = [flat for part in parts for flat in part.flats]
        self.gradients = [Gradients(flat, dtype) for flat in self.flats if flat.trainable]
        self.reducer = Reducer(self.gradients, listen=stage >= GRADIENTS)
        self.optimizer = optimizer([flat.master for flat in self._trainable])
        self.gathering: Gathering | None = None
        if stage == PARAMETERS:
            self.gathering = Gathering(root=parts[-1], units=parts[:-1])
            self.gathering.forget()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let each backward inside add to whole gradients on this rank, and send nothing.

        The next step averages them, or `reduce`. So only the last of several microbatches
        communicates, at the price of whole gradients, which `grad` has.
        """
        before = self.reducer.synchronize
        self.reducer.synchronize = False
        try:
            yield
        finally:
            self.reducer.synchronize = before

    def reduce(self) -> None:
        """Average and shard gradients that are still whole; `step` and `clip` do so first."""
        self.reducer.reduce()

    def squared_norm(self, share: Callable[[str], float] | None = None) -> Tensor:
        """Return this rank's part of the sum of all squared gradients, in float64: [].

        Over the group the parts add up to the sum. share: the fraction that the parameter of a name
        counts for, where ranks of other groups hold it as well (1/tp of what every rank of tensor
        parallelism holds); None: all of it.
        """
        self.reduce()
        total = torch.zeros((), dtype=torch.float64, device=comm.device(self.group))
        for gradients in self.gradients:
            average = gradients.average                                     # [piece]
            if average is None:
                continue
            if share is None:
                total += _square(average)
            else:
                for name, place in gradients.flat.held:
                    total += share(name) * _square(average[place])
        return total

    def clip(self, max_norm: float, norm: Tensor | None = None) -> Tensor:
        """Scale all gradients so that their norm is at most `max_norm`; return the norm before.

        norm: over more groups than this one, from `squared_norm`; None: the norm over this group.
        All ranks get the same.
        """
        if norm is None:
            norm = comm.all_reduce(self.squared_norm(), self.group).sqrt()
        factor = max_norm / (norm + EPSILON)
        self.scale(factor.clamp(max=1.0))
        return norm

    @torch.no_grad()
    def scale(self, factor: float | Tensor) -> None:
        """Multiply all gradients, for example by 1 over the scale of a loss in fp16."""
        self.reduce()
        for gradients in self.gradients:
            if gradients.average is not None:
                gradients.average.mul_(factor)

    @torch.no_grad()
    def step(self) -> None:
        """Step this rank's pieces and share them: at once, or in stage 3 when needed."""
        self.reduce()
        for gradients in self.gradients:
            master = gradients.flat.master
            average = gradients.average
            master.grad = None if average is None else average.to(master.dtype)
        self.optimizer.step()
        for flat in self._trainable:
            flat.master.grad = None
        self._spread(self._trainable)

    def zero_grad(self) -> None:
        """Drop all gradients."""
        self.reducer.forget()

    def full_state_dict(self) -> dict[str, Any]:
        """Return the module's state dict as on one process; all ranks must call it."""
        return full.parameters(self.module, self.flats)

    @torch.no_grad()
    def load_full_state_dict(self, state: dict[str, Any]) -> None:
        """Take this rank's pieces of the state dict of a whole module, the same on all ranks."""
        full.load_parameters(self.module, self.flats, state)
        self._spread(self.flats)

    @torch.no_grad()
    def refresh(self) -> None:
        """Share the masters as they are now, after something else than `step` has changed them."""
        self._spread(self.flats)

    def full_optimizer_state(self) -> dict[str, dict[str, Any]]:
        """Return the optimizer's whole states by parameter and key; all ranks must call it."""
        return full.optimizer_state(self.optimizer, self._trainable)

    @torch.no_grad()
    def load_full_optimizer_state(self, state: dict[str, dict[str, Any]]) -> None:
        """Take this rank's pieces of whole states, which any number of ranks may have saved."""
        full.load_optimizer_state(self.optimizer, self._trainable, state)

    def nbytes(self) -> dict[str, int]:
        """Count the bytes held now, under the names of a recipe in `costs`.

        Adam's count of steps, one number per buffer, is left out.
        """
        parameters = [flat.piece if flat.sharded else flat.whole for flat in self.flats]
        gradients = [each.average for each in self.gradients]
        optimizer = [flat.master for flat in self._trainable if flat.master is not flat.piece]
        for flat in self._trainable:
            gradients += [parameter.grad for parameter in flat.parameters]
            states = self.optimizer.state.get(flat.master, {}).values()
            optimizer += [x for x in states if isinstance(x, Tensor) and x.dim()]
        return {
            "parameters": sum(tensor.nbytes for tensor in parameters),
            "gradients": sum(tensor.nbytes for tensor in gradients if tensor is not None),
            "optimizer": sum(tensor.nbytes for tensor in optimizer),
        }

    @property
    def _trainable(self) -> list[Flat]:
        return [each.flat for each in self.gradients]

    def _spread(self, flats: Sequence[Flat]) -> None:
        """Share changed masters with all ranks; sharded buffers are gathered when needed."""
        for flat in flats:
            flat.update()
        for flat in flats:
            if not flat.sharded:
                flat.ready()


def _square(x: Tensor) -> Tensor:
    """Return the sum of squares in float64: [...] -> []."""
    norm: Tensor = torch.linalg.vector_norm(x, dtype=torch.float64)
    return norm**2
