"""A ledger of what this rank says to the others: every operation of c10d, torch's own engines included.

    with Ledger() as ledger:
        with ledger.span("step"):
            loss.backward()
    ledger.events          # list of trace.Event: the spans and the communications, with their times
    ledger.program         # list of trace.Event: all that `costs.replay` needs to play this rank elsewhere
    ledger.sent_bytes      # what the operating system saw leave this rank's sockets

Every operation of torch.distributed, also one that DDP's C++ code starts, passes torch's dispatcher, where a
TorchDispatchMode sees it; so do the functional collectives, which DTensor uses. Without an open ledger nothing is
intercepted. Not seen: what is sent without an operation of torch, such as by a kernel of one's own.

The same mode sees what is computed between them, and counts its FLOPs.

An event ends when the operation has ended, as gloo tells; a functional collective, and a message between two ranks,
when this rank has waited for it. Under NCCL an operation ends here when it was enqueued on the GPU, for there a
wait holds up the GPU's stream and not this process; synchronize the device inside a span to see the whole.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...trace import Event
from . import sockets
from .program import Program

_VERBS = {  # c10d's names of its operations -> the field's
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "broadcast_": "broadcast",
    "reduce_": "reduce",
    "allgather_": "all_gather",
    "allgather_coalesced_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "gather_": "gather",
    "scatter_": "scatter",
    "send": "send",
    "recv_": "receive",
    "recv_any_source_": "receive",
    "barrier": "barrier",
    "monitored_barrier_": "barrier",
    # torch.distributed._functional_collectives, as DTensor uses them; an "_" or "_out" at the end changes nothing
    "all_reduce": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "broadcast": "broadcast",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "isend": "send",
    "irecv": "receive",
}
_DESUGARED = (AsyncCollectiveTensor, DTensor)
_FUNCTIONAL = "_c10d_functional"
_SILENT = {"check_for_nan", "_wrap_tensor_autograd"}  # of these namespaces too, but nothing is sent
_BRING_NOTHING = {"send", "barrier"}


class Ledger(TorchDispatchMode):
    """Records, while it is open, what this rank sends, receives and waits for, and the spans you name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes: int | None = None  # counted by the operating system; None where it does not tell, as of NCCL
        self._open: list[dict[str, Any]] = []
        self._waits: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._promised: dict[int, dict[str, Any]] = {}  # functional collectives by the address of what they fill
        self._program = Program(dist.get_rank())

    @property
    def events(self) -> list[Event]:
        """What has happened so far, in order of start; an operation not yet finished ends now."""
        return sorted(_events(self._open), key=lambda event: event.start)

    @property
    def program(self) -> list[Event]:
        """What this rank has done so far, in order: computing with its FLOPs, communications, and waiting for them."""
        self._program.compute_ends(time.perf_counter())
        return _events(self._program.steps)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Name what this rank computes inside the block."""
        entry = self._begin("compute", name, (dist.get_rank(),))
        before = self._program.flops
        self._program.enter(name)
        try:
            yield
        finally:
            self._program.leave()
            entry["flops"] = self._program.flops - before
            entry["end"] = time.perf_counter()

    def __enter__(self) -> "Ledger":
        self._before = sockets.sent() if dist.get_backend() == "gloo" else None
        self._wait = dist.Work.wait
        setattr(dist.Work, "wait", self._noting(self._wait))  # noqa: B010 (a plain assignment is an error to mypy)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        setattr(dist.Work, "wait", self._wait)  # noqa: B010
        after = sockets.sent()
        if self._before is not None and after is not None:
            self.sent_bytes = after - self._before
        now = time.perf_counter()
        for entry in self._open:
            entry["end"] = entry["end"] or now
        self._waits.clear()
        self._promised.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(each, _DESUGARED) for each in types):
            return NotImplemented  # let it take itself apart first: what it sends then comes by here
        kwargs = kwargs or {}
        if func.namespace not in ("c10d", _FUNCTIONAL):
            return self._compute(func, args, kwargs)
        name = func._schema.name.rpartition("::")[2]
        if name in _SILENT:
            return func(*args, **kwargs)
        if name == "wait_tensor":
            start = time.perf_counter()
            result = func(*args)
            self._waited(self._promised.pop(args[0].data_ptr(), None), start)
            return result
        return self._communicate(func, name, args, kwargs)

    def _compute(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not func.is_view:
            self._program.use((*args, *kwargs.values()))
        result = func(*args, **kwargs)
        self._program.compute(func, args, kwargs, result)
        return result

    def _communicate(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        functional = func.namespace == _FUNCTIONAL
        op = _VERBS.get(name.removesuffix("_out").removesuffix("_") if functional else name, name)
        group = _ranks_of_name(args[-1]) if functional else _ranks_of(tree_leaves((args, kwargs)))
        self._program.use(args)
        entry = self._begin("communicate", op, group)
        if op in ("send", "receive"):
            entry |= _ends(name, group, args[1 if functional else 2 :])
        result = func(*args, **kwargs)
        entry["nbytes"] = 0 if op == "barrier" else _payload((*args, result))
        self._program.issue(entry, [] if op in _BRING_NOTHING else _tensors(result) or _tensors(args[0]))
        if functional:
            self._promised |= {x.data_ptr(): entry for x in tree_leaves(result)}
        else:
            self._note_end(entry, next(_works(result), None))
        return result

    def _begin(self, kind: str, op: str, group: tuple[int, ...]) -> dict[str, Any]:
        entry = {"rank": dist.get_rank(), "kind": kind, "op": op, "group": group, "nbytes": 0}
        self._open.append({**entry, "start": time.perf_counter(), "end": None})
        return self._open[-1]

    def _note_end(self, entry: dict[str, Any], work: Any) -> None:
        """An operation that has a future tells when it ends; any other has ended when somebody has waited for it."""
        if work is None:
            return _end(entry)
        self._waits[id(work)] = work, entry  # keeping `work` keeps its id its own
        with suppress(RuntimeError):  # a message between two ranks has no future
            work.get_future().add_done_callback(lambda _: _end(entry))

    def _noting(self, wait: Any) -> Any:
        def noting(work: Any, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = wait(work, *args, **kwargs)
            _, entry = self._waits.pop(id(work), (None, None))
            if entry is not None and entry.get("peer", 0) is None:
                entry["peer"] = entry["group"][work._source_rank()]
            self._waited(entry, start)
            return result

        return noting

    def _waited(self, entry: dict[str, Any] | None, start: float) -> None:
        _end(entry)
        if entry is not None:
            self._program.wait(entry["number"], start)


def _end(entry: dict[str, Any] | None) -> None:
    """Note the end, once: what ends after the ledger was closed ended, for the ledger, when it was closed."""
    if entry is not None and entry["end"] is None:
        entry["end"] = time.perf_counter()


def _events(entries: list[dict[str, Any]]) -> list[Event]:
    now = time.perf_counter()
    return [Event(**{**entry, "end": entry["end"] or now}) for entry in entries if entry]


def _ends(name: str, group: tuple[int, ...], told: Any) -> dict[str, Any]:
    """The other rank and the tag of a message; who sent what anybody may send is known when it is there."""
    if name == "recv_any_source_":
        return {"peer": None, "tag": told[0]}
    return {"peer": group[told[0]], "tag": told[1]}


def _tensors(args: Any) -> list[Tensor]:
    return [x for x in tree_leaves(args) if isinstance(x, Tensor)]


def _payload(args: Any) -> int:
    """The larger of what goes in and what comes out; c10d passes outputs and inputs as separate arguments."""
    sizes = [sum(x.numel() * x.element_size() for x in tree_leaves(arg) if isinstance(x, Tensor)) for arg in args]
    return max(sizes, default=0)


def _ranks_of(leaves: list[Any]) -> tuple[int, ...]:
    """The ranks of the group among an operation's arguments."""
    for leaf in leaves:
        if isinstance(leaf, torch.ScriptObject) and leaf._type().qualified_name().endswith("ProcessGroup"):
            return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(leaf)))
    return (dist.get_rank(),)


def _ranks_of_name(group: Any) -> tuple[int, ...]:
    """The ranks of the group that a functional collective names."""
    if not isinstance(group, dist.ProcessGroup):
        group = dist.distributed_c10d._resolve_process_group(group)
    return tuple(dist.get_process_group_ranks(group))


def _works(result: Any) -> Iterator[Any]:
    """The handles among an operation's results."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.ScriptObject):
            yield dist.Work.unbox(leaf)
