"""Exercise: put new weights into use between two tokens, on all ranks between the same two."""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlab import comm

from ..checker import Case, Dependent, Exercise, Finding, describe, on_each_rank

NAMES = ("embedding", "layer 0", "head")
LIMIT, LATE = 12, 1  # tokens of the text; tokens that may pass before complete weights are used
Versions = list[int]


class WritingEngine:
    """One rank of a generator, which writes a text while new weights arrive.

    begins: before which token the first bucket of each version arrives; then one for each token.
    """

    def __init__(self, group: comm.Group, begins: tuple[int, ...]) -> None:
        self.limit = LIMIT
        self.weights = {name: torch.zeros(2) for name in NAMES}
        self.tokens: list[int] = []
        self.used: list[tuple[Versions, Versions]] = []  # versions of weights and cache, by token
        self._group, self._cache = group, Versions()
        self._coming = [
            (begin + n, (version, name, torch.full((2,), float(version))))
            for version, begin in enumerate(begins, 1)
            for n, name in enumerate(NAMES)
        ]

    def arrived(self) -> list[tuple[int, str, Tensor]]:
        """Return (version, name, tensor) of what has arrived here since the last call."""
        here = [bucket for begin, bucket in self._coming if begin <= len(self.tokens)]
        self._coming = self._coming[len(here) :]
        return here

    def forget(self) -> None:
        """Empty the cache: the next step reads the text again."""
        self._cache = []

    def step(self) -> int:
        """Draw a token, together with the other ranks."""
        held = sorted({int(number) for x in self.weights.values() for number in x.tolist()})
        self._cache += held[-1:] * (len(self.tokens) + 1 - len(self._cache))
        self.used.append((held, sorted({*self._cache})))
        mine = torch.tensor([*map(float, self._cache)]).sum() + len(self.tokens)
        self.tokens.append(int(comm.all_reduce(mine, self._group)))
        return self.tokens[-1]


@dataclass(frozen=True)
class Written:
    """What a rank returned, or a description of it, and what its engine did."""

    result: list[tuple[int, int]] | str  # tokens, each with a version
    tokens: list[int]
    used: list[tuple[Versions, Versions]]


def attempt(function: Callable[..., Any], group: comm.Group, case: Case, rank: int) -> Written:
    """Let the function write one text."""
    engine = WritingEngine(group, case.given[rank])
    found = function(engine, group)
    try:
        result: Any = [(operator.index(token), operator.index(v)) for token, v in found]
    except (TypeError, ValueError):
        result = describe(found)
    return Written(result, engine.tokens, engine.used)


@on_each_rank
def are_written(case: Case, rank: int, seen: Written) -> Finding | None:
    """Ask for all tokens that were drawn."""
    got = seen.result if isinstance(seen.result, str) else [token for token, _ in seen.result]
    if got == seen.tokens and len(got) == LIMIT:
        return None
    return Finding(_given(case), f"the {LIMIT} tokens that rank {rank} drew", str(got))


def of_each_token(wrong: Callable[[Written, int], bool], expected: str) -> Dependent:
    """Judge each token of each rank."""

    @Dependent
    @on_each_rank
    def judge(case: Case, rank: int, seen: Written) -> Finding | None:
        for number, (weights, cache) in enumerate(seen.used):
            if wrong(seen, number):
                got = f"token {number} on rank {rank}: weights of {weights}, cache of {cache}"
                return Finding(_given(case), expected, got)
        return None

    return judge


@Dependent
def switch_together(case: Case, observed: list[Written]) -> Finding | None:
    """Ask that all ranks use the same weights for each token."""
    for number in range(LIMIT):
        versions = [seen.used[number][0] for seen in observed]
        if any(each != versions[0] for each in versions):
            got = f"token {number}: weights of {versions}"
            return Finding(_given(case), "one version for a token on all ranks", got)
    return None


@Dependent
@on_each_rank
def are_used(case: Case, rank: int, seen: Written) -> Finding | None:
    """Ask that weights which all ranks have are used soon."""
    for version, begins in enumerate(zip(*case.given, strict=True), 1):
        number = max(begins) + len(NAMES) - 1 + LATE
        weights = seen.used[number][0]
        if max(weights) < version:
            expected = f"version {version} from token {number} on, at the latest"
            return Finding(_given(case), expected, f"weights of {weights} on rank {rank}")
    return None


def _given(case: Case) -> str:
    return f"buckets of new weights arrive at each rank from these tokens on: {list(case.given)}"


def _case(title: str, *begins: tuple[int, ...]) -> Case:
    return Case(world_size=len(begins), title=title, given=begins)


ONE_VERSION = of_each_token(lambda seen, n: len(seen.used[n][0]) > 1, "weights of one version")
READ_AGAIN = of_each_token(
    lambda seen, n: not {*seen.used[n][1]} <= {*seen.used[n][0]}, "a cache of the same version"
)
TAGGED = of_each_token(
    lambda seen, n: seen.result[n][1] != max(seen.used[n][0]), "each token with its version"
)
EXERCISE = Exercise(
    name="trainer_generator.commit",
    points=4,
    cases=[
        _case("one update", (2,)),
        _case("two updates", (0, 5)),
        _case("one update", (2,), (2,)),
        _case("rank 1 is late", (2,), (4,)),
        _case("rank 0 is late, and the next update begins", (4, 7), (0, 3)),
        _case("rank 2 is late", (1, 6), (1, 6), (3, 6), (1, 6)),
    ],
    attempt=attempt,
    properties={
        "returns every token that was drawn": are_written,
        "each token is written by weights of one version": ONE_VERSION,
        "all ranks change their weights between the same two tokens": switch_together,
        "the cache is of the weights that read it": READ_AGAIN,
        "each token has the version that wrote it": TAGGED,
        "new weights are used once every rank has them": are_used,
    },
)
