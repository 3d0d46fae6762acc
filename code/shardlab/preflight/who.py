"""Who is here, on which device, with how much room."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from shardlab.costs import units

from .result import FAIL, OK, WARN, CheckResult, Facts, grouped, ranks_text, result, spans, whom

LEAST_SHARED = 10**9  # bytes; see `room`
GPU_FREE = 0.9  # share of a GPU's memory that is free before a run: a context takes a few percent


def here(world: Sequence[Facts], size: int, seconds: float) -> Iterator[CheckResult]:
    """Name the ranks that are missing, those that came twice, and hosts with one node rank.

    size: ranks that should be here. seconds: how long they were waited for.
    """
    ranks = [each["rank"] for each in world]
    missing = set(range(size)) - set(ranks)
    if missing:
        yield result(
            "who",
            FAIL,
            f"{ranks_text(missing)} of {size} did not come within {seconds:g} s; see what was "
            "started there, what it printed, and whether that machine reaches MASTER_ADDR",
            missing=sorted(missing),
        )
    twice = {rank for rank in ranks if ranks.count(rank) > 1}
    if twice:
        yield result(
            "who",
            FAIL,
            f"{whom(world, twice)} came more than once; give each machine its own --node-rank",
            twice=sorted(twice),
        )
    yield from _node_ranks(world)
    yield _hosts(world)


def _node_ranks(world: Sequence[Facts]) -> Iterator[CheckResult]:
    hosts: dict[int, set[str]] = defaultdict(set)
    for each in world:
        if each["node_rank"] is not None:
            hosts[each["node_rank"]].add(each["host"])
    for node_rank, names in hosts.items():
        if len(names) > 1:
            text = f"{', '.join(sorted(names))} all have node rank {node_rank}"
            yield result("who", FAIL, f"{text}; give each machine its own --node-rank")


def _hosts(world: Sequence[Facts]) -> CheckResult:
    local = defaultdict(list)
    for each in world:
        local[each["host"]].append(each["local_rank"])
    alike = grouped((number, tuple(sorted(ranks))) for number, ranks in enumerate(local.values()))
    names = list(local)
    usual, owners = alike[0]
    of_each = " each" if len(owners) > 1 else ""
    text = f"{units.counted(len(owners), 'host')} with {units.counted(len(usual), 'rank')}{of_each}"
    for ranks, others in alike[1:]:
        who = ", ".join(names[number] for number in others)
        text += f", but {who} with {units.counted(len(ranks), 'rank')} (local {spans(ranks)})"
    counts = {name: len(ranks) for name, ranks in local.items()}
    return result("who", WARN if alike[1:] else OK, text, ranks_per_host=counts)


def devices(world: Sequence[Facts]) -> Iterator[CheckResult]:
    """Tell which device each rank has; two ranks on one GPU of a host fail."""
    owners: dict[tuple[str, str], list[int]] = defaultdict(list)
    for each in world:
        if each["gpu"]:
            owners[each["host"], each["gpu"]["id"]].append(each["rank"])
    for ranks in (ranks for ranks in owners.values() if len(set(ranks)) > 1):
        text = f"{whom(world, ranks)} share one GPU; give each its own: torch.cuda.set_device"
        yield result("devices", FAIL, f"{text}(LOCAL_RANK)", shared=sorted(set(ranks)))
    for reason, ranks in grouped((each["rank"], each["trouble"]) for each in world):
        if reason:
            yield result("devices", FAIL, f"{whom(world, ranks)}: {reason}")
    kinds = grouped((each["rank"], each["gpu"]["name"] if each["gpu"] else "") for each in world)
    texts = [f"{ranks_text(ranks)}: {name or 'no GPU'}" for name, ranks in kinds]
    if [name for name, _ in kinds] == [""]:
        yield result("devices", OK, "no rank has a GPU; they communicate over gloo, on CPUs")
    elif len(kinds) > 1:
        text = f"{'; '.join(texts)}; a run is as fast as its slowest device"
        yield result("devices", FAIL if any(not name for name, _ in kinds) else WARN, text)
    else:
        yield result("devices", OK, f"each rank has a GPU of its own; {texts[0]}")


def room(world: Sequence[Facts]) -> Iterator[CheckResult]:
    """Tell how much memory is free on devices and hosts, and in /dev/shm.

    NCCL's documentation starts containers with 1 GB there
    (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html).
    """
    gpus = {each["rank"]: each["gpu"] for each in world if each["gpu"]}
    if gpus:
        full = [rank for rank, gpu in gpus.items() if gpu["free"] < GPU_FREE * gpu["total"]]
        out = "another process holds the rest, nvidia-smi names it"
        free = {rank: gpu["free"] for rank, gpu in gpus.items()}
        yield _least(world, "free GPU memory", free, full, out)
    memory = {each["rank"]: each["memory"] for each in world if each["memory"] is not None}
    if memory:
        usual = median(memory.values())
        low = [rank for rank, free in memory.items() if free < usual / 2]
        out = f"half of the hosts have {units.text(usual, 'B')} or more; see what runs there"
        yield _least(world, "free host memory", memory, low, out)
    shared = {each["rank"]: each["shm"] for each in world if each["shm"] is not None}
    if shared:
        low = [rank for rank, free in shared.items() if free < LEAST_SHARED]
        out = "NCCL and the workers of data loaders need it; start containers with --shm-size=1g"
        yield _least(world, "free /dev/shm", shared, low, f"{out} or more")


def _least(
    world: Sequence[Facts], name: str, free: dict[int, int], low: list[int], way_out: str
) -> CheckResult:
    least = units.text(min(free[rank] for rank in low or free), "B")
    if low:
        return result(name, WARN, f"{whom(world, low)}: {least}; {way_out}", bytes=free)
    return result(name, OK, f"{least} or more", bytes=free)
