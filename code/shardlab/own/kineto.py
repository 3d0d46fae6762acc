"""Read what torch's profiler (Kineto) writes, one file a rank, as one recording.

What a file says of a collective depends on the version of torch. From 2.2 on, NCCL's kernels carry
its name, sizes and group; some lack them, and the `record_param_comms` with the same External id
has them. Before, the kernel's correlation leads to the call that launched it, and that call stands
inside a `record_param_comms`. Where neither is there, as often on ROCm, the kernel's name says which
collective it was, but not its size. On gloo, which has no kernels, the operation `c10d::allreduce_`
has the shapes, and `gloo:all_reduce` on another thread the end.
Fields: https://github.com/pytorch/pytorch/blob/main/torch/csrc/distributed/c10d/ParamCommsUtils.hpp
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from shardlab.files import given
from shardlab.files.arguments import checked
from shardlab.trace import Event

from . import recording
from .recording import Kernel, Recording
from .stream import MOST_BYTES, MOST_EVENTS, Stream

LONGEST_NAME = 200  # characters of a kernel's name that are kept
SORTS = {  # the first that fits a kernel's name
    "collectives": r"nccl|rccl|deep_?ep|nvshmem|internode|intranode",
    "attention": r"flash|fmha|attn|attention",
    "products": r"gemm|cutlass|nvjet|cublas|Cijk",
    "copies": r"memcpy|memset|copy_kernel",
}
_SORTS = [(sort, re.compile(words, re.I)) for sort, words in SORTS.items()]
_OP = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|reduce|send_?recv", re.I
)
_LAUNCHES = {"cuda_runtime", "cuda_driver", "hip_runtime"}
_KERNELS = {"kernel", "gpu_memcpy", "gpu_memset"}
_NAMES = ("record_param_comms", "c10d::", "gloo:", "ProfilerStep#")
_STEP = re.compile(r"ProfilerStep#(\d+)")


class _Span(NamedTuple):
    """An event of a file, with times in microseconds from the file's base."""

    name: str
    sort: str
    thread: Any
    start: float
    end: float
    args: dict[str, Any]


@dataclass
class _Rank:
    """What one file says."""

    name: str
    head: dict[str, Any]
    kernels: list[_Span] = field(default_factory=list)
    records: list[_Span] = field(default_factory=list)  # record_param_comms
    launches: dict[Any, _Span] = field(default_factory=dict)  # by correlation
    calls: list[_Span] = field(default_factory=list)  # operations, such as c10d::allreduce_
    runs: list[_Span] = field(
        default_factory=list
    )  # what gloo ran for them, such as gloo:all_reduce
    steps: dict[str, _Span] = field(default_factory=dict)
    ways: Counter[str] = field(default_factory=Counter)  # how collectives were found
    unknown: int = 0  # collectives of which kind, group or peer is not told

    @property
    def info(self) -> Mapping[str, Any]:
        info = self.head.get("distributedInfo")
        return info if isinstance(info, dict) else {}

    @property
    def base(self) -> int:  # ns
        base = self.head.get("baseTimeNanoseconds", 0)
        return recording.whole(base, f"{self.name}: baseTimeNanoseconds", 1 << 63)


@checked
def sort_of(name: str) -> str:
    """Return the class of a kernel by its name: one of `SORTS`, or "rest"."""
    return next((sort for sort, words in _SORTS if words.search(name)), "rest")


@given.in_one_line()
@checked
def read(
    paths: Sequence[str | Path],
    *,
    step: int | None = None,
    most_bytes: int = MOST_BYTES,
    most_events: int = MOST_EVENTS,
) -> Recording:
    """Read the traces of one run, a file for each rank.

    step: the number of a ProfilerStep; None takes the last one that all files have, or everything
    where no file has steps. most_bytes, most_events: of each file, uncompressed. Errors: ValueError
    for another tool's file, two files of one rank, and files without a common step.
    """
    if not paths:
        raise ValueError("no files; pass the trace of each rank")
    files: dict[int, _Rank] = {}
    missing: list[str] = []
    for path in paths:
        stream = Stream(path, most_bytes=most_bytes, most_events=most_events)
        one = _scan(stream)
        number = _number(one, alone=len(paths) == 1)
        recording.only_once([*files, number])
        files[number] = one
        if stream.cut:
            whole = f"{stream.count:,} whole events"
            missing.append(f"rank {number}: the file ends early, after {whole}")
    sizes = [one.info.get("world_size") or 0 for one in files.values()]
    whole_sizes = [recording.whole(n, "world_size", recording.MOST_RANKS) for n in sizes]
    world = max(max(files) + 1, *whole_sizes)
    chosen = _step(files, step)
    zero = min(one.base for one in files.values())
    events: list[Event] = []
    kernels = {}
    for rank, one in sorted(files.items()):
        begin, end = float("-inf"), float("inf")
        if chosen:
            begin, end = one.steps[chosen].start, one.steps[chosen].end
        shift = (one.base - zero) / 1e3  # us
        calls = [call for call in _calls(one, world, rank) if begin <= call.start < end]
        kernels[rank] = [
            Kernel(each.name, each.sort, each.start + shift, each.end + shift)
            for each in one.kernels
            if begin <= each.start < end
        ]
        events += [replace(each, start=each.start + shift, end=each.end + shift) for each in calls]
        events += _computing(rank, kernels[rank])
        missing += _missing(one, rank, calls)
    ways = sorted({way for one in files.values() for way in one.ways})
    return recording.assembled(
        list(files),
        world,
        events,
        unit=1e-6,
        dialect=", ".join(ways) or "none",
        missing=missing,
        kernels=kernels,
        step=chosen,
    )


# ---- one file ------------------------------------------------------------------------------------


def _scan(stream: Stream) -> _Rank:
    """Keep of a file what says something about kernels, collectives and steps."""
    found = _Rank(stream.name, stream.head)
    on_gpu: dict[str, _Span] = {}
    for event in stream:
        name, sort = event.get("name"), event.get("cat")
        if event.get("ph") != "X" or not isinstance(name, str) or not isinstance(sort, str):
            continue
        if sort not in _KERNELS | _LAUNCHES and not name.startswith(_NAMES):
            continue
        span = _span(event, f"of event {stream.count} in {stream.name}")
        if sort in _LAUNCHES:
            found.launches[_hashable(span.args.get("correlation"))] = span
        elif sort in _KERNELS:
            kind = "copies" if sort != "kernel" else sort_of(name)
            args = span.args if kind == "collectives" else {}
            found.kernels.append(span._replace(sort=kind, args=args))
        elif _STEP.fullmatch(span.name):
            (on_gpu if sort == "gpu_user_annotation" else found.steps)[span.name] = span
        elif name.startswith("record_param_comms"):
            found.records.append(span)
        elif sort != "gpu_user_annotation":
            (found.runs if name.startswith("gloo:") else found.calls).append(span)
    found.steps |= on_gpu  # kernels run later than the host's step
    for spans in (found.kernels, found.records, found.runs):
        spans.sort(key=lambda span: span.start)
    return found


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


def _number(one: _Rank, alone: bool) -> int:
    """Return the rank of a file, from its fields, its collectives or its name."""
    rank = one.info.get("rank")
    if rank is None:
        rank = next((each.args["Rank"] for each in one.records if "Rank" in each.args), None)
    if rank is None and (named := re.search(r"rank[_-]?(\d{1,7})", Path(one.name).name)):
        rank = int(named[1])
    if rank is None and alone:
        rank = 0
    if rank is None:
        raise ValueError(f"{one.name} does not say its rank; call the file rank0.json, and so on")
    return recording.whole(rank, f"{one.name}: rank", recording.MOST_RANKS)


def _step(files: Mapping[int, _Rank], step: int | None) -> str | None:
    common = set.intersection(*(set(one.steps) for one in files.values()))
    wanted = common if step is None else common & {f"ProfilerStep#{step}"}
    if wanted:
        return max(wanted, key=lambda name: int(name.partition("#")[2]))
    if step is None and not any(one.steps for one in files.values()):
        return None
    what = "the files have no step in common"
    if step is not None:
        what = f"ProfilerStep#{step} is not in all files"
    first = [
        f"rank {rank}: {', '.join(sorted(one.steps)) or 'none'}" for rank, one in files.items()
    ]
    raise ValueError(f"{what} ({'; '.join(first[:4])})")


# ---- collectives ---------------------------------------------------------------------------------


def _calls(one: _Rank, world: int, rank: int) -> list[Event]:
    """List a rank's collectives in order; count in `ways` how each was found."""
    if one.calls and not one.records:
        return list(_on_gloo(one, world, rank))
    by_id = {_hashable(each.args.get("External id")): each for each in one.records}
    by_id.pop(None, None)
    by_thread: dict[Any, list[_Span]] = {}
    for each in one.records:
        by_thread.setdefault(each.thread, []).append(each)
    found = []
    for kernel in one.kernels:
        if kernel.sort != "collectives":
            continue
        args, way = kernel.args, "fields of kernels (torch 2.2 and later)"
        if "Collective name" not in args:
            record = by_id.get(_hashable(args.get("External id")))
            way = "External id (torch 2.4 and later)"
            if record is None or "Collective name" not in record.args:
                launch = one.launches.get(_hashable(args.get("correlation")))
                around = launch and _enclosing(by_thread.get(launch.thread, []), launch.start)
                record, way = around or record, "enclosing call (torch to 2.1)"
            args = record.args if record else {}
        event = _event(one, kernel, args, world, rank)
        if event is None:
            one.unknown += 1
        else:
            one.ways[way if args else "names of kernels only"] += 1
            found.append(event)
    return found


def _enclosing(spans: Sequence[_Span], at: float) -> _Span | None:
    """Return the last span to begin before a moment, if the moment is inside it."""
    place = bisect_right(spans, at, key=lambda span: span.start)
    return spans[place - 1] if place and at <= spans[place - 1].end else None


def _event(one: _Rank, kernel: _Span, args: dict[str, Any], world: int, rank: int) -> Event | None:
    named = _OP.search(kernel.name)
    name = str(args.get("Collective name") or (named[0] if named else ""))
    op = recording.verb("alltoall" if name.lower() == "sendrecv" else name)
    group = _group(one, args, world)
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
    nbytes = count * recording.element_bytes(dtype)
    number = args.get("Seq")
    return recording.communication(
        rank, op, group, nbytes, kernel.start, kernel.end, number=number, peer=peer
    )


def _shapes(args: dict[str, Any], dtype: Any = None) -> tuple[int, Any]:
    """Return the elements of the largest of the first two inputs, and the type of the first."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    dims = dims if isinstance(dims, list) else []
    types = types if isinstance(types, list) else []
    named = [each for each in types[:2] if recording.element_bytes(each)]
    return max(map(recording.elements, dims[:2]), default=0), named[0] if named else dtype


def _group(one: _Rank, args: dict[str, Any], world: int) -> tuple[int, ...]:
    """Return the ranks of a collective's group, or () where the file does not tell."""
    listed = recording.listed_ranks(args.get("Process Group Ranks"))
    name = args.get("Process Group Name")
    groups = one.info.get("pg_config")
    if not listed and name is not None and isinstance(groups, list):
        ours = [each for each in groups if isinstance(each, dict) and each.get("pg_name") == name]
        listed = recording.listed_ranks(ours[0].get("ranks")) if ours else ()
    if listed:
        return listed
    size = args.get("Group size", world)
    return tuple(range(world)) if size == world else ()


def _on_gloo(one: _Rank, world: int, rank: int) -> Iterator[Event]:
    """Pair each operation with what gloo ran for it: the first of that kind that began later."""
    outer: _Span | None = None
    for call in sorted(one.calls, key=lambda each: (each.start, -each.end)):
        op = recording.verb(call.name)
        again = outer and call.name == outer.name and call.end <= outer.end
        if op is None or again:  # under a dispatch mode an operation passes the profiler twice
            continue
        outer = call
        # gloo's reduce-scatter is an all-reduce of the whole
        names = {op, "all_reduce"} if op == "reduce_scatter" else {op}
        later = (
            each
            for each in one.runs
            if each.start >= call.start and recording.verb(each.name) in names
        )
        run = next(later, None)
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
        nbytes = count * recording.element_bytes(dtype)
        group = tuple(range(world))
        yield recording.communication(rank, op, group, nbytes, call.start, end, peer=peer)


def _computing(rank: int, kernels: Sequence[Kernel]) -> list[Event]:
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


def _missing(one: _Rank, rank: int, calls: Sequence[Event]) -> Iterator[str]:
    if one.unknown:
        yield f"rank {rank}: {one.unknown} collectives whose kind or group is not told"
    if bare := sum(not call.nbytes and call.op != "barrier" for call in calls):
        yield f"rank {rank}: {bare} of {len(calls)} collectives without a size"
    if one.ways["gloo"] and (one.info.get("pg_count") or 1) != 1:
        yield f"rank {rank}: gloo's groups are not told; all ranks are taken"
