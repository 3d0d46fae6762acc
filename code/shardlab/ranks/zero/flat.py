"""Flat buffers: parameters one after another, in a buffer of which every rank keeps an equal piece.

    parameters   | weight              | bias   | norm | padding |
    buffer       | rank 0     | rank 1     | rank 2     | rank 3 |

One long message is cheaper than many short ones, and no parameter need divide by the number of ranks: a boundary falls
where it falls. Rajbhandari et al. 2020, section 5 (https://arxiv.org/abs/1910.02054); Zhao et al. 2023, section 3.2.1,
"FlatParameter" (https://arxiv.org/abs/2304.11277).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import comm

Named = Mapping[str, nn.Parameter]


class Flat:
    """Some parameters of one kind in a flat buffer, of which this rank keeps a piece.

    precision  what the parameters are computed and exchanged in; the master stays in their own dtype. None: the same
    cut        whether the rank may forget the other pieces, and gathers them again when they are needed (ZeRO-3)

    Errors: ValueError for parameters of unlike dtypes or devices.
    """

    def __init__(self, named: Named, group: comm.Group, *, precision: torch.dtype | None = None, cut: bool = False):
        self.names, self.parameters, self.group, self.cut = list(named), list(named.values()), group, cut
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            raise ValueError(f"a flat buffer has one dtype and device, not {kinds}; make one for each")
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.trainable = self.parameters[0].requires_grad
        flat = comm.broadcast(self.flatten(self.parameters), group)           # [n * piece], as rank 0 has it
        own = flat.dtype if precision is None or not flat.is_floating_point() else precision
        self.whole = flat.to(own)                                             # [n * piece]
        mine = slice(group.rank() * self.length, (group.rank() + 1) * self.length)
        self.piece = self.whole[mine].clone() if cut else self.whole[mine]    # [piece]
        masters = self.trainable and own != flat.dtype
        self.master = flat[mine].clone() if masters else self.piece           # [piece], what the optimizer steps
        self._nothing = self.whole.new_full((), torch.nan if own.is_floating_point else 0)
        self._full = self.whole.untyped_storage().nbytes()
        self._wait: Callable[[], Any] | None = None
        self._show()

    @property
    def numel(self) -> int:
        """Numbers of all parameters."""
        return sum(shape.numel() for shape in self.shapes)

    @property
    def length(self) -> int:
        """Numbers of a rank's piece, padding included."""
        return -(-self.numel // self.group.size())

    @property
    def padding(self) -> int:
        """Numbers that make the pieces equal and belong to nobody: fewer than there are ranks."""
        return self.length * self.group.size() - self.numel

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """Where each parameter begins and ends in the buffer."""
        end = 0
        for shape in self.shapes:
            end += shape.numel()
            yield end - shape.numel(), end

    @property
    def held(self) -> list[tuple[str, slice]]:
        """The parameters that reach into this rank's piece, and where they lie in it."""
        first = self.group.rank() * self.length
        spans = [(max(begin - first, 0), min(end - first, self.length)) for begin, end in self.places]
        return [(name, slice(*span)) for name, span in zip(self.names, spans, strict=True) if span[0] < span[1]]

    # ---- whole and forgotten -----------------------------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Whether the rank has all pieces, or is about to."""
        return self.whole.untyped_storage().nbytes() > 0

    def gather(self) -> None:
        """Begin to gather all pieces, unless they are there; returns at once."""
        if not self.is_whole:
            self.whole.untyped_storage().resize_(self._full)
            self._wait = comm.start_all_gather(self.piece, self.whole, self.group)

    def ready(self) -> None:
        """The parameters are whole when this returns."""
        self.gather()
        if self._wait is not None:
            self._wait()
            self._wait = None
            self._show()

    def forget(self) -> None:
        """Keep this rank's piece only, where the buffer is cut. What autograd has kept is a view of the same storage:
        it is there again when that is filled again."""
        if self.cut and self.is_whole:
            if self._wait is not None:
                self._wait()
                self._wait = None
            for parameter, shape in zip(self.parameters, self.shapes, strict=True):
                parameter.data = self._nothing.expand(shape)  # NaN: who reads it by mistake will see
            self.whole.untyped_storage().resize_(0)

    def update(self) -> None:
        """The master has changed: forget what was made of the old one, or begin to gather the new pieces."""
        if self.master is not self.piece:
            self.piece.copy_(self.master)
        if self.cut:
            self.forget()
        else:
            self._wait = comm.start_all_gather(self.piece, self.whole, self.group)

    def _show(self) -> None:
        for parameter, view in zip(self.parameters, self.unflatten(self.whole), strict=True):
            parameter.data = view

    # ---- numbers in and out of a flat buffer -------------------------------------------------------------------------

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """These tensors, of the shapes of the parameters, one after another and padded with zeros: -> [n * piece]."""
        pad = tensors[0].new_zeros(self.padding)
        return torch.cat([*(tensor.detach().reshape(-1) for tensor in tensors), pad])

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Views of a flat buffer in the shapes of the parameters: [n * piece] -> ..."""
        return [flat[slice(*place)].view(shape) for place, shape in zip(self.places, self.shapes, strict=True)]

    def mine(self, tensors: Sequence[Tensor]) -> Tensor:
        """This rank's piece of such tensors; a copy."""
        return self.flatten(tensors).view(self.group.size(), -1)[self.group.rank()].clone()

    def join(self, piece: Tensor) -> dict[str, Tensor]:
        """Every parameter's part of what ranks have in pieces, whole: [piece] -> name -> tensor; all ranks call it."""
        return dict(zip(self.names, self.unflatten(comm.all_gather(piece.detach(), self.group)), strict=True))
