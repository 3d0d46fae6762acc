"""Exercise: plan the copies that bring a trainer's numbers to the ranks of a generator."""

import operator
from collections import Counter
from collections.abc import Callable, Sequence, Sized
from itertools import combinations
from math import prod
from typing import Any

from shardlab import comm
from shardlab.sharding.layout import Layout
from shardlab.sharding.places import Place

from ..checker import Case, Dependent, Exercise, Finding, Judge, describe
from ..shared.boxes import Ranks, engines, numbers, show

Told = tuple[str, str, str] | None  # a parameter, what is expected of it, and what came
Copy = tuple[int, int, str, list[list[int]]]  # source, to, a parameter's name, indices in each dim
SPLITS = 2  # copies for each part that no border crosses


def attempt(
    function: Callable[..., Any], group: comm.Group, case: Case, rank: int
) -> list[Copy] | str:
    """Return the copies, or a description of what came instead."""
    have, want = case.given
    found = function([[*each] for each in have], [[*each] for each in want])
    try:
        return [
            (operator.index(source), operator.index(to), str(name), [[*each] for each in box])
            for source, to, name, box in found
        ]
    except (TypeError, ValueError):
        return describe(found)


def of_copies(judge: Callable[[Ranks, Ranks, list[Copy]], Told]) -> Judge:
    """Make a judge of all copies."""

    @Dependent
    def judge_copies(case: Case, observed: list[Any]) -> Finding | None:
        have, want = case.given
        found = None if isinstance(observed[0], str) else judge(have, want, observed[0])
        if found is None:
            return None
        name, expected, got = found
        return Finding(show(name, have, want), expected, got)

    return judge_copies


def are_copies(case: Case, observed: list[Any]) -> Finding | None:
    """Ask for boxes that their source has and their target wants."""
    have, want = case.given
    held, wanted = ([numbers(places) for places in ranks] for ranks in case.given)
    if isinstance(observed[0], str):
        return Finding(case.title, "a list of (source, to, name, box)", observed[0])
    for source, to, name, box in observed[0]:
        known = {source, to} <= set(range(len(have)))
        here = numbers([(name, box)])
        if not known or not here or not here <= held[source] & wanted[to]:
            expected = "a box that its source has, and its target wants"
            return Finding(show(name, have, want), expected, _shown((source, to, name, box)))
    return None


@of_copies
def arrive_once(have: Ranks, want: Ranks, copies: list[Copy]) -> Told:
    """Ask that each rank gets each number that it wants once."""
    arrived = Counter((to, n) for _, to, name, box in copies for n in numbers([(name, box)]))
    for to, places in enumerate(want):
        for name, place in sorted(numbers(places)):
            if (count := arrived[to, (name, place)]) != 1:
                return name, f"number {place} arrives once at rank {to}", f"{count} times"
    return None


@of_copies
def own_stay(have: Ranks, want: Ranks, copies: list[Copy]) -> Told:
    """Ask that a rank copies what it has itself."""
    held = [numbers(places) for places in have]
    for source, to, name, box in copies:
        if source != to and numbers([(name, box)]) & held[to]:
            return name, f"rank {to} copies what it has", _shown((source, to, name, box))
    return None


@of_copies
def share_the_load(have: Ranks, want: Ranks, copies: list[Copy]) -> Told:
    """Ask that no rank sends more than the best plan needs, and the largest box."""
    held, ranks = [numbers(places) for places in have], range(len(have))
    wanted = [n for to, places in enumerate(want) for n in numbers(places) - held[to]]
    choices = Counter(frozenset(rank for rank in ranks if n in held[rank]) for n in wanted)
    some = [{*each} for count in ranks for each in combinations(ranks, count + 1)]
    least = max(sum(c for s, c in choices.items() if s <= each) / len(each) for each in some)
    largest, name = max((size(box), name) for places in have for name, box in places)
    sent = [sum(size(c[3]) for c in copies if c[0] == rank != c[1]) for rank in ranks]
    expected = f"at most {least:g} numbers and a box of {largest} sent by a rank"
    return (name, expected, f"each sends {sent}") if max(sent) > least + largest else None


@of_copies
def are_few(have: Ranks, want: Ranks, copies: list[Copy]) -> Told:
    """Ask for as few copies as there are parts that no border crosses; twice as many may be."""
    held, parts = [place for places in have for place in places], Counter[str]()
    for name, box in (place for places in want for place in places):
        borders = [
            {r.start}
            | {x for n, b in held if n == name for x in (b[d].start, b[d].stop) if x in r[1:]}
            for d, r in enumerate(box)
        ]
        parts[name] += size(borders)
    for name, count in Counter(copy[2] for copy in copies).items():
        if count > SPLITS * parts[name]:
            return name, f"at most {SPLITS * parts[name]} copies of it", str(count)
    return None


def size(box: Sequence[Sized]) -> int:
    """Count the numbers in a box."""
    return prod(map(len, box))


def _shown(copy: Copy) -> str:
    source, to, name, box = copy
    return f"rank {source} to {to}: {name} {box}"


def _case(title: str, have: Ranks, want: Ranks) -> Case:
    return Case(world_size=len(have), title=title, given=(have, want))


MIXED: Ranks = [  # two ranks have halves, the third has everything
    [("a", (range(0, 3), range(4)))],
    [("a", (range(3, 5), range(4)))],
    [("a", (range(0, 5), range(4)))],
    [],
]
UNEQUAL: list[Place] = [(name, (range(1 + 11 * (name in "bdf")),)) for name in "abcdef"]
EXERCISE = Exercise(
    name="trainer_generator.plan",
    compare="shardlab.plain.hand_over.plan",
    points=3,
    pure=True,
    cases=[
        _case("the same GPU", *engines(Layout(), Layout(), apart=False)),
        _case("dp 2 is dp 2 on the same GPUs", *engines(Layout(dp=2), Layout(dp=2), apart=False)),
        _case("tp 2 is dp 2 on the same GPUs", *engines(Layout(tp=2), Layout(dp=2), apart=False)),
        _case("dp 2 to one", *engines(Layout(dp=2), Layout())),
        _case("ZeRO-3 x 2 to one", *engines(Layout(dp=2, zero=3), Layout())),
        _case("one keeps, another gets", [UNEQUAL, UNEQUAL, []], [UNEQUAL, [], UNEQUAL]),
        _case("tp 2 to dp 2", *engines(Layout(tp=2), Layout(dp=2))),
        _case("unequal boxes that overlap", MIXED, [[], [], [], [MIXED[2][0]]]),
        _case("ZeRO-3 x 2, pp 2 to tp 2", *engines(Layout(dp=2, zero=3, pp=2), Layout(tp=2))),
    ],
    attempt=attempt,
    properties={
        "copies are of boxes that one rank has and the other wants": are_copies,
        "every wanted number arrives once": arrive_once,
        "what a rank has is copied, not sent": own_stay,
        "no rank sends more than its share and a box": share_the_load,
        "a part that no border crosses is not cut to pieces": are_few,
    },
)
