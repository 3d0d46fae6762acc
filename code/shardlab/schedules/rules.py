"""Why an order of actions cannot be right, in words, before anything runs."""

from shardlab.files.arguments import checked

from .action import KINDS, Action, Schedule
from .instructions import deadlock

# What must come first on the same stage, for the same microbatch and chunk.
FIRST = {"B": "F", "I": "F", "W": "I"}
Bare = tuple[str, int, int]  # (kind, microbatch, chunk): an action, whether joined or not
SHOWN = 5  # problems in an error message


@checked
def check(schedule: Schedule) -> Schedule:
    """Return `schedule` if it can run. Errors: ValueError with its `problems`."""
    found = problems(schedule)
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        raise ValueError(f"{schedule.name} cannot run: {'; '.join(found[:SHOWN])}{more}")
    return schedule


@checked
def problems(schedule: Schedule) -> list[str]:
    """List what is wrong: W3 before I3 on stage 2, no B0 on stage 1, a deadlock; [] for nothing."""
    found: list[str] = []
    for stage in range(schedule.num_stages):
        found += _of_stage(schedule, stage)
    stop = "" if found else deadlock(schedule)
    return [stop] if stop else found


def _of_stage(schedule: Schedule, stage: int) -> list[str]:
    """List what is wrong on one stage by itself."""
    found: list[str] = []
    done: set[Bare] = set()
    everything = {action[:3] for action in schedule.orders[stage]}
    before: Action | None = None
    for action in schedule.orders[stage]:
        if action.joined and not _is_pair(before, action):
            found.append(
                f"{action} on stage {stage} is joined to {before}; "
                "join a forward and a whole backward"
            )
        before = action
        unknown = _unknown(schedule, action)
        if unknown:
            found.append(f"{action} on stage {stage}: {unknown}")
            continue
        if action[:3] in done:
            found.append(f"{action} twice on stage {stage}")
        for need in _needs(schedule, stage, action, everything):
            if need[:3] not in done:
                how = "before" if need[:3] in everything else "without"
                found.append(f"{action} {how} {need} on stage {stage}")
        done.add(action[:3])
    return found + _missing(schedule, stage, done)


def _is_pair(before: Action | None, action: Action) -> bool:
    """Whether `action` may be joined to the one before it."""
    if before is None or before.joined:
        return False
    return {before.kind, action.kind} == {"F", "B"}


def _unknown(schedule: Schedule, action: Action) -> str:
    """Say what this pipeline has instead, if it has no such kind, microbatch or chunk; else ""."""
    if action.kind not in KINDS:
        return f"actions are {', '.join(KINDS)}"
    if not 0 <= action.microbatch < schedule.num_microbatches:
        return f"the microbatches are 0 to {schedule.num_microbatches - 1}"
    if not 0 <= action.chunk < schedule.num_chunks:
        return f"the chunks are 0 to {schedule.num_chunks - 1}"
    return ""


def _needs(schedule: Schedule, stage: int, action: Action, everything: set[Bare]) -> list[Action]:
    """List what must come before `action` on its own stage."""
    kind, microbatch, chunk, _ = action
    needs = [Action(FIRST[kind], microbatch, chunk)] if kind in FIRST else []
    source = schedule.source(stage, action)
    if source is None:
        return needs
    home, other = schedule.homes[source]
    if home == stage:  # the action continues another chunk of this stage
        kinds = "F" if kind == "F" else "BI"
        candidates = [Action(each, microbatch, other) for each in kinds]
        needs += [each for each in candidates if each[:3] in everything]
    return needs


def _missing(schedule: Schedule, stage: int, done: set[Bare]) -> list[str]:
    """List actions that are missing, and backwards that are there both whole and split."""
    found = []
    for chunk in range(schedule.num_chunks):
        for microbatch in range(schedule.num_microbatches):
            has = {kind for kind in KINDS if (kind, microbatch, chunk) in done}
            named = {kind: Action(kind, microbatch, chunk) for kind in KINDS}
            if "F" not in has:
                found.append(f"no {named['F']} on stage {stage}")
            if not has & {"B", "I"}:
                found.append(f"no {named['B']} on stage {stage}")
            if "I" in has and "W" not in has:
                found.append(f"{named['I']} without {named['W']} on stage {stage}")
            if "B" in has and has & {"I", "W"}:
                both = f"{named['B']} as well as {named['I']}"
                found.append(f"{both} on stage {stage}: a backward is whole or split")
    return found
