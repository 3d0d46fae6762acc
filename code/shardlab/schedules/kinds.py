"""All schedules by name, for a whole pipeline."""

from collections.abc import Callable
from functools import partial
from typing import Any

from shardlab.files.arguments import Count, checked

from . import classic, v_shaped, zero_bubble
from .action import Action, Schedule, loop, vee

Order = Callable[..., list[Action]]
SCHEDULES: dict[str, Order] = {
    "naive": classic.naive,
    "GPipe": classic.gpipe,
    "1F1B": classic.one_f_one_b,
    "interleaved": classic.interleaved,
    "ZB-H1": zero_bubble.zb_h1,
    "ZB-H2": zero_bubble.zb_h2,
    "ZB-V": v_shaped.zb_v,
    "DualPipe-V": v_shaped.dualpipe_v,
}
V_SHAPED = {"ZB-V", "DualPipe-V"}


@checked
def make(
    name: str, num_stages: Count, num_microbatches: Count, num_chunks: Count | None = None
) -> Schedule:
    """Make the schedule `name` for any number of stages and of microbatches.

    num_chunks: of each stage, for "interleaved" (None: 2). V-shaped schedules have 2, all others 1.
    Errors: ValueError for an unknown name, or chunks that the schedule does not have.
    """
    if name not in SCHEDULES:
        raise ValueError(f"no schedule is called {name!r}; known: {', '.join(SCHEDULES)}")
    chunks = _chunks(name, num_chunks)
    order: Callable[..., Any] = SCHEDULES[name]
    if name == "interleaved":
        order = partial(order, num_chunks=chunks)
    stages = range(num_stages)
    return Schedule(
        name=name,
        orders=tuple(tuple(order(stage, num_stages, num_microbatches)) for stage in stages),
        num_microbatches=num_microbatches,
        parts=vee(num_stages) if name in V_SHAPED else loop(num_stages, chunks),
    )


def _chunks(name: str, wanted: int | None) -> int:
    """Return how many chunks a stage has; ValueError where the schedule cannot have `wanted`."""
    own = 2 if name in V_SHAPED else 1
    if name == "interleaved":
        own = 2 if wanted is None else wanted
    if wanted not in (None, own):
        raise ValueError(
            f"{name} with {wanted} chunks on each stage: only interleaved has a choice, "
            f"of 1 or more; {name} has {own}"
        )
    return own
