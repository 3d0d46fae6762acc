"""Grade the lab on profiles from the profiles themselves: `python -m shardlab.own.lab --help`.

The page *A lab on profiles* asks four things of a learner's own run: what its step waits for, where
it differs from a prediction, the same step with less waiting, and how far off the plan was.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple

from shardlab.costs.units import percent
from shardlab.files import described
from shardlab.files.terminal import Parser, complain, guarded

from . import __main__ as command
from . import kineto
from .recording import Recording, elements
from .report import length, report
from .stream import Stream

POINTS = 5  # of a part that passes
NEAR = 0.1  # a number handed in may be off by this share
LESS_WORK = 0.02  # products, tokens and bytes may differ by this share, ...
LESS_LOADING = 0.2  # ... and seconds that are spent loading by this one
LIKE_THE_PLAN = 0.25  # the plan counts the products up to this share
FASTER = 0.25  # share of the waiting that the change has to remove
WORK = {"products": "FLOPs of products", "tokens": "tokens", "sent": "bytes in collectives"}
PARTS = ("computing", "communicating", "idle")
OF_PLAN = ("tensor, context, experts", "data parallel and ZeRO", "waiting for stages")  # sent
HELP = """check the hand-in of one part of the lab; exit status 0: it passes

  python -m shardlab.own.lab 1 before/rank*.json --named "rank 1, load" --ms 150
  python -m shardlab.own.lab 2 before/rank*.json --named waiting \\
      --cluster ours.toml --config before --layout dp=2,sequence=64,microbatch=8
  python -m shardlab.own.lab 3 before/rank*.json --after after/rank*.json
  python -m shardlab.own.lab 4 after/rank*.json --plan plan.json --named computing --ratio 1.7
"""


class PartResult(NamedTuple):
    """Whether a part passes, and why."""

    passed: bool
    reason: str


@dataclass
class HostStep:
    """What one file says of the host in the chosen step. Times are in microseconds."""

    start: float = -math.inf
    end: float = math.inf
    phases: list[tuple[str, float, float]] = field(default_factory=list)  # named by the program
    busy: list[tuple[float, float]] = field(default_factory=list)  # computing
    work: Counter[str] = field(default_factory=Counter)  # of WORK, but what is sent

    @property
    def computing(self) -> float:
        """Seconds of the step in which something is computed."""
        return self._within(self.start, self.end)

    @property
    def idle(self) -> float:
        """Seconds of the step in which nothing is computed."""
        return (self.end - self.start) / 1e6 - self.computing

    @property
    def without(self) -> dict[str, float]:
        """Seconds of each phase in which nothing is computed."""
        found: dict[str, float] = {}
        for name, start, end in self.phases:
            start, end = max(start, self.start), min(end, self.end)
            seconds = max(0.0, (end - start) / 1e6 - self._within(start, end))
            found[name] = found.get(name, 0.0) + seconds
        return found

    def _within(self, start: float, end: float) -> float:
        return (
            length((max(s, start), min(e, end)) for s, e in self.busy if s < end and e > start)
            / 1e6
        )


@dataclass
class Profile:
    """One step on all ranks whose files were handed in."""

    recording: Recording
    ranks: dict[int, HostStep]

    def phase(self, rank: int) -> tuple[str, float]:
        """Return the phase in which a rank computes nothing for longer than the others, and s.

        The seconds are those beyond the mean of the other ranks; ("", 0) without phases.
        """
        others = [each.without for number, each in self.ranks.items() if number != rank]
        found = self.ranks[rank].without
        for name in found:
            found[name] -= fmean(each.get(name, 0.0) for each in others) if others else 0.0
        return max(found.items(), key=lambda each: each[1], default=("", 0.0))

    @property
    def waits(self) -> float:
        """Seconds of the step in which a rank computes nothing, on average."""
        return fmean(rank.idle for rank in self.ranks.values())

    @property
    def work(self) -> Counter[str]:
        """What all ranks together did."""
        total = sum((rank.work for rank in self.ranks.values()), Counter[str]())
        events = self.recording.events
        total["sent"] = sum(each.nbytes for each in events if each.kind == "communicate")
        return total

    @property
    def loading(self) -> float:
        """Seconds of loading, of all ranks, that began in the step."""
        spans = [(one, each) for one in self.ranks.values() for each in one.phases]
        return (
            sum(e - s for one, (name, s, e) in spans if name == "load" and one.start <= s < one.end)
            / 1e6
        )


def read(paths: Sequence[str]) -> Profile:
    """Read one profile of each rank, and of it the last step, or all where no file has steps.

    Errors: ValueError for files that `kineto` refuses.
    """
    recording = kineto.read(paths)
    ranks = {kineto.read([path]).ranks[0]: _rank(path, recording.step) for path in paths}
    return Profile(recording, ranks)


def read_step(paths: Sequence[str]) -> Profile:
    """Read as `read` does. Errors: ValueError also where no file has steps."""
    found = read(paths)
    if found.recording.step is None:
        raise ValueError("the profiles have no steps; call step() of the profiler after each")
    return found


def _rank(path: str, step: str | None) -> HostStep:
    found, calls, kernels = HostStep(), [], []
    for event in Stream(path):
        name, sort, start = event.get("name"), event.get("cat"), event.get("ts")
        if (
            event.get("ph") != "X"
            or not isinstance(name, str)
            or not isinstance(start, int | float)
        ):
            continue
        span = name, start, start + event.get("dur", 0)
        if sort == "user_annotation" and name == step:
            found.start, found.end = span[1:]
        elif sort == "user_annotation" and name.isidentifier():  # not "gloo:...", "Optimizer.step#"
            found.phases.append(span)
        elif sort == "kernel" and kineto.sort(name) != "collectives":
            kernels.append(span[1:])
        elif sort == "cpu_op" and name.startswith("aten::"):
            found.busy.append(span[1:])
            calls.append((name, start, (event.get("args") or {}).get("Input Dims")))
    found.busy = kernels or found.busy
    for name, start, dims in calls:
        if found.start <= start < found.end and isinstance(dims, list):
            _count(
                found.work,
                name,
                [each for each in dims if isinstance(each, list) and len(each) > 1],
            )
    return found


def _count(work: Counter[str], name: str, dims: list[list[Any]]) -> None:
    """Add the FLOPs of a product, or the tokens that are embedded, from the shapes of its inputs."""
    if name in ("aten::mm", "aten::addmm", "aten::bmm"):
        left, right = dims[-2:]
        work["products"] += 2 * elements(left) * right[-1]
    elif name == "aten::embedding" and len(dims) > 1:  # positions have one dim
        work["tokens"] += elements(dims[1])


# ---- the four parts ------------------------------------------------------------------------------


def find(profile: Profile, named: str, ms: float) -> PartResult:
    """Part 1: the rank that is waited for, what it does meanwhile, and for how long.

    ms: the others' waiting for that rank; of one rank alone, its time without computing there.
    """
    late = report(profile.recording)["late"]
    if len(profile.ranks) > 1 and not late:
        return PartResult(False, "the profiles do not tell who is late; record ranks of one host")
    rank = next(iter(late), next(iter(profile.ranks)))
    phase, seconds = profile.phase(rank)
    seconds = late[rank]["seconds"] if late else seconds
    told = [f"rank {rank}", *([phase] if phase else [])]
    given = [each.strip() for each in named.split(",")]
    if given[0] != told[0]:
        return PartResult(False, f"{given[0]} is not the rank for which most is waited")
    if given != told:
        return PartResult(
            False, f"{told[0]} is right, and {given[-1]} is not the phase that makes it late"
        )
    return _near(ms, seconds * 1e3, "ms", f"{named} is right")


def differ(made: Mapping[str, Any], named: str) -> PartResult:
    """Part 2: the part of the step that differs most from the prediction."""
    if made["predicted"] is None:
        return PartResult(False, "no prediction; pass --config, --layout and --cluster or --node")
    names = [each["name"] for each in made["differences"]]
    if not names:
        return PartResult(False, "nothing takes longer than predicted; describe a faster machine")
    if named != names[0]:
        place = (
            f"is number {names.index(named) + 1}" if named in names else "is not among the largest"
        )
        return PartResult(False, f"{named} {place}, and not the largest difference")
    return PartResult(True, f"{named}: {made['differences'][0]['seen']}")


def improve(before: Profile, after: Profile) -> PartResult:
    """Part 3: the same work in the same step, with less waiting, and no longer."""
    if before.recording.events == after.recording.events:
        return PartResult(False, "before and after are the same profile")
    if before.ranks.keys() != after.ranks.keys():
        return PartResult(False, f"{len(before.ranks)} ranks before, {len(after.ranks)} after")
    old, new = before.work, after.work
    if not old["products"] or not old["tokens"]:
        return PartResult(False, "the profiles have no shapes; use record_shapes=True")
    for name, words in WORK.items():
        if new[name] < (1 - LESS_WORK) * old[name]:
            return PartResult(False, f"less work: {new[name]:,} {words}, and {old[name]:,} before")
    if after.loading < (1 - LESS_LOADING) * before.loading:
        times = f"{after.loading * 1e3:.0f} ms in all, and {before.loading * 1e3:.0f} ms before"
        return PartResult(False, f"less loading: {times}; load all the same, at another time")
    share = 1 - after.waits / before.waits
    words = f"a rank computes nothing for {before.waits * 1e3:.0f} ms before, {after.waits * 1e3:.0f} ms after"
    if share < FASTER:
        return PartResult(
            False, f"{words}: {percent(share)} less, at least {percent(FASTER)} are asked"
        )
    return PartResult(True, f"{words}: {percent(share)} less")


def against_plan(profile: Profile, plan: Mapping[str, Any], named: str, ratio: float) -> PartResult:
    """Part 4: the plan's seconds against the measured ones, and the part with the largest error."""
    try:
        asked = plan["gpus"], plan["batch_sequences"] * plan["sequence"]
        sizes = plan["model"]["parts"]
        rows = [row for row in plan["plans"] if row["dp"] == asked[0] and not row["zero"]]
        weights = sizes["attention"] + sizes["feed-forward"]
        weights += sizes["head"] or sizes["token embedding"]
    except (KeyError, TypeError):
        raise ValueError("the plan is not what `python -m shardlab.plan --json` prints") from None
    run = profile.recording.world_size, profile.work["tokens"]
    for number, mine, what in zip(asked, run, ("ranks", "tokens in a step"), strict=True):
        if number != mine:
            return PartResult(
                False, f"another run's plan: {number:,} {what}, and {mine:,} in the profile"
            )
    counted, planned = profile.work["products"], 6 * weights * run[1]
    if abs(counted / planned - 1) > LIKE_THE_PLAN:
        return PartResult(
            False, f"another model's plan: {planned:.3g} FLOPs, {counted:.3g} in the profile"
        )
    if not rows:
        return PartResult(
            False, f"the plan does not show dp {run[0]} alone; add --zero 0 --show 20"
        )
    row = rows[0]
    seconds = fmean((rank.end - rank.start) / 1e6 for rank in profile.ranks.values())
    kinds = report(profile.recording)["kinds"].values()
    sent = fmean(each.get("exposed", 0.0) for each in kinds)
    computing = fmean(rank.computing for rank in profile.ranks.values())
    sending = sum(row["parts"][part] for part in OF_PLAN)
    measured = computing, sent, seconds - computing - sent
    errors = dict(zip(PARTS, measured, strict=True))
    errors["computing"] -= row["step_seconds"] - sending
    errors["communicating"] -= sending
    largest = max(PARTS, key=lambda name: abs(errors[name]))
    if named != largest:
        return PartResult(False, f"{named} has not the largest error of {', '.join(PARTS)}")
    shown = ", ".join(f"{name} {error * 1e3:+.1f} ms" for name, error in errors.items())
    return _near(ratio, seconds / row["step_seconds"], "times the plan's seconds", shown)


def _near(given: float, right: float, unit: str, words: str) -> PartResult:
    if abs(given - right) > NEAR * abs(right):
        return PartResult(False, f"{given:g} {unit} is off by more than {percent(NEAR)}")
    return PartResult(True, f"{words}; {right:.3g} {unit}")


# ---- the command ---------------------------------------------------------------------------------


def main(words: list[str] | None = None) -> int:
    """Check one part; return the exit status."""
    parser = Parser(prog="python -m shardlab.own.lab", description=HELP)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("part", type=int, choices=CHECKS)
    parser.add_argument("files", nargs="+", metavar="FILES", help="a profile of each rank")
    parser.add_argument("--named", default="", help="your answer, in words")
    parser.add_argument(
        "--ms", type=float, default=math.inf, help="part 1: milliseconds of waiting"
    )
    parser.add_argument(
        "--after", nargs="+", metavar="FILES", help="part 3: profiles of your change"
    )
    parser.add_argument("--plan", metavar="FILE", help="part 4: what shardlab.plan --json printed")
    parser.add_argument(
        "--ratio", type=float, default=math.inf, help="part 4: measured over planned"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    for option in ("node", "cluster", "config", "layout"):
        parser.add_argument(f"--{option}", help="part 2: as for shardlab.own")
    asked = parser.parse_args(words)
    try:
        found = CHECKS[asked.part](asked)
    except ValueError as error:
        complain(str(error))
        return command.NOT_UNDERSTOOD
    points = POINTS if found.passed else 0
    data = {"part": asked.part, "points": points, "of": POINTS, "reason": found.reason}
    text = f"part {asked.part}: {points} of {POINTS} points: {found.reason}"
    print(json.dumps(data) if asked.json else text)
    return 0 if found.passed else 1


def _find(asked: argparse.Namespace) -> PartResult:
    return find(read(asked.files), asked.named, asked.ms)


def _differ(asked: argparse.Namespace) -> PartResult:
    return differ(command.made(asked, kineto.read(asked.files)), asked.named)


def _improve(asked: argparse.Namespace) -> PartResult:
    if not asked.after:
        raise ValueError("part 3 needs --after and the profiles of your change")
    return improve(read_step(asked.files), read_step(asked.after))


def _against_plan(asked: argparse.Namespace) -> PartResult:
    if not asked.plan:
        raise ValueError("part 4 needs --plan and the file that shardlab.plan --json printed")
    return against_plan(
        read_step(asked.files), described.read_json(asked.plan), asked.named, asked.ratio
    )


CHECKS = {1: _find, 2: _differ, 3: _improve, 4: _against_plan}

if __name__ == "__main__":
    sys.exit(guarded(main))
