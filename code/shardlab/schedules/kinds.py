"""All schedules by name; what others know of one is computed from its record."""

from collections.abc import Callable
from typing import Any, NamedTuple

from shardlab.files.arguments import Count, checked

from . import classic, v_shaped, zero_bubble
from .action import Schedule, loop, vee


class ScheduleKind(NamedTuple):
    """One schedule: the order of a stage, and what it asks of the stages."""

    order: Callable[..., Any]  # (stage, stages, microbatches[, chunks]) -> actions
    chunks: int | None = 1  # of the model on each stage; None: any number
    vee: bool = False  # chunks go down the stages, and back up
    splits_backward: bool = False  # into input gradients and weight gradients


SCHEDULES = {
    "naive": ScheduleKind(classic.naive),
    "GPipe": ScheduleKind(classic.gpipe),
    "1F1B": ScheduleKind(classic.one_f_one_b),
    "interleaved": ScheduleKind(classic.interleaved, chunks=None),
    "ZB-H1": ScheduleKind(zero_bubble.zb_h1, splits_backward=True),
    "ZB-H2": ScheduleKind(zero_bubble.zb_h2, splits_backward=True),
    "ZB-V": ScheduleKind(v_shaped.zb_v, chunks=2, vee=True, splits_backward=True),
    "DualPipe-V": ScheduleKind(v_shaped.dualpipe_v, chunks=2, vee=True, splits_backward=True),
}
WHOLE = [name for name, kind in SCHEDULES.items() if not kind.splits_backward]
CHUNKED = [name for name, kind in SCHEDULES.items() if kind.chunks is None]


@checked
def make(
    name: str, num_stages: Count, num_microbatches: Count, num_chunks: Count | None = None
) -> Schedule:
    """Make the schedule `name` for any number of stages and of microbatches.

    num_chunks: of each stage, where the schedule leaves a choice (None: 2). Errors: ValueError for
    an unknown name, or chunks that the schedule does not have.
    """
    if name not in SCHEDULES:
        raise ValueError(f"no schedule is called {name!r}; known: {', '.join(SCHEDULES)}")
    kind = SCHEDULES[name]
    own = kind.chunks or num_chunks or 2
    if num_chunks not in (None, own):
        raise ValueError(
            f"{name} with {num_chunks} chunks on each stage: it has {own}; a choice, of 1 or more, "
            f"is there for {', '.join(CHUNKED)}"
        )
    sizes = (num_stages, num_microbatches, *([own] if name in CHUNKED else []))
    return Schedule(
        name=name,
        orders=tuple(tuple(kind.order(stage, *sizes)) for stage in range(num_stages)),
        num_microbatches=num_microbatches,
        parts=vee(num_stages) if kind.vee else loop(num_stages, own),
    )
