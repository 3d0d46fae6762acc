"""Run the checks on all ranks; one rank speaks for all of them."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from shardlab.costs.facts.network import Cluster
from shardlab.launch.job import loopback

from . import alike, between, measure, who
from .result import FAIL, CheckResult, Facts, result, status, whom
from .roll import GRACE, Roll

PER_RANK = 0.5  # s for the links of one distance, which NCCL first has to connect


Tell = Callable[[list[CheckResult]], None]


def check(own: dict[str, Any], seconds: float, cluster: Cluster | None, tell: Tell) -> int:
    """Check all ranks, each of which calls this with its own facts; return the exit status.

    seconds: for which a missing rank is waited for. tell: gets the findings, on the rank that
    speaks for all. Errors: RuntimeError if the store is not there, or no longer.
    """
    roll = Roll(own["rank"], own["world"], seconds)
    roll.announce(own)
    limit = seconds + PER_RANK * own["world"]  # for everything that is measured
    if roll.speaks():
        return _speak(roll, own, cluster, limit, tell)
    plan = roll.read("plan", seconds + GRACE)
    if plan and roll.turn == 1:
        if roll.rank in plan["clocks"]:
            measure.tell_clock(roll, limit)
        _measure(roll, own, plan, limit)
    told = roll.read("status", 2 * limit)
    roll.leave()
    return 1 if told is None else int(told)


def _speak(roll: Roll, own: Facts, cluster: Cluster | None, limit: float, tell: Tell) -> int:
    """Ask all ranks, tell what they answer, and let them go."""
    world, size = roll.present(), own["world"]
    results = list(before(world, size, roll.seconds))
    complete = [each["rank"] for each in world] == list(range(size))
    plan = plan_of(world) if complete else {}
    roll.post("plan", plan)
    if plan:
        offsets = measure.clocks(roll, plan["clocks"], limit)
        _measure(roll, own, plan, limit)
        measured = roll.collect("measured", range(size), GRACE)
        results += after(world, measured, offsets, cluster if plan["backend"] == "nccl" else None)
    tell(results)
    roll.post("status", status(results))
    roll.leave(len(world))
    return status(results)


def _measure(roll: Roll, own: Facts, plan: dict[str, Any], limit: float) -> None:
    """Measure in a thread, which may get stuck, and post what is there when the time is up."""
    device = torch.device("cuda", own["gpu"]["index"]) if plan["backend"] == "nccl" else None
    if plan["one_host"]:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback())
    mine = measure.Measurement()
    args = (roll, plan["backend"], device, 2 * limit)  # torch waits longer, so that we report
    thread = threading.Thread(target=mine.run, args=args, daemon=True)
    thread.start()
    thread.join(limit)
    roll.post(f"measured/{roll.rank}", mine.posted)


def before(world: Sequence[Facts], size: int, seconds: float) -> Iterator[CheckResult]:
    """Check all that ranks know before they communicate."""
    yield from who.here(world, size, seconds)
    yield from who.devices(world)
    yield from who.room(world)
    yield from alike.software(world)
    yield from alike.environment(world)
    yield from between.addresses(world)


def after(
    world: Sequence[Facts],
    measured: dict[int, dict[str, Any]],
    offsets: dict[int, tuple[float, float]],
    cluster: Cluster | None,
) -> Iterator[CheckResult]:
    """Check what was measured: the clocks, the links, and the checksums."""
    yield between.clocks(world, offsets)
    stuck = [each["rank"] for each in world if each["rank"] not in measured]
    if stuck:
        text = f"{whom(world, stuck)} no longer answers; see what was printed there"
        yield result("links", FAIL, text, silent=stuck)
    for rank, found in measured.items():
        if not found["over"]:
            why = f": {found['error']}" if found["error"] else " when time was up"
            text = f"{whom(world, [rank])} {found['doing']}{why}"
            yield result("links", FAIL, f"{text}; see whether a firewall lies between them")
    rates = {
        (int(source), rank): rate
        for rank, found in measured.items()
        for source, rate in found["rates"].items()
    }
    if rates:
        yield from between.links(world, rates, cluster)
    sums = {rank: found["sum"] for rank, found in measured.items() if found["sum"]}
    if sums:
        yield alike.results(world, sums)


def plan_of(world: Sequence[Facts]) -> dict[str, Any]:
    """Choose the backend, and the ranks whose clocks are asked: the first of each other host."""
    gpus = [(each["host"], each["gpu"]["id"]) for each in world if each["gpu"]]
    first = {each["host"]: each["rank"] for each in reversed(world)}
    return {
        "backend": "nccl" if len(set(gpus)) == len(world) else "gloo",
        "clocks": sorted(rank for rank in first.values() if rank),
        "one_host": len(first) == 1,
    }
