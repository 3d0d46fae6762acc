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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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


@dataclass
class _Rank:
    """What one file says, with times in microseconds from the file's base."""

    name: str
    head: dict[str, Any]
    cut: int | None = None  # how many whole events a file has that ends early
    kernels: list[dict[str, Any]] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)  # record_param_comms
    launches: dict[Any, tuple[Any, float]] = field(default_factory=dict)  # correlation -> where
    calls: list[dict[str, Any]] = field(default_factory=list)  # c10d::allreduce_ and its like
    runs: list[dict[str, Any]] = field(default_factory=list)  # gloo:all_reduce and its like
    steps: dict[str, tuple[float, float]] = field(default_factory=dict)
    ways: Counter[str] = field(default_factory=Counter)  # how collectives were found

    @property
    def info(self) -> Mapping[str, Any]:
        info = self.head.get("distributedInfo")
        return info if isinstance(info, dict) else {}


@dataclass(frozen=True)
class _Call:
    """One collective of a rank."""

    op: str
    nbytes: int
    group: tuple[int, ...]
    start: float  # us
    end: float  # us
    number: int | None = None
    peer: int | None = None


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
    for path in paths:
        one = _scan(Stream(path, most_bytes=most_bytes, most_events=most_events))
        number = _number(one, alone=len(paths) == 1)
        recording.only_once([*files, number])
        files[number] = one
    ranks = tuple(sorted(files))
    sizes = [one.info.get("world_size") or 0 for one in files.values()]
    world = max(
        ranks[-1] + 1, *(recording.whole(n, "world_size", recording.MOST_RANKS) for n in sizes)
    )
    chosen = _step(files, step)
    zero = min(_base(one) for one in files.values())
    events: list[tuple[Event, int | None]] = []
    kernels = {}
    missing = _missing_files(files, world)
    for rank in ranks:
        one = files[rank]
        begin, end = one.steps[chosen] if chosen else (float("-inf"), float("inf"))
        shift = (_base(one) - zero) / 1e3  # us
        calls = [call for call in _calls(one, world, rank) if begin <= call.start < end]
        mine = [each for each in one.kernels if begin <= each["ts"] < end]
        kernels[rank] = [_kernel(each, shift) for each in sorted(mine, key=lambda x: x["ts"])]
        events += [(_event(call, rank, shift), call.number) for call in calls]
        events += [(event, None) for event in _computing(rank, kernels[rank])]
        missing += _missing_calls(one, rank, calls)
    origin = min((event.start for event, _ in events), default=0.0)
    events.sort(key=lambda each: (each[0].start, each[0].rank))
    return Recording(
        ranks=ranks,
        world_size=world,
        step=chosen,
        dialect=", ".join(sorted({way for one in files.values() for way in one.ways})) or "none",
        events=[_moved(event, origin) for event, _ in events],
        kernels={rank: [_moved(each, origin) for each in some] for rank, some in kernels.items()},
        numbers={i: number for i, (_, number) in enumerate(events) if number is not None},
        missing=tuple(missing),
    )


# ---- one file ------------------------------------------------------------------------------------


def _scan(stream: Stream) -> _Rank:
    """Keep of a file what says something about kernels, collectives and steps."""
    found = _Rank(stream.name, stream.head)
    on_gpu: dict[str, tuple[float, float]] = {}
    for event in stream:
        if event.get("ph") == "X" and _wanted(event.get("name"), event.get("cat")):
            _keep(found, on_gpu, event, f"of event {stream.count} in {stream.name}")
    found.cut = stream.count if stream.cut else None
    found.steps |= on_gpu  # kernels run later than the host's step
    return found


def _wanted(name: Any, sort: Any) -> bool:
    if not isinstance(name, str) or not isinstance(sort, str):
        return False
    return sort in _KERNELS or sort in _LAUNCHES or name.startswith(_NAMES)


def _keep(
    found: _Rank, on_gpu: dict[str, tuple[float, float]], event: dict[str, Any], where: str
) -> None:
    name, sort, args = event["name"], event["cat"], event.get("args")
    args = args if isinstance(args, dict) else {}
    start = recording.finite(event.get("ts"), f"ts {where}")
    length = recording.finite(event.get("dur", 0), f"dur {where}")
    if length < 0:
        raise ValueError(f"dur={length:g} {where} is negative")
    kept = {"name": name[:LONGEST_NAME], "ts": start, "end": start + length, "args": args}
    kept["tid"] = event.get("tid")
    if sort in _LAUNCHES:
        found.launches[_hashable(args.get("correlation"))] = (kept["tid"], start)
    elif sort in _KERNELS:
        kept["sort"] = "copies" if sort != "kernel" else sort_of(name)
        if kept["sort"] != "collectives":
            kept["args"] = {}
        found.kernels.append(kept)
    elif _STEP.fullmatch(name[:40]):
        spans = on_gpu if sort == "gpu_user_annotation" else found.steps
        spans[name] = (start, start + length)
    elif name.startswith("record_param_comms"):
        found.records.append(kept)
    elif sort != "gpu_user_annotation":
        (found.runs if name.startswith("gloo:") else found.calls).append(kept)


def _hashable(value: Any) -> Any:
    return value if isinstance(value, int | str) else None


def _number(one: _Rank, alone: bool) -> int:
    """Return the rank of a file, from its fields, its collectives or its name."""
    rank = one.info.get("rank")
    if rank is None:
        rank = next((each["args"]["Rank"] for each in one.records if "Rank" in each["args"]), None)
    if rank is None and (named := re.search(r"rank[_-]?(\d{1,7})", Path(one.name).name)):
        rank = int(named[1])
    if rank is None and alone:
        rank = 0
    if rank is None:
        raise ValueError(f"{one.name} does not say its rank; call the file rank0.json, and so on")
    return recording.whole(rank, f"{one.name}: rank", recording.MOST_RANKS)


def _base(one: _Rank) -> int:
    return recording.whole(
        one.head.get("baseTimeNanoseconds", 0), f"{one.name}: baseTimeNanoseconds", 1 << 63
    )


def _step(files: Mapping[int, _Rank], step: int | None) -> str | None:
    names = {rank: set(one.steps) for rank, one in files.items()}
    common = set.intersection(*names.values())
    wanted = f"ProfilerStep#{step}"
    if step is not None and wanted not in common:
        without = [rank for rank, found in names.items() if wanted not in found]
        has = ", ".join(sorted(common)) or "none"
        raise ValueError(f"{wanted} is not in the files of ranks {without[:8]}; all have: {has}")
    if step is not None or common:
        return max(common & {wanted} or common, key=lambda name: int(name.partition("#")[2]))
    if any(names.values()):
        first = [
            f"rank {rank}: {', '.join(sorted(names[rank])) or 'none'}" for rank in list(names)[:4]
        ]
        raise ValueError(f"the files have no step in common ({'; '.join(first)})")
    return None


# ---- collectives ---------------------------------------------------------------------------------


def _calls(one: _Rank, world: int, rank: int) -> list[_Call]:
    """List a rank's collectives in order; count in `ways` how each was found."""
    if one.calls and not one.records:
        return list(_on_gloo(one, world, rank))
    by_id = {}
    by_thread: dict[Any, list[dict[str, Any]]] = {}
    for each in sorted(one.records, key=lambda record: record["ts"]):
        by_id[_hashable(each["args"].get("External id"))] = each
        by_thread.setdefault(_hashable(each["tid"]), []).append(each)
    by_id.pop(None, None)
    starts = {thread: [each["ts"] for each in some] for thread, some in by_thread.items()}
    found = []
    for kernel in sorted(one.kernels, key=lambda each: each["ts"]):
        if kernel["sort"] != "collectives":
            continue
        record: dict[str, Any] | None = None
        args, way = kernel["args"], "fields of kernels (torch 2.2 and later)"
        if "Collective name" not in args:
            record = by_id.get(_hashable(args.get("External id")))
            way = "External id (torch 2.4 and later)"
            if record is None or "Collective name" not in record["args"]:
                thread, at = one.launches.get(_hashable(args.get("correlation")), (None, 0.0))
                thread = _hashable(thread)
                place = bisect_right(starts.get(thread, []), at) - 1
                around = by_thread[thread][place] if place >= 0 else None
                launched = around if around and at <= around["end"] else None
                record, way = launched or record, "enclosing call (torch to 2.1)"
            args = record["args"] if record else {}
        if not args:
            way = "names of kernels only"
        found.append(_call(one, kernel, args, world, rank, way))
    return [call for call in found if call]


def _call(
    one: _Rank, kernel: dict[str, Any], args: dict[str, Any], world: int, rank: int, way: str
) -> _Call | None:
    named = _OP.search(kernel["name"])
    name = args.get("Collective name") or (named[0] if named else "")
    op = recording.verb("alltoall" if str(name).lower() == "sendrecv" else str(name))
    group = _group(one, args, world)
    if op is None or rank not in group:
        one.ways["unknown"] += 1
        return None
    peer = None
    if op in ("send", "receive"):
        peer = args.get("Dst Rank" if op == "send" else "Src Rank")
        if type(peer) is not int or peer not in group or peer == rank:
            one.ways["unknown"] += 1
            return None
    one.ways[way] += 1
    counts = [args.get(f"{side} msg nelems", 0) for side in ("In", "Out")]
    count = max(recording.whole(each, "msg nelems", recording.MOST_NBYTES) for each in counts)
    dtype = args.get("dtype")
    if not count:
        count, dtype = _shapes(args, dtype)
    number = args.get("Seq")
    return _Call(
        op,
        0
        if op == "barrier"
        else min(count * recording.element_bytes(dtype), recording.MOST_NBYTES),
        group,
        kernel["ts"],
        kernel["end"],
        number if type(number) is int else None,
        peer,
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


def _on_gloo(one: _Rank, world: int, rank: int) -> Iterable[_Call]:
    """Pair each operation with what gloo ran for it: the first of that kind that began later."""
    waiting = sorted(one.runs, key=lambda each: each["ts"])
    outer: dict[str, Any] | None = None
    for call in sorted(one.calls, key=lambda each: (each["ts"], -each["end"])):
        op = recording.verb(call["name"])
        again = outer and call["name"] == outer["name"] and call["end"] <= outer["end"]
        if op is None or again:  # under a dispatch mode an operation passes the profiler twice
            continue
        outer = call
        # gloo's reduce-scatter is an all-reduce of the whole
        names = {op, "all_reduce"} if op == "reduce_scatter" else {op}
        later = (
            each
            for each in waiting
            if each["ts"] >= call["ts"] and recording.verb(each["name"]) in names
        )
        run = next(later, None)
        if run:
            waiting.remove(run)
        peer = None
        if op in ("send", "receive"):
            values = call["args"].get("Concrete Inputs")
            text = "".join(map(str, values[2:3])) if isinstance(values, list) else ""
            peer = int(text) if re.fullmatch(r"\d{1,7}", text) else None
            if peer is None or peer >= world or peer == rank:
                one.ways["unknown"] += 1
                continue
        count, dtype = _shapes(call["args"], _shapes(run["args"])[1] if run else None)
        one.ways["gloo"] += 1
        nbytes = 0 if op == "barrier" else count * recording.element_bytes(dtype)
        end = max(call["end"], run["end"] if run else 0.0)
        yield _Call(
            op,
            min(nbytes, recording.MOST_NBYTES),
            tuple(range(world)),
            call["ts"],
            end,
            None,
            peer,
        )


# ---- onto one clock ------------------------------------------------------------------------------


def _event(call: _Call, rank: int, shift: float) -> Event:
    return Event(
        rank,
        "communicate",
        call.op,
        call.group,
        call.nbytes,
        (call.start + shift) / 1e6,
        (call.end + shift) / 1e6,
        peer=call.peer,
    )


def _kernel(kernel: dict[str, Any], shift: float) -> Kernel:
    start, end = kernel["ts"] + shift, kernel["end"] + shift
    return Kernel(kernel["name"], kernel["sort"], start / 1e6, end / 1e6)


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


def _moved(thing: Any, origin: float) -> Any:
    return type(thing)(**{**vars(thing), "start": thing.start - origin, "end": thing.end - origin})


# ---- what is missing -----------------------------------------------------------------------------


def _missing_files(files: Mapping[int, _Rank], world: int) -> list[str]:
    missing = []
    for rank, one in files.items():
        if one.cut is not None:
            missing.append(f"rank {rank}: the file ends early, after {one.cut:,} whole events")
    if len(files) < world:
        missing.append(f"{len(files)} of {world} ranks have a file: waiting is a lower bound")
    return missing


def _missing_calls(one: _Rank, rank: int, calls: Sequence[_Call]) -> list[str]:
    missing = []
    if unknown := one.ways.pop("unknown", 0):
        missing.append(f"rank {rank}: {unknown} collectives whose kind or group is not told")
    if bare := sum(not call.nbytes and call.op != "barrier" for call in calls):
        missing.append(f"rank {rank}: {bare} of {len(calls)} collectives without a size")
    if one.ways["gloo"] and (one.info.get("pg_count") or 1) != 1:
        missing.append(f"rank {rank}: gloo's groups are not told; all ranks are taken")
    return missing
