"""A pipeline schedule as plain data: for every stage the list of what it does, in order.

A stage is a place in the pipeline: one rank. It holds one or more chunks of the model. A part is a
chunk seen from the model: part 0 takes the tokens, the last part ends in the loss.
"""

import re
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

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
        return f"{'&' * self.joined}{self.kind}{self.microbatch}" + (f".{self.chunk}" if self.chunk else "")

    def __repr__(self) -> str:
        return str(self)


def parse(text: str) -> list[Action]:
    """The actions of a line such as "F0 F1 B0 B1". Errors: ValueError for a word that is none."""
    return [_parsed(word) for word in text.split()]


def _parsed(word: str) -> Action:
    found = re.fullmatch(r"(&?)([A-Z])(\d+)(?:\.(\d+))?", word)
    if found is None:
        raise ValueError(f"{word!r} is no action; write F3, or F3.1 with chunk 1")
    return Action(found[2], int(found[3]), int(found[4] or 0), bool(found[1]))


@dataclass(frozen=True)
class Schedule:
    """What every stage does, and which parts of the model it holds.

    Errors: ValueError unless every part is on one stage, and all stages hold equally many.
    """

    name: str
    orders: tuple[tuple[Action, ...], ...]  # one for each stage
    num_microbatches: int
    parts: Parts

    def __post_init__(self) -> None:
        held = sorted(part for chunks in self.parts for part in chunks)
        alike = len(self.parts) == len(self.orders) and len({len(chunks) for chunks in self.parts}) == 1
        if not alike or held != list(range(len(held))):
            raise ValueError(
                f"{len(self.orders)} stages with the parts {self.parts}: give every stage equally many, "
                f"as loop({len(self.orders)}) does"
            )

    @property
    def num_stages(self) -> int:
        return len(self.orders)

    @property
    def num_chunks(self) -> int:
        """Of each stage."""
        return len(self.parts[0])

    @property
    def num_parts(self) -> int:
        return self.num_stages * self.num_chunks

    @cached_property
    def homes(self) -> tuple[tuple[int, int], ...]:
        """(stage, chunk) of every part."""
        found = {part: (stage, c) for stage, chunks in enumerate(self.parts) for c, part in enumerate(chunks)}
        return tuple(found[part] for part in range(self.num_parts))

    @property
    def num_crossings(self) -> int:
        """How often a microbatch goes to another stage on its way through the model."""
        stages = [stage for stage, _ in self.homes]
        return sum(here != there for here, there in pairwise(stages))

    @property
    def splits_backward(self) -> bool:
        return any(action.kind == "I" for order in self.orders for action in order)

    def source(self, stage: int, action: Action) -> int | None:
        """The part from which the action needs something: None for the model's own ends and for W."""
        return self._next(stage, action, -1)

    def target(self, stage: int, action: Action) -> int | None:
        """The part that needs what the action makes."""
        return self._next(stage, action, +1)

    def _next(self, stage: int, action: Action, step: int) -> int | None:
        if action.kind == "W":
            return None
        part = self.parts[stage][action.chunk] + (step if action.kind == "F" else -step)
        return part if 0 <= part < self.num_parts else None

    def forward_only(self) -> "Schedule":
        """The same without its backwards: inference."""
        orders = tuple(tuple(action for action in order if action.kind == "F") for order in self.orders)
        return replace(self, name=f"{self.name}, forward only", orders=orders)

    def __str__(self) -> str:
        return "\n".join(f"stage {stage}: {' '.join(map(str, order))}" for stage, order in enumerate(self.orders))


def loop(num_stages: int, num_chunks: int = 1) -> Parts:
    """From the first stage to the last, once for each chunk: 2 stages with 2 chunks hold ((0, 2), (1, 3))."""
    return tuple(tuple(chunk * num_stages + stage for chunk in range(num_chunks)) for stage in range(num_stages))


def vee(num_stages: int) -> Parts:
    """Down with chunk 0 and back with chunk 1: 2 stages hold ((0, 3), (1, 2)). The first stage also has the loss."""
    return tuple((stage, 2 * num_stages - 1 - stage) for stage in range(num_stages))
