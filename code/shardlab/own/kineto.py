"""Read what torch's profiler (Kineto) writes, one file a rank, as one recording.

What a file says of a collective depends on the version of torch. From 2.2 on, NCCL's kernels carry
its name, sizes and group; some lack them, and the `record_param_comms` with the same External id
has them. Before, the kernel's correlation leads to the call that launched it, and that call stands
inside a `record_param_comms`. Where neither is there, as often on ROCm, the kernel's name says which
collective it was, but not its size. On gloo, which has no kernels, the operation `c10d::allreduce_`
has the shapes, and `gloo:all_reduce` on another thread the end; without kernels, a rank computes
while one of torch's operations, such as `aten::mm`, runs.
Fields: https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ParamCommsUtils.hpp
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from shardlab.files import given
from shardlab.files.arguments import checked
from shardlab.trace import Event

from . import recording
from .recording import Recording
from .stream import Stream

LONGEST_NAME = 200  # characters of a kernel's name that are kept
SORTS = {  # the first that fits a kernel's name
    "collectives": r"nccl|rccl|deep_?ep|nvshmem|internode|intranode",
    "attention": r"flash|fmha|attn|attention",
    "products": r"gemm|cutlass|nvjet|cublas|Cijk",
    "copies": r"memcpy|memset|copy_kernel",
}
HOST_SORTS = {  # the first that fits the name of an operation on a CPU
    "attention": r"attention",
    "products": r"::(linear|matmul|\w*mm)$",
    "copies": r"::(copy_|to|clone|_to_copy)$",
}
_LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime"}
_KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
_NAMES = ("record_param_comms", "c10d::", "gloo:", "ProfilerStep#", "aten::")
_NAME = "Collective name"  # the field that says that the others are there, too


class _Span(NamedTuple):
    """An event of a file, with times in microseconds from the file's base."""

    name: str
    sort: str
    thread: Any
    start: float
    end: float
    args: dict[str, Any]

    def holds(self, other: "_Span | Event") -> bool:
        return self.start <= other.start < self.end


_ALWAYS = _Span("", "", None, float("-inf"), float("inf"), {})


@dataclass
class _Rank:
    """What one file says."""

    name: str
    kernels: list[_Span] = field(default_factory=list)
    records: list[_Span] = field(default_factory=list)  # record_param_comms
    operations: list[_Span] = field(default_factory=list)  # of torch on the host, such as aten::mm
    launches: dict[Any, _Span] = field(default_factory=dict)  # by correlation
    calls: list[_Span] = field(default_factory=list)  # operations, such as c10d::allreduce_
    runs: list[_Span] = field(default_factory=list)  # by gloo for them, such as gloo:all_reduce
    steps: dict[str, _Span] = field(default_factory=dict)
    ways: Counter[str] = field(default_factory=Counter)  # how collectives were found
    unknown: int = 0  # collectives of which kind, group or peer is not told

    rank: int = 0
    world: int = 0  # 0: not told
    base: int = 0  # ns, of the file's clock
    groups: Sequence[Any] = ()  # name and ranks of each
    one_group: bool = True


@given.in_one_line()
@checked
def read(paths: Sequence[str | Path], *, step: int | None = None) -> Recording:
    """Read the traces of one run, a file for each rank.

    step: the number of a ProfilerStep; None takes the last one that all files have, or everything
    where no file has steps. Errors: ValueError for another tool's file, two files of one rank, and
    files without a common step.
    """
    if not paths:
        raise ValueError("no files; pass the trace of each rank")
    files: list[_Rank] = []
    missing: list[str] = []
    for path in paths:
        stream = Stream(path)
        files.append(_scan(stream, alone=len(paths) == 1))
        if stream.cut:
            missing.append(f"{stream.name} ends early, after {stream.count:,} whole events")
    world = max(max(one.world, one.rank + 1) for one in files)
    chosen = _step(files, step)
    zero = min(one.base for one in files)
    events: list[Event] = []
    for one in files:
        window = one.steps[chosen] if chosen else _ALWAYS
        collectives = _on_gpu if one.records or not one.calls else _on_gloo
        calls = list(filter(window.holds, collectives(one, world)))
        computing = _computing(one.rank, filter(window.holds, one.kernels or one.operations))
        shift = (one.base - zero) / 1e3  # us
        events += [
            replace(each, start=each.start + shift, end=each.end + shift)
            for each in (*calls, *computing)
        ]
        missing += _missing(one, calls)
    return recording.assembled(
        [one.rank for one in files],
        events,
        world_size=world,
        unit=1e-6,
        dialect=", ".join(sorted({way for one in files for way in one.ways})) or "none",
        missing=missing,
        step=chosen,
        on_gpu=any(one.kernels for one in files),
    )


# ---- one file ------------------------------------------------------------------------------------


def _scan(stream: Stream, alone: bool) -> _Rank:
    """Keep of a file what says something about kernels, collectives and steps."""
    found = _Rank(stream.name)
    on_gpu: dict[str, _Span] = {}
    for event in stream:
        name, cat = event.get("name"), event.get("cat")
        if event.get("ph") != "X" or not isinstance(name, str) or not isinstance(cat, str):
            continue
        if cat not in _KERNELS | _LAUNCHES and not name.startswith(_NAMES):
            continue
        span = _span(event, f"of event {stream.count} in {stream.name}")
        if cat in _LAUNCHES:
            found.launches[_hashable(span.args.get("correlation"))] = span
        elif cat in _KERNELS:
            kind = sort(name) if cat == "kernel" else "copies"
            args = span.args if kind == "collectives" else {}
            found.kernels.append(span._replace(sort=kind, args=args))
        elif re.fullmatch(r"ProfilerStep#\d+", span.name):
            (on_gpu if cat == "gpu_user_annotation" else found.steps)[span.name] = span
        elif cat != "gpu_user_annotation":
            _keep_of_host(found, span)
    found.steps |= on_gpu  # kernels run later than the host's step
    for spans in (found.kernels, found.records, found.runs, found.calls, found.operations):
        spans.sort(key=lambda span: (span.start, -span.end))
    _fields(found, stream.head, alone)
    return found


def _keep_of_host(found: _Rank, span: _Span) -> None:
    if span.name.startswith("aten::"):
        found.operations.append(span._replace(sort=sort(span.name, HOST_SORTS), args={}))
    elif span.name.startswith("record_param_comms"):
        found.records.append(span)
    else:
        (found.runs if span.name.startswith("gloo:") else found.calls).append(span)


def _fields(found: _Rank, head: Mapping[str, Any], alone: bool) -> None:
    """Read the fields beside the events; the rank may stand in collectives or in the name only."""
    info = head.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    told = [info.get("rank"), *(each.args.get("Rank") for each in found.records)]
    told += map(int, re.findall(r"rank[_-]?(\d{1,7})", Path(found.name).name))
    told += [0] if alone else []
    known = [each for each in told if each is not None]
    if not known:
        raise ValueError(f"{found.name} does not say its rank; call it rank0.json, and so on")
    found.rank = recording.whole(known[0], f"{found.name}: rank", recording.MOST_RANKS)
    found.world = recording.whole(info.get("world_size") or 0, "world_size", recording.MOST_RANKS)
    base = head.get("baseTimeNanoseconds", 0)
    found.base = recording.whole(base, f"{found.name}: baseTimeNanoseconds", 1 << 63)
    groups = info.get("pg_config")
    found.groups = groups if isinstance(groups, list) else []
    found.one_group = (info.get("pg_count") or 1) == 1


def sort(name: str, sorts: Mapping[str, str] = SORTS) -> str:
    """Sort a kernel by its name."""
    return next((kind for kind, words in sorts.items() if re.search(words, name, re.I)), "rest")


def _span(event: dict[str, Any], where: str) -> _Span:
    start = recording.finite(event.get("ts"), f"ts {where}")
    length = recording.finite(event.get("dur", 0), f"dur {where}")
    if length < 0:
        raise ValueError(f"dur={length:g} {where} is negative")
    args = event.get("args")
    args = args if isinstance(args, dict) else {}
    name, thread = event["name"][:LONGEST_NAME], _hashable(event.get("tid"))
    return _Span(name, event["cat"], thread, start, start + length, args)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | str) else None


def _step(files: Sequence[_Rank], step: int | None) -> str | None:
    common = set.intersection(*(set(one.steps) for one in files))
    wanted = common if step is None else common & {f"ProfilerStep#{step}"}
    if wanted:
        return max(wanted, key=lambda name: int(name.partition("#")[2]))
    if step is None and not any(one.steps for one in files):
        return None
    asked = "no step" if step is None else f"ProfilerStep#{step} is not"
    steps = [f"{one.name}: {', '.join(sorted(one.steps)) or 'none'}" for one in files[:4]]
    raise ValueError(f"{asked} in all files ({'; '.join(steps)})")


# ---- collectives ---------------------------------------------------------------------------------


def _on_gpu(one: _Rank, world: int) -> Iterator[Event]:
    """Yield a rank's collectives in order; count in `ways` how each was found."""
    by_id = {_hashable(each.args.get("External id")): each for each in one.records}
    by_id.pop(None, None)
    by_thread: dict[Any, list[_Span]] = {}
    for each in one.records:
        by_thread.setdefault(each.thread, []).append(each)
    for kernel in one.kernels:
        if kernel.sort != "collectives":
            continue
        args, way = kernel.args, "fields of kernels (torch 2.2 and later)"
        if _NAME not in args:
            record = by_id.get(_hashable(args.get("External id")))
            way = "External id (torch 2.4 and later)"
            if record is None or _NAME not in record.args:
                launch = one.launches.get(_hashable(args.get("correlation")))
                around = launch and _enclosing(by_thread.get(launch.thread, []), launch.start)
                record, way = around or record, "enclosing call (torch to 2.1)"
            args = record.args if record else {}
        if event := _event(one, kernel, args, world):
            one.ways[way if args else "names of kernels only"] += 1
            yield event
        else:
            one.unknown += 1


def _enclosing(spans: Sequence[_Span], at: float) -> _Span | None:
    """Return the last span to begin before a moment, if the moment is inside it."""
    place = bisect_right(spans, at, key=lambda span: span.start)
    return spans[place - 1] if place and at <= spans[place - 1].end else None


def _event(one: _Rank, kernel: _Span, args: dict[str, Any], world: int) -> Event | None:
    # NCCL runs an all-to-all as sends and receives.
    op = recording.verb(str(args.get(_NAME) or kernel.name.replace("SendRecv", "AllToAll")))
    rank, group = one.rank, _group(one, args, world)
    if op is None or rank not in group:
        return None
    peer = None
    if op in recording.MESSAGES:
        peer = args.get("Dst Rank" if op == "send" else "Src Rank")
        if type(peer) is not int or peer not in group or peer == rank:
            return None
    counts = [args.get(f"{side} msg nelems", 0) for side in ("In", "Out")]
    count = max(recording.whole(each, "msg nelems", recording.MOST_NBYTES) for each in counts)
    dtype = args.get("dtype")
    if not count:
        count, dtype = _shapes(args, dtype)
    nbytes = recording.message_bytes(op, count, dtype)
    number = args.get("Seq") if type(args.get("Seq")) is int else None
    times = kernel.start, kernel.end
    return Event(rank, "communicate", op, group, nbytes, *times, peer=peer, number=number)


def _shapes(args: dict[str, Any], dtype: Any = None) -> tuple[int, Any]:
    """Return the elements of the largest of the first two inputs, and the type of the first."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    dims, types = (each[:2] if isinstance(each, list) else [] for each in (dims, types))
    named = [each for each in types if recording.message_bytes("", 1, each)]
    return max(map(recording.elements, dims), default=0), named[0] if named else dtype


def _group(one: _Rank, args: dict[str, Any], world: int) -> tuple[int, ...]:
    """Return the ranks of a collective's group, or () where the file does not tell."""
    name, listed = args.get("Process Group Name"), [args.get("Process Group Ranks")]
    for each in one.groups:
        if isinstance(each, dict) and name is not None and each.get("pg_name") == name:
            listed.append(each.get("ranks"))
    told = next(filter(None, map(recording.listed_ranks, listed)), ())
    return told or (tuple(range(world)) if args.get("Group size", world) == world else ())


def _on_gloo(one: _Rank, world: int) -> Iterator[Event]:
    """Pair each operation with what gloo ran for it: the first of that kind that began later."""
    rank, group = one.rank, tuple(range(world))
    outer: _Span | None = None
    for call in one.calls:
        op = recording.verb(call.name)
        again = outer and call.name == outer.name and call.end <= outer.end
        if op is None or again:  # under a dispatch mode an operation passes the profiler twice
            continue
        outer = call
        # gloo's reduce-scatter is an all-reduce of the whole
        names = {op, "all_reduce"} if op == "reduce_scatter" else {op}
        later = (each for each in one.runs if each.start >= call.start)
        run = next((each for each in later if recording.verb(each.name) in names), None)
        if run:
            one.runs.remove(run)
        peer = None
        if op in recording.MESSAGES:
            values = call.args.get("Concrete Inputs")
            text = "".join(map(str, values[2:3])) if isinstance(values, list) else ""
            peer = int(text) if re.fullmatch(r"\d{1,7}", text) else rank
            if peer >= world or peer == rank:
                one.unknown += 1
                continue
        count, dtype = _shapes(call.args, _shapes(run.args)[1] if run else None)
        one.ways["gloo"] += 1
        end = max(call.end, run.end if run else 0.0)
        nbytes = recording.message_bytes(op, count, dtype)
        yield Event(rank, "communicate", op, group, nbytes, call.start, end, peer=peer)


def _computing(rank: int, kernels: Iterable[_Span]) -> list[Event]:
    """Merge kernels that follow each other or overlap, so that a rank computes one thing at once."""
    spans: list[tuple[str, float, float]] = []
    for kernel in kernels:
        if kernel.sort == "collectives":
            continue
        op, start, end = spans[-1] if spans else ("", 0.0, float("-inf"))
        if kernel.start <= end and kernel.sort == op:
            spans[-1] = op, start, max(end, kernel.end)
        elif kernel.end > end:
            spans.append((kernel.sort, max(kernel.start, end), kernel.end))
    return [Event(rank, "compute", op, (rank,), 0, start, end) for op, start, end in spans]


def _missing(one: _Rank, calls: Sequence[Event]) -> Iterator[str]:
    bare = sum(not call.nbytes and call.op != "barrier" for call in calls)
    if one.unknown:
        yield f"rank {one.rank}: {one.unknown} collectives whose kind or group is not told"
    if bare:
        yield f"rank {one.rank}: {bare} of {len(calls)} collectives without a size"
    if one.ways["gloo"] and not one.one_group:
        yield f"rank {one.rank}: gloo's groups are not told; all ranks are taken"
