"""A ledger of what this rank says to the others: every c10d operation, torch's own engines included.

    with Ledger() as ledger:
        with ledger.span("step"):
            loss.backward()
    ledger.events          # list of trace.Event
    ledger.sent_bytes      # what the operating system saw leave this rank's sockets

Every operation of torch.distributed, also one that DDP's C++ code starts, passes torch's dispatcher, where a
TorchDispatchMode sees it. Without an open ledger nothing is intercepted.
"""

import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
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
}
_BYTES_SENT = struct.Struct("<Q")  # tcpi_bytes_sent of Linux's struct tcp_info
_BYTES_SENT_AT = 200


class Ledger(TorchDispatchMode):
    """Records, while it is open, what this rank sends, receives and waits for, and the spans you name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes: int | None = None  # counted by the operating system; None where it does not tell
        self._open: list[dict[str, Any]] = []
        self._waits: dict[int, tuple[Any, dict[str, Any]]] = {}

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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "c10d":
            return func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("c10d::")
        leaves = tree_leaves((args, kwargs))
        op = _VERBS[name]
        entry = self._begin("communicate", op, _ranks_of(leaves), 0 if op == "barrier" else _payload(args))
        result = func(*args, **(kwargs or {}))
        self._note_end(entry, next(_works(result), None))
        return result

    def _begin(self, kind: str, op: str, group: tuple[int, ...], nbytes: int) -> dict[str, Any]:
        entry = {"rank": dist.get_rank(), "kind": kind, "op": op, "group": group, "nbytes": nbytes}
        self._open.append({**entry, "start": time.perf_counter(), "end": None})
        return self._open[-1]

    def _note_end(self, entry: dict[str, Any], work: Any) -> None:
        """An operation that has a future tells when it ends; any other has ended when somebody has waited for it."""
        if work is None:
            entry["end"] = time.perf_counter()
            return
        try:
            work.get_future().add_done_callback(lambda _: entry.update(end=time.perf_counter()))
        except RuntimeError:
            self._waits[id(work)] = work, entry  # keeping `work` keeps its id its own

    def _noting(self, wait: Any) -> Any:
        def noting(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            _, entry = self._waits.pop(id(work), (None, None))
            if entry is not None:
                entry["end"] = time.perf_counter()
            return result

        return noting


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


def _works(result: Any) -> Iterator[Any]:
    """The handles among an operation's results."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.ScriptObject):
            yield dist.Work.unbox(leaf)


def _sent_by_sockets() -> int | None:
    """Bytes this process has sent over TCP so far, headers of gloo's messages included; Linux only."""
    if sys.platform != "linux":
        return None
    total = 0
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        try:
            with socket.socket(fileno=os.dup(descriptor)) as link:
                if link.family not in (socket.AF_INET, socket.AF_INET6) or link.type != socket.SOCK_STREAM:
                    continue
                facts = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # not a socket
            continue
        if len(facts) < _BYTES_SENT_AT + _BYTES_SENT.size:
            return None
        total += int(_BYTES_SENT.unpack_from(facts, _BYTES_SENT_AT)[0])
    return total
