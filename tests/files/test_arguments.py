"""Whatever a public function of the plain data or of costs is given, it answers soundly or raises a ValueError.

Sound is an answer whose numbers are finite and at least 0, and so are the properties of data. `calls` has a valid call
of everything public; here one argument after the other, or one thing inside it, is replaced by something bad.
"""

import contextlib
import dataclasses
import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from numbers import Real
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.exchanges import Move
from shardlab.files.arguments import Count, Exact, Integer, Positive, Share, checked, unchecked, within
from shardlab.schedules import Instruction

from .. import calls

BAD = [math.nan, math.inf, -math.inf, -1, -0.5, 0, 1.5, 40, True, None, "no such thing", object(), (), {}, ...]
BAD += [[math.nan], [-1], [0], ["no such thing"], {"no such thing": math.nan}]
# Named in the error: what is wrong whatever else is given.
NEVER = (math.nan, -math.inf, -0.5, [math.nan], {"no such thing": math.nan})

NOT_CALLED = {  # what is public and not tried -> why
    "costs.facts.hugging_face.fields": "the fields of a file, which are refused by their own names",
    "costs.facts.hugging_face.dense": "likewise",
    "costs.facts.hugging_face.hybrids": "likewise",
    "costs.facts.hugging_face.latent": "likewise",
    "costs.facts.hugging_face.mixtures": "likewise",
    "costs.facts.hugging_face.wrappers": "likewise",
    "costs.facts.hugging_face.reading.read": "likewise",
    "costs.facts.hugging_face.details.read_whole": "likewise",
    "costs.facts.machines.read": "likewise",
    "costs.facts.nodes.part": "only a rack has parts, and the node that is given here is none",
    "costs.facts.limits.hold": "it is a check itself, of numbers that were read",
    "costs.facts.tables": "it is a check itself, of a file",
    "costs.published.rows": "likewise",
    "costs.traces.sharing": "the inner loop of replay, whose numbers come from a checked trace and cluster",
    "sharding.types.bugs.bug.Bug": "its numbers are of any shape, and its types are parsed where it is traced",
    "sharding.types.altered.Altered": "it hands on what a text asks of a tracer, which is tried",
    "sharding.types.redistribution.Refused": "an error, which the rules raise",
    "sharding.types.tracer.Refusal": "an error, which a tracer raises",
    "sharding.types.tracer.Tracer.product": "its operands have no names; the rule that it calls is tried",
    "sharding.types.tracer.Tracer.function": "its dims have no names, and are looked up in a table",
    "sharding.types.rules.function": "likewise",
    "sharding.types.advice": "it reads a text, whose inputs have no names",
}
MAY_BE_NEGATIVE = {  # whose answers have numbers below 0 -> why
    "costs.compute.flops.six_n_d_error": "a rule of thumb may be too low",
    "costs.published.recordings.errors": "a prediction may be too short",
    "costs.published.recordings.medians": "likewise",
    "costs.published.recordings.table": "likewise",
    "costs.published.steps.PublishedStep": "likewise",
    "costs.published.sweeps.SweepStep": "likewise",
    "costs.published.sweeps.Sweep": "predictions may be in the opposite order",
}
MAY_BE_INFINITE = {
    "costs.facts.hops.bandwidth": "nothing limits a message from a GPU to itself, which crosses no hop",
    "costs.traces.traffic.Load": "likewise",
}
ANY_PLACE = {
    "costs.traces.writing.Writer": "a program does not know how many others there are",
}
# A named tuple is checked by the function that is given one.
TARGETS = [
    target
    for target in calls.targets()
    if not target.name.startswith(tuple(NOT_CALLED)) and not hasattr(target.function, "_fields")
]


def sound(answer: Any, least: float = 0, most: float = sys.float_info.max) -> bool:
    """Whether all numbers of an answer are finite and at least 0; or between other bounds."""
    if isinstance(answer, Real):
        return bool(least <= answer <= most)
    if isinstance(answer, Instruction | Move):
        return True  # a peer -1 is no message, and pieces may land on either side
    if isinstance(answer, Mapping):
        return all(sound(each, least, most) for each in answer.values())
    if isinstance(answer, list | tuple):
        return all(sound(each, least, most) for each in answer)
    if dataclasses.is_dataclass(answer):
        return all(sound(getattr(answer, field.name), least, most) for field in dataclasses.fields(answer))
    return True


def properties(data: Any) -> Iterator[str]:
    """Name what a data class computes from its fields."""
    for name, member in inspect.getmembers(type(data)):
        if isinstance(member, property | functools.cached_property) and not name.startswith("_"):
            yield name


def refusal(target: calls.Target, arguments: Mapping[str, Any]) -> str:
    """Call a target; return the ValueError's text, or "" where it answers soundly. Errors: anything else."""
    bounds = {}
    if target.name in MAY_BE_NEGATIVE:
        bounds["least"] = -sys.float_info.max
    if target.name in MAY_BE_INFINITE:
        bounds["most"] = math.inf
    try:
        answer = target(arguments)
        assert sound(answer, **bounds), f"{target.name}(**{arguments}) = {answer}"
        if isinstance(target.function, type) and dataclasses.is_dataclass(target.function):
            for name in properties(answer):
                value = getattr(answer, name)
                assert sound(value, **bounds), f"{target.name}(**{arguments}).{name} = {value}"
    except ValueError as error:
        return str(error)
    return ""


def damaged(value: Any, bad: Any) -> Iterator[Any]:
    """Yield the value with one thing inside it, however deep, replaced by `bad`; at last `bad` alone."""
    if isinstance(value, Mapping):
        for key in list(value)[:1]:
            yield from ({**value, key: each} for each in damaged(value[key], bad))
    elif hasattr(value, "_replace"):
        for name in value._fields:
            yield value._replace(**{name: bad})
    elif isinstance(value, list | tuple) and value:
        rest = value[1:]
        yield from ([each, *rest] if isinstance(value, list) else (each, *rest) for each in damaged(value[0], bad))
    elif dataclasses.is_dataclass(value) and any(bad is each for each in (0, 1.5, 40)):
        for field in dataclasses.fields(value):
            for each in damaged(getattr(value, field.name), bad):
                with contextlib.suppress(ValueError):  # the class refuses it
                    yield dataclasses.replace(value, **{field.name: each})
    yield bad


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_one_bad_argument_is_refused_or_answered_soundly(target):
    valid = target.valid()
    assert not refusal(target, valid)
    for name in target.hints:
        for bad in BAD:
            for value in damaged(valid.get(name), bad):
                refused = refusal(target, {**valid, name: value})
                if refused and any(bad is each for each in NEVER):
                    assert f"{name}=" in refused, f"{target.name} does not name {name}: {refused}"


PLACES = ("stage", "rank", "gpu", "center")


@pytest.mark.parametrize("name", PLACES)
def test_a_place_beyond_the_last_is_refused(name):
    """Also where an answer would be sound: rank 40 of 2 has no place."""
    found = [target for target in TARGETS if name in target.hints and target.name not in ANY_PLACE]
    for target in found:
        assert refusal(target, {**target.valid(), name: 40}), target.name
    assert found


# No number so large that a sound answer is infinite, and none so small.
NUMBERS = st.one_of(st.floats(max_value=0), st.floats(1e-3, 1e3), st.integers(max_value=50))
ANYTHING = st.one_of(NUMBERS, st.text(max_size=3), st.sampled_from(BAD))


@settings(max_examples=2000)
@given(st.sampled_from(TARGETS), st.data())
def test_any_bad_argument_is_refused_or_answered_soundly(target, data):
    valid = target.valid()
    name = data.draw(st.sampled_from(list(target.hints)))
    values = list(damaged(valid.get(name), data.draw(ANYTHING)))
    refusal(target, {**valid, name: data.draw(st.sampled_from(values))})


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("costs.collectives.algorithms.ring_all_reduce", {"nbytes": math.nan}, "nbytes=nan must be a finite number"),
        ("costs.collectives.algorithms.ring_all_reduce", {"ranks": math.inf}, "ranks=inf must be a whole number"),
        ("costs.collectives.bandwidth.algorithm_bandwidth", {"nbytes": -1}, "nbytes=-1 must be a finite number"),
        ("costs.memory.parts.kept", {"stage": -1}, "stage=-1 must be a whole number of at least 0"),
        ("costs.memory.parts.kept", {"stage": 2}, "stage=2 must be a whole number from 0 to 1"),
        ("costs.step.breakdown.Step.days", {"tokens": -1}, "tokens=-1 must be a finite number of at least 0"),
        ("costs.pipeline.timeline.sent_bytes", {"nbytes": -1}, "nbytes=-1 must be a finite number of at least 0"),
        ("costs.training.Training", {"microbatch": 1.5}, "microbatch=1.5 must be a whole number of at least 1"),
        ("sharding.layout.coordinates", {"rank": 99}, "rank=99 must be a whole number from 0 to 7"),
    ],
)
def test_what_once_had_a_wrong_answer_is_refused(name, changes, message):
    (target,) = (target for target in TARGETS if target.name == name)
    assert message in refusal(target, target.valid() | changes)


def test_every_exception_is_needed():
    names = {target.name for target in calls.targets()}
    assert MAY_BE_NEGATIVE.keys() | MAY_BE_INFINITE.keys() | ANY_PLACE.keys() <= names
    assert all(any(name.startswith(each) for name in names) for each in NOT_CALLED)


# ---- the checks themselves -----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    one: int
    other: Positive


@dataclasses.dataclass(frozen=True)
@checked
class Box:
    sizes: tuple[Count, ...]
    rate: Share = 0.5

    def __post_init__(self) -> None:
        if len(self.sizes) > 3:
            raise ValueError("a box has three sizes at most")

    def times(self, factor: float) -> float:
        return factor * self.sizes[0]


FAIR = Pair(1, 1.0)


@checked
def everything(  # noqa: PLR0913
    whole: int = 0,
    amount: float = 0.0,
    exact: Exact = 0,
    shift: Integer = 0,
    flag: bool = False,
    maybe: str | None = None,
    pair: Pair = FAIR,
    box: Box | None = None,
    ends: tuple[int, str] = (0, ""),
    table: Mapping[str, Sequence[float]] = {},
    several: Iterable[Count] = (),
    how: Callable[[], int] = int,
    **others: int,
) -> str:
    return "answered"


@pytest.mark.parametrize(
    "argument",
    [
        {"whole": 10**400},
        {"amount": 3},
        {"exact": Fraction(1, 3)},
        {"shift": -1},
        {"maybe": "text"},
        {"box": Box((1, 2))},
        {"table": {"a": [1, 2.5]}},
        {"several": iter([0])},
        {"several": {1: 2}.keys()},
        {"how": len},
        {"more": 1},
    ],
)
def test_what_a_hint_allows_is_answered(argument):
    assert everything(**argument) == "answered"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"whole": 1.0}, "whole=1.0 must be a whole number of at least 0"),
        ({"whole": True}, "whole=True must be a whole number of at least 0"),
        ({"amount": 10**400}, "must be a finite number of at least 0"),
        ({"amount": "3"}, "amount='3' must be a finite number of at least 0"),
        ({"exact": Fraction(-1, 3)}, "exact=Fraction(-1, 3) must be a finite number of at least 0"),
        ({"shift": math.nan}, "shift=nan must be a whole number"),
        ({"flag": 1}, "flag=1 must be True or False"),
        ({"maybe": 1}, "maybe=1 must be a text or None"),
        ({"pair": Pair(1, 0.0)}, "pair=Pair(one=1, other=0.0) must be a Pair of sound fields"),
        ({"pair": (1, 1.0)}, "pair=(1, 1.0) must be a Pair of sound fields"),
        ({"box": 3}, "box=3 must be a Box or None"),
        ({"ends": (1,)}, "ends=(1,) must be a tuple of a whole number of at least 0, then a text"),
        ({"table": {"a": [math.inf]}}, "table={'a': [inf]} must be a dict from a text to a list or"),
        ({"several": [0]}, "several=[0] must be some items, each a whole number of at least 1"),
        ({"several": "12"}, "several='12' must be some items"),
        ({"how": 3}, "how=3 must be a function"),
        ({"more": -1}, "more=-1 must be a whole number of at least 0"),
    ],
)
def test_what_a_hint_excludes_is_refused_by_name(argument, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        everything(**argument)


def test_a_place_names_its_argument_too():
    with pytest.raises(ValueError, match="amount=-1 must be"):
        everything(0, -1)


def test_data_and_its_methods_are_checked_before_what_the_class_checks_itself():
    for sizes, message in [((0,) * 9, "sizes="), ((1,) * 9, "three sizes at most")]:
        with pytest.raises(ValueError, match=message):
            Box(sizes)
    with pytest.raises(ValueError, match="factor=nan"):
        Box((1,)).times(math.nan)
    with pytest.raises(ValueError, match=r"rate=1\.5 must be a share of the peak"):
        dataclasses.replace(Box((1,)), rate=1.5)


def test_only_the_entrance_is_checked():
    @checked
    def inner(number: int) -> int:
        return number

    @checked
    def outer(number: int) -> int:
        return inner(-number)

    assert outer(2) == -2
    with pytest.raises(ValueError, match="number=-2"):
        inner(-2)
    assert unchecked(inner)(-2) == -2


def test_the_checks_are_on_again_after_an_error():
    @checked
    def failing(number: int) -> int:
        return 1 // number

    with pytest.raises(ZeroDivisionError):
        failing(0)
    with pytest.raises(ValueError, match="number=-1"):
        failing(-1)


def test_a_place_in_a_row_is_within_it():
    within("stage", 1, 2)
    for count, allowed in [(1, "0"), (2, "a whole number from 0 to 1")]:
        with pytest.raises(ValueError, match=f"stage=2 must be {allowed}$"):
            within("stage", 2, count)
