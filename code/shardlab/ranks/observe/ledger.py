"""Record what this rank sends, receives and computes: every operation of torch.distributed.

    with Ledger() as ledger:
        with ledger.span("step"):
            loss.backward()
    ledger.events          # list of trace.Event: the spans and the communications, with times
    ledger.trace         # list of trace.Event: what `costs.traces.replay` replays
    ledger.sent_bytes      # bytes that left this rank's sockets, as the operating system counts

Every operation of torch.distributed passes torch's dispatcher, also one that DDP's C++ code starts;
so do the functional collectives, which DTensor uses. A TorchDispatchMode sees them there, and
counts the FLOPs of what is computed between them. Without an open ledger nothing is intercepted.
What is sent without an operation of torch, such as by a kernel of your own, is not seen.

An event ends when gloo has finished the operation; a functional collective and a point-to-point
message end when this rank has waited for them. Under NCCL an event ends when the operation is
enqueued on the GPU, because there a wait blocks the GPU's stream and not this process; synchronize
the device inside a span to see the whole.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ... import comm
from ...trace import Event
from . import sockets
from .trace import RankTrace

_VERBS = {  # c10d's names of its operations -> the usual ones
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
    # torch.distributed._functional_collectives, which may also end in "_" or "_out"
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
_DESUGARED = {"AsyncCollectiveTensor", "DTensor"}  # by name: to import DTensor takes a second
_FUNCTIONAL = "_c10d_functional"
_SILENT = {"check_for_nan", "_wrap_tensor_autograd"}  # operations that send nothing
_FILL_NOTHING = {"send", "barrier"}
comm.INTERNAL.add(__file__)


class Ledger(TorchDispatchMode):
    """A record of what this rank sends, receives and waits for, and of the spans that you name."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes: int | None = None  # None where the operating system cannot tell: NCCL
        self._open: list[dict[str, Any]] = []
        # functional collectives in flight, by the address of the tensor that they fill
        self._promised: dict[int, dict[str, Any]] = {}
        self._trace = RankTrace(dist.get_rank())

    @property
    def events(self) -> list[Event]:
        """The spans and communications so far, by start; what has not finished yet ends now."""
        return sorted(_events(self._open), key=lambda event: event.start)

    @property
    def trace(self) -> list[Event]:
        """The trace of this rank so far: computing, with FLOPs, communications, and waits."""
        self._trace.note_compute(time.perf_counter())
        return _events(self._trace.steps)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Name the computing inside the block."""
        entry = self._begin("compute", name, (dist.get_rank(),))
        before = self._trace.flops
        self._trace.enter(name)
        try:
            yield
        finally:
            self._trace.leave()
            entry["flops"] = self._trace.flops - before
            entry["end"] = time.perf_counter()

    def __enter__(self) -> "Ledger":
        self._before = sockets.sent() if dist.get_backend() == "gloo" else None
        _watch_waits(self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _stop_watching(self)
        after = sockets.sent()
        if self._before is not None and after is not None:
            self.sent_bytes = after - self._before
        now = time.perf_counter()
        for entry in self._open:
            entry["end"] = entry["end"] or now
        self._promised.clear()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not _DESUGARED.isdisjoint(each.__name__ for each in types):
            return NotImplemented  # DTensor then calls plain operations, which come by here
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
            self._trace.use((*args, *kwargs.values()))
        result = func(*args, **kwargs)
        self._trace.compute(func, args, kwargs, result)
        return result

    def _communicate(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        functional = func.namespace == _FUNCTIONAL
        plain = name.removesuffix("_out").removesuffix("_") if functional else name
        op = _VERBS.get(plain, name)
        leaves = tree_leaves((args, kwargs))
        group = _ranks_of_name(args[-1]) if functional else _ranks_of(leaves)
        self._trace.use(args)
        entry = self._begin("communicate", op, group)
        if op in ("send", "receive"):
            entry |= _ends(name, group, args[1 if functional else 2 :])
        result = func(*args, **kwargs)
        entry["nbytes"] = 0 if op == "barrier" else _payload((*args, result))
        if name == "alltoall_base_":
            entry["pieces"] = _pieces(args, group)
        filled = [] if op in _FILL_NOTHING else _tensors(result) or _tensors(args[0])
        self._trace.issue(entry, filled)
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
        """Note the end when the future of `work` says so; without a future, at the first wait."""
        if work is None:
            return _end(entry)
        _awaited[id(work)] = work, self, entry  # keeping `work` keeps its id from being reused
        with suppress(RuntimeError):  # a point-to-point message has no future
            work.get_future().add_done_callback(lambda _: _end(entry))

    def _waited(self, entry: dict[str, Any] | None, start: float) -> None:
        _end(entry)
        if entry is not None:
            self._trace.wait(entry["number"], start)


_awaited: dict[int, tuple[Any, Ledger, dict[str, Any]]] = {}  # by id of a Work, of all ledgers
_ledgers: list[Ledger] = []  # that are open; ranks that are threads have one each
_wait = dist.Work.wait  # torch's own, while a ledger is open


def _watch_waits(ledger: Ledger) -> None:
    """Let an open ledger see what its rank waits for."""
    global _wait
    if not _ledgers:
        _wait = dist.Work.wait
        # setattr, because to mypy a plain assignment is an error
        setattr(dist.Work, "wait", _noted_wait)  # noqa: B010
    _ledgers.append(ledger)


def _stop_watching(ledger: Ledger) -> None:
    _ledgers.remove(ledger)
    for name in [name for name, (_, owner, _) in _awaited.items() if owner is ledger]:
        del _awaited[name]
    if not _ledgers:
        setattr(dist.Work, "wait", _wait)  # noqa: B010


def _noted_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
    start = time.perf_counter()
    result = _wait(work, *args, **kwargs)
    _, ledger, entry = _awaited.pop(id(work), (None, None, None))
    if ledger is not None and entry is not None:
        if entry.get("peer", 0) is None:
            entry["peer"] = entry["group"][work._source_rank()]
        ledger._waited(entry, start)
    return result


def _end(entry: dict[str, Any] | None) -> None:
    """Note the end now, unless it is noted: what outlives the ledger ended when that was closed."""
    if entry is not None and entry["end"] is None:
        entry["end"] = time.perf_counter()


def _events(entries: list[dict[str, Any]]) -> list[Event]:
    now = time.perf_counter()
    return [Event(**{**entry, "end": entry["end"] or now}) for entry in entries if entry]


def _ends(name: str, group: tuple[int, ...], arguments: Any) -> dict[str, Any]:
    """Return the other rank and the tag of a message.

    The source of a message from any source is None until it has arrived.
    """
    if name == "recv_any_source_":
        return {"peer": None, "tag": arguments[0]}
    return {"peer": group[arguments[0]], "tag": arguments[1]}


def _tensors(args: Any) -> list[Tensor]:
    return [x for x in tree_leaves(args) if isinstance(x, Tensor)]


def _payload(args: Any) -> int:
    """Return the bytes of the largest argument: c10d passes outputs and inputs separately."""
    sizes = [sum(x.numel() * x.element_size() for x in _tensors(arg)) for arg in args]
    return max(sizes, default=0)


def _pieces(args: Any, group: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the bytes of an all-to-all for each other rank; None if all pieces are alike."""
    _, x, _, _, rows = args[:5]
    if not rows:
        return None
    to = zip(group, rows, strict=True)
    return tuple(0 if rank == dist.get_rank() else count * x[:1].nbytes for rank, count in to)


def _ranks_of(leaves: list[Any]) -> tuple[int, ...]:
    """Return the ranks of the group among an operation's arguments."""
    for leaf in leaves:
        if not isinstance(leaf, torch.ScriptObject):
            continue
        if leaf._type().qualified_name().endswith("ProcessGroup"):
            return tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(leaf)))
    return (dist.get_rank(),)


def _ranks_of_name(group: Any) -> tuple[int, ...]:
    """Return the ranks of the group that a functional collective names."""
    if not isinstance(group, dist.ProcessGroup):
        group = dist.distributed_c10d._resolve_process_group(group)
    return tuple(dist.get_process_group_ranks(group))


def _works(result: Any) -> Iterator[Any]:
    """List the work handles among an operation's results."""
    for leaf in tree_leaves(result):
        if isinstance(leaf, torch.ScriptObject):
            yield dist.Work.unbox(leaf)
