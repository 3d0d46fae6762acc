"""A pipeline schedule as plain data: for every stage, the ordered list of what it does.

A stage is a place in the pipeline: one rank. It holds one or more chunks of the model. A part is a
chunk numbered from the model's side: part 0 takes the tokens, the last part ends in the loss.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from typing import NamedTuple

from shardlab.files.arguments import Count, checked

KINDS = {
    "F": "forward",
    "B": "backward: the gradients of the part's input and of its weights",
    "I": "the first half of a split backward: the gradient of the part's input",
    "W": "the second half: the gradients of the part's weights",
}
Parts = tuple[tuple[int, ...], ...]  # parts[stage][chunk]


class Action(NamedTuple):
    """One thing that a stage does with one microbatch: F3, or F3.1 with its chunk 1.

    I and W are torch's names for the halves of a backward. Qi et al. 2023 call the first one B.
    """

    kind: str  # one of KINDS
    microbatch: int
    chunk: int = 0  # which of the stage's chunks
    joined: bool = False  # runs at the same time as the action before it

    @property
    def key(self) -> tuple[int, int]:
        """The microbatch and the chunk, which a forward and its backward have in common."""
        return self.microbatch, self.chunk

    def __str__(self) -> str:
        joint = "&" if self.joined else ""
        chunk = f".{self.chunk}" if self.chunk else ""
        return f"{joint}{self.kind}{self.microbatch}{chunk}"

    def __repr__(self) -> str:
        return str(self)


@checked
def parse(text: str) -> list[Action]:
    """Read actions from a line such as "F0 F1 B0 B1". Errors: ValueError for any other word."""
    return [_parsed(word) for word in text.split()]


def _parsed(word: str) -> Action:
    found = re.fullmatch(r"(&?)([A-Z])(\d+)(?:\.(\d+))?", word)
    if found is None:
        raise ValueError(f"{word!r} is not an action; write F3, or F3.1 with chunk 1")
    joint, kind, microbatch, chunk = found.groups(default="0")
    return Action(kind, int(microbatch), int(chunk), joined=bool(joint))


@dataclass(frozen=True, kw_only=True)
@checked
class Schedule:
    """What every stage does, and which parts of the model it holds.

    Errors: ValueError unless every part is on one stage, and all stages hold equally many.
    """

    name: str
    orders: tuple[tuple[Action, ...], ...]  # one for each stage
    num_microbatches: Count
    parts: Parts

    def __post_init__(self) -> None:
        held = sorted(part for chunks in self.parts for part in chunks)
        sizes = {len(chunks) for chunks in self.parts}
        equal = len(self.parts) == len(self.orders) and len(sizes) == 1
        if not equal or held != list(range(len(held))):
            raise ValueError(
                f"{len(self.orders)} stages cannot hold the parts {self.parts}: give every stage "
                f"equally many, as loop({len(self.orders)}) does"
            )

    @property
    def num_stages(self) -> int:
        """The number of ranks in the pipeline."""
        return len(self.orders)

    @property
    def num_chunks(self) -> int:
        """The number of parts that each stage holds."""
        return len(self.parts[0])

    @property
    def num_parts(self) -> int:
        """The number of parts of the whole model."""
        return self.num_stages * self.num_chunks

    @cached_property
    def homes(self) -> tuple[tuple[int, int], ...]:
        """The (stage, chunk) that holds each part."""
        found = {}
        for stage, chunks in enumerate(self.parts):
            for chunk, part in enumerate(chunks):
                found[part] = stage, chunk
        return tuple(found[part] for part in range(self.num_parts))

    @property
    def num_crossings(self) -> int:
        """How often a microbatch goes to another stage on its way through the model."""
        stages = [stage for stage, _ in self.homes]
        return sum(here != there for here, there in pairwise(stages))

    @property
    def splits_backward(self) -> bool:
        """Whether backwards are split into I and W."""
        return any(action.kind == "I" for order in self.orders for action in order)

    def source(self, stage: int, action: Action) -> int | None:
        """Return the part whose result `action` needs; None at the model's own ends and for W."""
        return self._neighbour(stage, action, -1)

    def target(self, stage: int, action: Action) -> int | None:
        """Return the part that needs the result of `action`; None at the ends and for W."""
        return self._neighbour(stage, action, +1)

    def _neighbour(self, stage: int, action: Action, offset: int) -> int | None:
        """Step from the part of `action` by `offset` in the direction in which it computes."""
        if action.kind == "W":
            return None
        direction = 1 if action.kind == "F" else -1
        try:
            part = self.parts[stage][action.chunk] + direction * offset
        except IndexError:
            raise ValueError(
                f"stage={stage} of {self.num_stages} stages does not hold chunk={action.chunk} of "
                f"{self.num_chunks} chunks"
            ) from None
        return part if 0 <= part < self.num_parts else None

    def check_actions(self) -> None:
        """Raise ValueError for an action whose kind, microbatch or chunk the schedule lacks."""
        microbatches = self.num_microbatches
        chunks = self.num_chunks
        for action in chain.from_iterable(self.orders):
            kind, microbatch, chunk, _ = action
            if kind not in KINDS or microbatch >= microbatches or chunk >= chunks:
                raise ValueError(
                    f"{action} does not belong to a schedule of {microbatches} microbatches and "
                    f"{chunks} chunks; its kind must be one of {', '.join(KINDS)}, and its numbers "
                    "count from 0"
                )

    def forward_only(self) -> "Schedule":
        """Return the same schedule without its backwards, for inference."""
        orders = tuple(
            tuple(action for action in order if action.kind == "F") for order in self.orders
        )
        return replace(self, name=f"{self.name}, forward only", orders=orders)

    def __str__(self) -> str:
        rows = [" ".join(map(str, order)) for order in self.orders]
        return "\n".join(f"stage {stage}: {row}" for stage, row in enumerate(rows))


@checked
def loop(num_stages: Count, num_chunks: Count = 1) -> Parts:
    """Deal the parts to the stages in rounds: 2 stages with 2 chunks hold ((0, 2), (1, 3))."""
    num_parts = num_stages * num_chunks
    return tuple(tuple(range(stage, num_parts, num_stages)) for stage in range(num_stages))


@checked
def vee(num_stages: Count) -> Parts:
    """Deal the parts down the stages and back up: 2 stages hold ((0, 3), (1, 2)).

    The first stage has both ends of the model.
    """
    last = 2 * num_stages - 1
    return tuple((stage, last - stage) for stage in range(num_stages))
