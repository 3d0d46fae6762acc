"""What torch's collectives and messages do between ranks that are threads of one process.

Torch hands every operation of torch.distributed to a kernel by its name. Here the kernels for
tensors on the CPU are replaced: an operation is complete once every rank that takes part in it has
started it, and whoever comes last moves the numbers of all. A rank waits where it would wait for
gloo, in `Work.wait`.

Kernels see no reduction's operation, which torch keeps to itself. So it is noted where Python
starts a collective; what C++ starts on its own, as DDP, FSDP and DTensor do, is refused.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

_C10D: Any = torch._C._distributed_c10d
Ranks = Sequence[int]
Fill = Callable[[list[Any]], None]  # gets what each rank has brought, in rank order
_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "SUM": lambda total, x: total.add_(x),
    "PRODUCT": lambda total, x: total.mul_(x),
    "MAX": lambda total, x: torch.maximum(total, x, out=total),
    "MIN": lambda total, x: torch.minimum(total, x, out=total),
}
_NO_RANK = (
    'with ranks="threads" the ranks themselves communicate, and not a thread that one has started; '
    'leave out ranks="threads"'
)
_BY_CPP = (
    "torch's C++ has started an operation in group {name}, as DDP, FSDP and DTensor do; ranks that "
    'are threads see those alone that Python starts: leave out ranks="threads"'
)
here = threading.local()  # .rank: the rank that this thread is; .reduction: see `_noting`


class Operation:
    """A collective or a message: complete when each of its `size` members has come."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.parts: dict[int, Any] = {}  # what each member has brought
        self.futures: list[Any] = []
        self.then: list[Callable[[], Any]] = []  # what follows
        self.complete = False

    def finish(self) -> None:
        """Let all who wait go on; keep no tensor alive for those that go on later."""
        self.complete = True
        self.parts.clear()
        for future in self.futures:
            future.set_result(None)
        for each in self.then:
            each()


class Backend:
    """The operations in flight, and how ranks wait for them.

    wait: blocks the calling rank until an operation is complete; it gets the operation, and the
    ranks that take part in it.
    """

    def __init__(self, wait: Callable[[Operation, Ranks], None]) -> None:
        self.wait = wait
        self.open: dict[Any, Operation] = {}
        self.started: Counter[Any] = Counter()  # how often a rank has started what has one key
        self.pending: dict[int, tuple[Any, Operation, Ranks]] = {}  # by id of a Work, kept here

    def install(self) -> None:
        """Replace torch's kernels and waits in this process."""
        self.kernels = torch.library.Library("c10d", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of kernels that are replaced
            for name in dir(self):
                if name.startswith("c10d_"):
                    self.kernels.impl(
                        name.removeprefix("c10d_"), getattr(self, name), "CPU", allow_override=True
                    )
            for name in _REFUSED:
                self.kernels.impl(name, _refusal(name), "CPU", allow_override=True)
        for name, method in [*vars(dist.ProcessGroup).items()]:
            if "-> c10d::Work" in (getattr(method, "__doc__", None) or ""):
                setattr(dist.ProcessGroup, name, self._noting(method))
        dist.Work.wait = self._waiting(dist.Work.wait)  # type: ignore[method-assign]

    def _noting(self, start: Callable[..., Any]) -> Callable[..., Any]:
        """Let kernels know that Python starts this operation, and with which reduction."""

        @wraps(start)
        def started(group: Any, *args: Any, **options: Any) -> Any:
            given = (*args, *options.values())
            if not hasattr(here, "rank"):
                raise RuntimeError(_NO_RANK)
            here.reduction = next(filter(None, map(_reduction, given)), "SUM")
            try:
                return start(group, *args, **options)
            finally:
                del here.reduction

        return started

    def _waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(wait)
        def waited(work: Any, *args: Any, **options: Any) -> Any:
            _, operation, ranks = self.pending.pop(id(work), (None, None, ()))
            if operation is not None:
                self.wait(operation, ranks)
            return wait(work, *args, **options)

        return waited

    # ---- meeting ---------------------------------------------------------------------------------

    def _meet(self, key: Any, member: int, size: int, part: Any, fill: Fill, ranks: Ranks) -> Any:
        """Bring a part to an operation; the last one fills what is to be filled.

        Returns torch's handle for the operation.
        """
        if not hasattr(here, "reduction"):
            raise RuntimeError(_BY_CPP.format(name=key))
        self.started[key, member] += 1
        name = key, self.started[key, member]
        operation = self.open.setdefault(name, Operation(size))
        operation.parts[member] = part
        future: Any = Future()
        operation.futures.append(future)
        if len(operation.parts) == size:
            del self.open[name]
            with torch.no_grad():
                fill([operation.parts[each] for each in range(size)])
            operation.finish()
        work = _C10D._create_work_from_future(future)
        self.pending[id(work)] = work, operation, ranks
        return work.boxed()

    def _all(self, process_group: Any, part: Any, fill: Fill) -> Any:
        """Meet the whole group."""
        group = dist.ProcessGroup.unbox(process_group)
        ranks = dist.get_process_group_ranks(group)
        return self._meet(group.group_name, group.rank(), group.size(), part, fill, ranks)

    def _reduced(self, tensors: Sequence[Tensor]) -> Tensor:
        """Combine tensors in rank order, with the operation that Python has asked for."""
        name = here.reduction
        if name not in _REDUCTIONS:
            raise ValueError(
                f"ranks on CPUs cannot reduce with {name}; use {', '.join(_REDUCTIONS)}"
            )
        total = tensors[0].clone()
        for each in tensors[1:]:
            _REDUCTIONS[name](total, each)
        return total

    # ---- kernels: the names and arguments are torch's --------------------------------------------

    def c10d_allreduce_(self, tensors: Any, group: Any, *_: Any) -> Any:
        """Combine the first tensor of all ranks, in place."""

        def fill(parts: list[Any]) -> None:
            total = self._reduced(parts)
            for each in parts:
                each.copy_(total)

        return tensors, self._all(group, tensors[0], fill)

    def c10d_reduce_(self, tensors: Any, group: Any, op: Any, root: int, *_: Any) -> Any:
        """Combine on the root."""
        return self._all(group, tensors[0], lambda parts: parts[root].copy_(self._reduced(parts)))

    def c10d_broadcast_(self, tensors: Any, group: Any, root: int, *_: Any) -> Any:
        """Copy the root's tensor to the others."""

        def fill(parts: list[Any]) -> None:
            for each in parts:
                each.copy_(parts[root])

        return tensors, self._all(group, tensors[0], fill)

    def c10d__allgather_base_(self, output: Any, x: Any, group: Any, *_: Any) -> Any:
        """Concatenate."""

        def fill(parts: list[Any]) -> None:
            for whole, _ in parts:
                for slot, (_, each) in zip(_split(whole, len(parts)), parts, strict=True):
                    slot.copy_(each.reshape(-1))

        return output, self._all(group, (output, x), fill)

    def c10d_allgather_(self, outputs: Any, inputs: Any, group: Any, *_: Any) -> Any:
        """Put the tensor of each rank into a list."""

        def fill(parts: list[Any]) -> None:
            for slots, _ in parts:
                for slot, (_, each) in zip(slots, parts, strict=True):
                    slot.copy_(each)

        return outputs, self._all(group, (outputs[0], inputs[0]), fill)

    def c10d__reduce_scatter_base_(self, output: Any, x: Any, group: Any, *_: Any) -> Any:
        """Combine, and keep this rank's slice."""

        def fill(parts: list[Any]) -> None:
            total = self._reduced([each for _, each in parts])
            for (slot, _), piece in zip(parts, _split(total, len(parts)), strict=True):
                slot.view(-1).copy_(piece)

        return output, self._all(group, (output, x), fill)

    def c10d_reduce_scatter_(self, outputs: Any, inputs: Any, group: Any, *_: Any) -> Any:
        """Combine lists of tensors, and keep this rank's."""

        def fill(parts: list[Any]) -> None:
            for rank, (slot, _) in enumerate(parts):
                slot.copy_(self._reduced([each[rank] for _, each in parts]))

        return outputs, self._all(group, (outputs[0], inputs[0]), fill)

    def c10d_gather_(self, outputs: Any, inputs: Any, group: Any, root: int, *_: Any) -> Any:
        """Put the tensor of each rank into a list of the root's."""

        def fill(parts: list[Any]) -> None:
            for slot, (_, each) in zip(parts[root][0][0], parts, strict=True):
                slot.copy_(each)

        return self._all(group, (outputs, inputs[0]), fill)

    def c10d_scatter_(self, outputs: Any, inputs: Any, group: Any, root: int, *_: Any) -> Any:
        """Give each rank a tensor of the root's list."""

        def fill(parts: list[Any]) -> None:
            for (slot, _), each in zip(parts, parts[root][1][0], strict=True):
                slot.copy_(each)

        return outputs, self._all(group, (outputs[0], inputs), fill)

    def c10d_alltoall_base_(
        self, output: Any, x: Any, group: Any, receives: Any, sends: Any, *_: Any
    ) -> Any:
        """Give each rank some rows, and take some from each."""
        size = dist.ProcessGroup.unbox(group).size()
        return self._all(group, (_rows(output, receives, size), _rows(x, sends, size)), _transpose)

    def c10d_alltoall_(self, outputs: Any, inputs: Any, group: Any, *_: Any) -> Any:
        """Give each rank a tensor, and take one from each."""
        return outputs, self._all(group, (outputs, inputs), _transpose)

    def c10d_barrier(self, tensor: Any, group: Any, *_: Any) -> Any:
        """Meet."""
        return self._all(group, None, lambda parts: None)

    def c10d_send(self, tensors: Any, group: Any, to: int, tag: int) -> Any:
        """Bring what a receive takes."""
        return self._message(group, dist.ProcessGroup.unbox(group).rank(), to, tag, 0, tensors[0])

    def c10d_recv_(self, tensors: Any, group: Any, source: int, tag: int) -> Any:
        """Bring what a send fills."""
        me = dist.ProcessGroup.unbox(group).rank()
        return self._message(group, source, me, tag, 1, tensors[0])

    def _message(self, group: Any, source: int, to: int, tag: int, end: int, x: Tensor) -> Any:
        group = dist.ProcessGroup.unbox(group)
        other = dist.get_global_rank(group, source if end else to)
        key = group.group_name, source, to, tag
        return self._meet(key, end, 2, x, lambda parts: parts[1].copy_(parts[0]), [other])


_REFUSED = (
    "allreduce_coalesced_",
    "allgather_coalesced_",
    "allgather_into_tensor_coalesced_",
    "reduce_scatter_tensor_coalesced_",
    "recv_any_source_",
    "monitored_barrier_",
)


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*_: Any) -> Any:
        raise RuntimeError(f'ranks that are threads have no {name}; leave out ranks="threads"')

    return refuse


def _reduction(given: Any) -> str:
    """Name the operation that an argument asks for, such as SUM; "" for other arguments."""
    given = getattr(given, "reduceOp", given)
    if isinstance(given, dist.ReduceOp):
        given = given.op  # type: ignore[attr-defined]
    return str(given.name) if isinstance(given, dist.ReduceOp.RedOpType) else ""


def _split(x: Tensor, parts: int) -> Sequence[Tensor]:
    return x.view(parts, -1).unbind()


def _rows(x: Tensor, sizes: Any, ranks: int) -> Sequence[Tensor]:
    rows: Sequence[Tensor] = x.split(list(sizes) or [len(x) // ranks] * ranks)
    return rows


def _transpose(parts: list[Any]) -> None:
    for rank, (slots, _) in enumerate(parts):
        for slot, (_, pieces) in zip(slots, parts, strict=True):
            slot.copy_(pieces[rank])
