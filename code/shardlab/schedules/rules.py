"""Why an order of actions cannot be right, in words, before anything runs."""

from .action import KINDS, Action, Schedule
from .steps import deadlock

FIRST = {"B": "F", "I": "F", "W": "I"}  # what must come first on the same stage, for the same microbatch and chunk
Bare = tuple[str, int, int]  # an action, whether joined or not
SHOWN = 5  # problems in an error message


def check(schedule: Schedule) -> Schedule:
    """The schedule, if it can run. Errors: ValueError with its `problems`."""
    found = problems(schedule)
    if found:
        more = f" (and {len(found) - SHOWN} more)" if len(found) > SHOWN else ""
        raise ValueError(f"{schedule.name} cannot run: {'; '.join(found[:SHOWN])}{more}")
    return schedule


def problems(schedule: Schedule) -> list[str]:
    """Everything that is wrong: W3 before I3 on stage 2, no B0 on stage 1, a deadlock. [] when it can run."""
    found = [problem for stage in range(schedule.num_stages) for problem in _of_stage(schedule, stage)]
    if not found and (stop := deadlock(schedule)):
        found = [stop]
    return found


def _of_stage(schedule: Schedule, stage: int) -> list[str]:
    """One stage by itself."""
    found: list[str] = []
    done: set[Bare] = set()
    everything = {action[:3] for action in schedule.orders[stage]}
    before: Action | None = None
    for action in schedule.orders[stage]:
        if action.joined and (before is None or before.joined or {before.kind, action.kind} != {"F", "B"}):
            found.append(f"{action} on stage {stage} is joined to {before}; join a forward and a whole backward")
        before = action
        if strange := _strange(schedule, action):
            found.append(f"{action} on stage {stage}: {strange}")
            continue
        if action[:3] in done:
            found.append(f"{action} twice on stage {stage}")
        for need in _needs(schedule, stage, action, everything):
            if need[:3] not in done:
                how = "before" if need[:3] in everything else "without"
                found.append(f"{action} {how} {need} on stage {stage}")
        done.add(action[:3])
    return found + _missing(schedule, stage, done)


def _strange(schedule: Schedule, action: Action) -> str:
    """What this pipeline does not have."""
    if action.kind not in KINDS:
        return f"actions are {', '.join(KINDS)}"
    if not 0 <= action.microbatch < schedule.num_microbatches:
        return f"the microbatches are 0 to {schedule.num_microbatches - 1}"
    if not 0 <= action.chunk < schedule.num_chunks:
        return f"the chunks are 0 to {schedule.num_chunks - 1}"
    return ""


def _needs(schedule: Schedule, stage: int, action: Action, everything: set[Bare]) -> list[Action]:
    """What must come first on this stage."""
    kind, microbatch, chunk, _ = action
    needs = [Action(FIRST[kind], microbatch, chunk)] if kind in FIRST else []
    source = schedule.source(stage, action)
    if source is not None and schedule.homes[source][0] == stage:  # it goes on from another chunk of this stage
        there = schedule.homes[source][1]
        kinds = "F" if kind == "F" else "BI"
        needs += [Action(each, microbatch, there) for each in kinds if (each, microbatch, there) in everything]
    return needs


def _missing(schedule: Schedule, stage: int, done: set[Bare]) -> list[str]:
    """Actions that should be there; and a backward that is there whole and split."""
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
                found.append(f"{named['B']} as well as {named['I']} on stage {stage}: a backward is whole or split")
    return found
