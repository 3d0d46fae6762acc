"""A ledger of what this rank says to the others: every operation of c10d, torch's own engines included.

    with Ledger() as ledger:
        with ledger.span("step"):
            loss.backward()
    ledger.events          # list of trace.Event
    ledger.sent_bytes      # what the operating system saw leave this rank's sockets

Every operation of torch.distributed, also one that DDP's C++ code starts, passes torch's dispatcher, where a
TorchDispatchMode sees it; so do the functional collectives, which DTensor uses. Without an open ledger nothing is
intercepted. Not seen: what is sent without an operation of torch, such as by a kernel of one's own.

An event ends when the operation has ended, as gloo tells; a functional collective, and a message between two ranks,
when this rank has waited for it. Under NCCL an operation ends here when it was enqueued on the GPU, for there a
wait holds up the GPU's stream and not this process; synchronize the device inside a span to see the whole.
"""

import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..trace import Event

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
_SENT = struct.Struct("<QQ")  # tcpi_bytes_sent and tcpi_bytes_retrans of Linux's struct tcp_info
_SENT_AT = 200


class Ledger(TorchDispatchMode):
    """Records, while it is open, what this rank sends, receives and waits for, and the spans you name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes: int | None = None  # counted by the operating system; None where it does not tell
        self._open: list[dict[str, Any]] = []
        self._waits: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._promised: dict[int, dict[str, Any]] = {}  # functional collectives by the address of what they fill

    @property
    def events(self) -> list[Event]:
        """What has happened so far, in order of start; an operation not yet finished ends now."""
        now = time.perf_counter()
        events = [Event(**{**entry, "end": entry["end"] or now}) for entry in self._open]
        return sorted(events, key=lambda event: event.start)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Name what this rank computes inside the block."""
        entry = self._begin("compute", name, (dist.get_rank(),), 0)
        try:
            yield
        finally:
            entry["end"] = time.perf_counter()

    def __enter__(self) -> "Ledger":
        self._before = _sent_by_sockets()
        self._wait = dist.Work.wait
        setattr(dist.Work, "wait", self._noting(self._wait))  # noqa: B010 (a plain assignment is an error to mypy)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        setattr(dist.Work, "wait", self._wait)  # noqa: B010
        after = _sent_by_sockets()
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
        name = func._schema.name.rpartition("::")[2]
        if func.namespace not in ("c10d", _FUNCTIONAL) or name in _SILENT:
            return func(*args, **(kwargs or {}))
        if name == "wait_tensor":
            result = func(*args)
            _end(self._promised.pop(args[0].data_ptr(), None))
            return result
        functional = func.namespace == _FUNCTIONAL
        op = _VERBS.get(name.removesuffix("_out").removesuffix("_") if functional else name, name)
        group = _ranks_of_name(args[-1]) if functional else _ranks_of(tree_leaves((args, kwargs)))
        entry = self._begin("communicate", op, group, 0)
        result = func(*args, **(kwargs or {}))
        entry["nbytes"] = 0 if op == "barrier" else _payload((*args, result))
        if functional:
            self._promised |= {x.data_ptr(): entry for x in tree_leaves(result)}
        else:
            self._note_end(entry, next(_works(result), None))
        return result

    def _begin(self, kind: str, op: str, group: tuple[int, ...], nbytes: int) -> dict[str, Any]:
        entry = {"rank": dist.get_rank(), "kind": kind, "op": op, "group": group, "nbytes": nbytes}
        self._open.append({**entry, "start": time.perf_counter(), "end": None})
        return self._open[-1]

    def _note_end(self, entry: dict[str, Any], work: Any) -> None:
        """An operation that has a future tells when it ends; any other has ended when somebody has waited for it."""
        if work is None:
            return _end(entry)
        try:
            work.get_future().add_done_callback(lambda _: _end(entry))
        except RuntimeError:
            self._waits[id(work)] = work, entry  # keeping `work` keeps its id its own

    def _noting(self, wait: Any) -> Any:
        def noting(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            _, entry = self._waits.pop(id(work), (None, None))
            _end(entry)
            return result

        return noting


def _end(entry: dict[str, Any] | None) -> None:
    """Note the end, once: what ends after the ledger was closed ended, for the ledger, when it was closed."""
    if entry is not None and entry["end"] is None:
        entry["end"] = time.perf_counter()


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


def _sent_by_sockets() -> int | None:
    """Bytes this process has sent over TCP so far, gloo's headers included, repetitions not; Linux only."""
    if sys.platform != "linux":
        return None
    total = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                continue
            with socket.socket(fileno=os.dup(descriptor)) as link:
                if link.family not in (socket.AF_INET, socket.AF_INET6) or link.type != socket.SOCK_STREAM:
                    continue
                facts = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # closed meanwhile
            continue
        if len(facts) < _SENT_AT + _SENT.size:
            return None
        sent, again = _SENT.unpack_from(facts, _SENT_AT)
        total += sent - again
    return total
