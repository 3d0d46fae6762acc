"""Bad arguments are refused where they enter: by the hints of a function, in a ValueError.

    @checked
    def all_gather(nbytes: float, ranks: Count) -> Cost: ...

    all_gather(1e9, 0)  # ValueError: ranks=0 must be a whole number of at least 1

An `int` is a whole number of at least 0, a `float` a finite number of at least 0. A narrower or a
wider hint has a name below. Containers are checked with all they hold, data by its class: a data
class that is `checked` holds only what its fields allow.
"""

import reprlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import wraps
from inspect import Parameter, isfunction, signature
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Thing = TypeVar("Thing")
Test = Callable[[Any], bool]

LARGEST = sys.float_info.max
OTHERS = "**"  # in the place of the names that a function takes by **
_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = 80


class Kind(NamedTuple):
    """What an argument must be, in words, and a test for it."""

    words: str
    holds: Test


def _whole(value: Any) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _finite(value: Any) -> bool:
    real = type(value) is float or (isinstance(value, Real) and not isinstance(value, bool))
    return real and -LARGEST <= value <= LARGEST


def _whole_from(least: int) -> Kind:
    words = f"a whole number of at least {least}"
    return Kind(words, lambda value: _whole(value) and value >= least)


def _number(words: str, holds: Test) -> Kind:
    return Kind(words, lambda value: _finite(value) and holds(value))


_PLAIN: dict[Any, Kind] = {
    Any: Kind("anything", lambda value: True),
    object: Kind("anything", lambda value: True),
    int: _whole_from(0),
    float: _number("a finite number of at least 0", lambda value: value >= 0),
    str: Kind("a text", lambda value: isinstance(value, str)),
    bool: Kind("True or False", lambda value: isinstance(value, bool)),
    None: Kind("None", lambda value: value is None),
    type(None): Kind("None", lambda value: value is None),
}

# ---- hints for numbers with other bounds ---------------------------------------------------------

Count = Annotated[int, _whole_from(1)]
Integer = Annotated[int, Kind("a whole number", _whole)]
Number = Annotated[float, Kind("a finite number", _finite)]
Positive = Annotated[float, _number("a finite number above 0", lambda value: value > 0)]
_SHARE = "a share of the peak, above 0 and at most 1; use 0.4 for 40 %"
Share = Annotated[float, _number(_SHARE, lambda value: 0 < value <= 1)]
# A number of any type, such as a Fraction, with which sums stay exact.
Exact = Annotated[Any, _PLAIN[float]]


# ---- entrances -----------------------------------------------------------------------------------


def checked(thing: Thing) -> Thing:
    """Make a function, or a class and its public methods, refuse arguments that its hints exclude.

    Put it above the other decorators of a function, and below `dataclass`: fields are checked
    before the class's own `__post_init__` runs. Errors: ValueError that names the argument.
    """
    if not isinstance(thing, type):
        return _entrance(thing)  # type: ignore[return-value, arg-type]
    for name, method in list(vars(thing).items()):
        if isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(thing, name, _entrance(method))
    if "__init__" not in vars(thing):
        _check_fields(thing)
    return thing


def unchecked(function: Thing) -> Thing:
    """Return the function behind the checks, for a loop that calls it a hundred thousand times."""
    return getattr(function, "__wrapped__", function)


def within(name: str, value: int, count: int) -> None:
    """Refuse a `value` that does not number one of `count` things, counted from 0."""
    if not 0 <= value < count:
        allowed = f"a whole number from 0 to {count - 1}" if count > 1 else "0"
        raise ValueError(f"{name}={value!r} must be {allowed}")


# Within a checked function nothing is checked again: a search would take 1.8 times as long.
_inside: ContextVar[bool] = ContextVar("inside", default=False)


def _entrance(function: Callable[..., Any]) -> Callable[..., Any]:
    kinds: dict[str, Kind] = {}
    tests: list[Test] = []

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _inside.get():
            return function(*args, **kwargs)
        if not kinds:  # at the first call, when every class of a hint exists
            learned = _kinds_of(function)
            tests[:] = [kind.holds for kind in learned.values()]
            kinds.update(learned)
        for place, (holds, value) in enumerate(zip(tests, args, strict=False)):
            if not holds(value):
                _refuse(list(kinds)[place], value, list(kinds.values())[place])
        for name, value in kwargs.items():
            kind = kinds.get(name) or kinds[OTHERS]
            if not kind.holds(value):
                _refuse(name, value, kind)
        token = _inside.set(True)
        try:
            return function(*args, **kwargs)
        finally:
            _inside.reset(token)

    return call


def _check_fields(data: Any) -> None:
    kinds: dict[str, Kind] = {}
    own = getattr(data, "__post_init__", None)

    def post_init(self: Any) -> None:
        if not _inside.get():
            if not kinds:
                hints = get_type_hints(data, include_extras=True)
                kinds.update({name: _kind(hint) for name, hint in hints.items()})
            for name, kind in kinds.items():
                if not kind.holds(getattr(self, name)):
                    _refuse(name, getattr(self, name), kind)
        if own:
            own(self)

    data.__post_init__ = post_init


def _kinds_of(function: Callable[..., Any]) -> dict[str, Kind]:
    """Return what each argument must be, in order, and last what all others must be."""
    hints = get_type_hints(function, include_extras=True)
    kinds = {OTHERS: _PLAIN[Any]}
    for name, parameter in signature(function).parameters.items():
        others = parameter.kind is Parameter.VAR_KEYWORD
        kinds[OTHERS if others else name] = _kind(hints.get(name, Any))
    kinds[OTHERS] = kinds.pop(OTHERS)
    return kinds


def _refuse(name: str, value: Any, kind: Kind) -> NoReturn:
    raise ValueError(f"{name}={_REPR.repr(value)} must be {kind.words}")


# ---- what a hint allows --------------------------------------------------------------------------


def _kind(hint: Any) -> Kind:
    if hint in _PLAIN:
        return _PLAIN[hint]
    origin = get_origin(hint)
    inside = get_args(hint)
    if origin is Annotated:
        return next(each for each in inside if isinstance(each, Kind))
    if origin is not None:
        return _of_generic(origin, inside)
    if not hasattr(hint, "_fields"):
        return _instance(hint)
    fields = get_type_hints(hint, include_extras=True)
    named = _instance(hint)
    return _each_its_own(Kind(f"{named.words} of sound fields", named.holds), fields.values())


def _of_generic(origin: Any, inside: tuple[Any, ...]) -> Kind:
    if origin in (Union, types.UnionType):
        ways = [_kind(each) for each in inside]
        words = " or ".join(kind.words for kind in ways)
        return Kind(words, lambda value: any(kind.holds(value) for kind in ways))
    if issubclass(origin, Callable):  # type: ignore[arg-type]
        return Kind("a function", callable)
    kinds = [_kind(each) for each in inside if each is not Ellipsis]
    if issubclass(origin, Mapping):
        return _mapping(*kinds)
    if origin is tuple and Ellipsis not in inside:
        words = f"a tuple of {', then '.join(kind.words for kind in kinds)}"
        return _each_its_own(Kind(words, _is_sequence), inside)
    (kind,) = kinds
    return _iterable(kind) if issubclass(Iterator, origin) else _sequence(kind)


def _instance(hint: type) -> Kind:
    article = "an" if hint.__name__[0] in "AEIO" else "a"
    return Kind(f"{article} {hint.__name__}", lambda value: isinstance(value, hint))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _each_its_own(whole: Kind, hints: Iterable[Any]) -> Kind:
    """Allow tuples whose items have hints of their own."""
    tests = [_kind(hint).holds for hint in hints]

    def holds(value: Any) -> bool:
        return (
            whole.holds(value)
            and len(value) == len(tests)
            and all(test(each) for test, each in zip(tests, value, strict=True))
        )

    return Kind(whole.words, holds)


def _sequence(kind: Kind) -> Kind:
    words = f"a list or a tuple, each item {kind.words}"
    return Kind(words, lambda value: _is_sequence(value) and all(map(kind.holds, value)))


def _iterable(kind: Kind) -> Kind:
    """Allow whatever can be iterated over; what an iterator yields is not known yet."""

    def holds(value: Any) -> bool:
        if isinstance(value, Iterator):
            return True
        several = isinstance(value, Iterable) and not isinstance(value, str)
        return several and all(map(kind.holds, value))

    return Kind(f"some items, each {kind.words}", holds)


def _mapping(key: Kind, item: Kind) -> Kind:
    def holds(value: Any) -> bool:
        return (
            isinstance(value, Mapping)
            and all(map(key.holds, value))
            and all(map(item.holds, value.values()))
        )

    return Kind(f"a dict from {key.words} to {item.words}", holds)
