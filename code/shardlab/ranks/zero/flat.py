"""Flat buffers: parameters one after another, in a buffer of which every rank keeps an equal piece.

    parameters   | weight              | bias   | norm | padding |
    buffer       | rank 0     | rank 1     | rank 2     | rank 3 |

One long message is cheaper than many short ones, and no parameter has to divide by the number of
ranks: a piece may end inside of a parameter. Rajbhandari et al. 2020, section 5
(https://arxiv.org/abs/1910.02054); Zhao et al. 2023, section 3.2.1, "FlatParameter"
(https://arxiv.org/abs/2304.11277).

Shapes: [piece] is what one of N ranks keeps, [N * piece] is the whole buffer with its padding.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm

Named = Mapping[str, nn.Parameter]


class Flat:
    """Parameters of one dtype and device in a flat buffer, of which this rank keeps a piece.

    precision  the dtype in which parameters are computed and sent; masters keep their own. None:
               the same
    sharded    whether the rank may drop the other pieces and gather them when needed (ZeRO-3)

    Errors: ValueError for parameters of different dtypes or devices.
    """

    def __init__(
        self,
        named: Named,
        group: comm.Group,
        *,
        precision: torch.dtype | None = None,
        sharded: bool = False,
    ):
        self.names = list(named)
        self.parameters = list(named.values())
        self.group = group
        self.sharded = sharded
        kinds = {(parameter.dtype, parameter.device) for parameter in self.parameters}
        if len(kinds) != 1:
            raise ValueError(
                f"expected one dtype and device in a flat buffer, got {kinds}; "
                f"make a buffer for each"
            )
        self.shapes = [parameter.shape for parameter in self.parameters]
        self.trainable = self.parameters[0].requires_grad
        flat = comm.broadcast(self.flatten(self.parameters), group)    # [N * piece], rank 0's
        lowered = precision if flat.is_floating_point() else None
        self.whole = flat.to(lowered or flat.dtype)                    # [N * piece]
        own = self._own(self.whole)
        self.piece = own.clone() if sharded else own                   # [piece]
        self.master = self.piece                                       # [piece], what is stepped
        if self.trainable and self.whole.dtype != flat.dtype:
            self.master = self._own(flat).clone()
        absent = torch.nan if self.whole.is_floating_point() else 0
        self._absent = self.whole.new_full((), absent)  # [], what dropped parameters read as
        self._full_bytes = self.whole.untyped_storage().nbytes()
        self._wait: Callable[[], Any] | None = None  # for a gather in flight
        self._restore_views()
        self.forget()  # before another buffer is made

    @property
    def numel(self) -> int:
        """Count the elements of all parameters."""
        return sum(shape.numel() for shape in self.shapes)

    @property
    def length(self) -> int:
        """Count the elements of a rank's piece, padding included."""
        return -(-self.numel // self.group.size())

    @property
    def padding(self) -> int:
        """Count the zeros at the end that make pieces equal: fewer than there are ranks."""
        return self.length * self.group.size() - self.numel

    @property
    def places(self) -> Iterator[tuple[int, int]]:
        """Give each parameter's begin and end in the buffer."""
        end = 0
        for shape in self.shapes:
            begin = end
            end += shape.numel()
            yield begin, end

    @property
    def held(self) -> list[tuple[str, slice]]:
        """List the parameters that reach into this rank's piece, with their place in it."""
        first = self.group.rank() * self.length
        found = []
        for name, (begin, end) in zip(self.names, self.places, strict=True):
            start = max(begin - first, 0)
            stop = min(end - first, self.length)
            if start < stop:
                found.append((name, slice(start, stop)))
        return found

    # ---- gather and forget ---------------------------------------------------------------------

    @property
    def is_whole(self) -> bool:
        """Tell whether the rank has all pieces, or has begun to gather them."""
        return self.whole.untyped_storage().nbytes() > 0

    def gather(self) -> None:
        """Begin to gather all pieces, unless they are there; return at once."""
        if not self.is_whole:
            self.whole.untyped_storage().resize_(self._full_bytes)
            self._wait = comm.start_all_gather(self.piece, self.whole, self.group)

    def ready(self) -> None:
        """Return when the parameters are whole."""
        self.gather()
        if self._wait is not None:
            self._finish_gather()
            if self.sharded:
                self._restore_views()

    def forget(self) -> None:
        """Free all but this rank's piece, if the buffer is sharded.

        What autograd kept is a view of the same storage, which the next gather fills.
        """
        if self.sharded and self.is_whole:
            self._finish_gather()
            for parameter, shape in zip(self.parameters, self.shapes, strict=True):
                parameter.data = self._absent.expand(shape)  # NaN shows misuse
            self.whole.untyped_storage().resize_(0)

    def update(self) -> None:
        """Copy a changed master to the piece; drop the stale whole, or begin to gather it again."""
        if self.master is not self.piece:
            self.piece.copy_(self.master)
        if self.sharded:
            self.forget()
        else:
            self._wait = comm.start_all_gather(self.piece, self.whole, self.group)

    def _finish_gather(self) -> None:
        """Wait for the gather in flight, if there is one."""
        if self._wait is not None:
            self._wait()
            self._wait = None

    def _restore_views(self) -> None:
        """Let every parameter be a view of the whole buffer."""
        for parameter, view in zip(self.parameters, self.unflatten(self.whole), strict=True):
            parameter.data = view

    # ---- numbers in and out of a flat buffer ---------------------------------------------------

    def flatten(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join `tensors`, of the parameters' shapes, and pad with zeros: -> [N * piece]."""
        padding = tensors[0].new_zeros(self.padding)
        flattened = [tensor.detach().reshape(-1) for tensor in tensors]
        return torch.cat([*flattened, padding])

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """View `flat` in the shapes of the parameters: [N * piece] -> one view per parameter."""
        places = zip(self.places, self.shapes, strict=True)
        return [flat[begin:end].view(shape) for (begin, end), shape in places]

    def piece_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """Copy this rank's piece of `tensors`, of the parameters' shapes: -> [piece]."""
        return self._own(self.flatten(tensors)).clone()

    def join(self, piece: Tensor) -> dict[str, Tensor]:
        """Gather `piece` from all ranks, which all call it: [piece] -> whole tensors by name."""
        whole = comm.all_gather(piece.detach(), self.group)            # [N * piece]
        return dict(zip(self.names, self.unflatten(whole), strict=True))

    def _own(self, flat: Tensor) -> Tensor:
        """View this rank's piece of `flat`: [N * piece] -> [piece]."""
        return flat.view(self.group.size(), -1)[self.group.rank()]
