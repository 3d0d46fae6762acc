"""The fields of a `config.json`: each is used, known to change no size, or refused by its name."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import listed

from .. import limits
from .defaults import DEFAULTS
from .known import ATTENTIONS, DROPOUTS, IGNORED, NO_SIZES, SIZES, confirmed

SHOWN = 40  # characters of a value in a message


class Fields:
    """The fields of a file; each is taken once, and those that are left are known.

    A field that the file leaves out has its architecture's default in transformers; null means
    what it means there.
    """

    def __init__(self, config: Mapping[str, Any], architecture: str = "") -> None:
        self.config = config
        self.defaults = DEFAULTS.get(architecture, {})
        self.left = set(config)
        self.inner: dict[str, Fields] = {}
        self.assumed: dict[str, int | None] = {}
        self.notes: list[str] = []
        self.attentions = set(ATTENTIONS)

    def inside(self, name: str) -> "Fields":
        """Take a field that is an object; its fields, too, are used or refused."""
        self.inner[name] = Fields(self.take(name, dict))
        return self.inner[name]

    def same(self, name: str, *others: str) -> None:
        """Take other names of a field. Errors: ValueError where a file has two values of it."""
        for other in others:
            self.left.discard(other)
            value, own = self.config.get(other), self.config.get(name)
            if value is not None and own not in (None, value):
                raise ValueError(
                    f"{name}={short(own)} and {other}={short(value)} name the same size; remove "
                    "the one that the checkpoint does not have"
                )
            if value is not None:
                self.config = {**self.config, name: value}

    def take(self, name: str, kind: Any, *default: Any) -> Any:
        """Take a field that must be of a kind; `default` is for null, and where none is known."""
        self.left.discard(name)
        value = self.config.get(name, self.defaults.get(name))
        if value is None and default:
            return default[0]
        if value is None:
            raise ValueError(f"the file has no {name}; use the config.json of a language model")
        wrong = isinstance(value, bool) and kind is not bool
        if wrong or not isinstance(value, kind):
            raise ValueError(f"{name}={short(value)} must be {KINDS[kind]}")
        return value

    def count(self, name: str, *default: int | None, least: int = 1) -> Any:
        """Take a size: a whole number from `least` to the limit of layers or of other sizes."""
        value = self.take(name, int, *default)
        if value is not None:
            limits.hold(name, value, limits.LAYERS if "layer" in name else limits.SIZE, least)
        if name not in self.config and name in self.defaults:
            self.assumed[name] = value
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Take a field that is true or false."""
        return bool(self.take(name, bool, default))

    def only(self, name: str, *allowed: Any) -> None:
        """Take a field that may be left out, and otherwise must have one of the values."""
        self.left.discard(name)
        if name in self.config and self.config[name] not in allowed:
            value = self.config[name]
            raise ValueError(
                f"{name}={short(value)} is not understood; with this architecture only "
                f"{_countable(value, allowed)}"
            )

    def ignore(self, *names: str) -> None:
        """Leave out fields on which no size of this architecture depends."""
        self.left.difference_update(names)

    def dropout(self) -> bool:
        """Tell whether the model drops numbers everywhere, as GPT-2 does, or nowhere."""
        names = [name for name in DROPOUTS if name in self.left or name in self.defaults]
        shares = {name: self.take(name, (int, float), 0) for name in names}
        if len({share > 0 for share in shares.values()}) > 1:
            given = ", ".join(f"{name}={share}" for name, share in shares.items())
            raise ValueError(
                f"{given} drops numbers in some places and not in others; set all of them to 0, "
                "or none, in a copy of the file"
            )
        return any(shares.values())

    def note(self) -> None:
        """Take fields that change no parameter, and note what the times and bytes leave out."""
        if self.assumed:
            sizes = ", ".join(f"{name}={value}" for name, value in self.assumed.items())
            self.notes.append(f"left out, so as in transformers: {sizes}")
        self.left.discard("use_sliding_window")
        layers = self.take("layer_types", list, [])
        if unknown := [each for each in layers if str(each) not in self.attentions]:
            knows = listed(sorted(self.attentions))
            raise ValueError(f"layer_types has {unknown[0]!r}; known: {knows}")
        window = self.take("sliding_window", int, None)
        if window and self.flag("use_sliding_window", True):
            self.notes.append(
                f"sliding_window={window}: attention is timed over all earlier tokens"
            )
        if self.take("quantization_config", dict, None):
            self.notes.append("quantization_config: ignored, the plan's recipe sets the formats")
        more = self.take("num_nextn_predict_layers", int, 0)
        if more:
            self.notes.append(f"num_nextn_predict_layers={more}: their parameters are not counted")

    def refuse_others(
        self,
        architecture: str,
        spec: TransformerSpec,
        ignore_unknown: bool,
        ignore_sizes: Collection[str],
    ) -> tuple[str, ...]:
        """Return the fields that nobody took and that the caller ignores, with their values.

        Errors: ValueError that lists the others; those that may be sizes must be named each.
        """
        for name, values in confirmed(spec).items():
            if name in self.left:
                self.only(name, *values)
        others = dict(self._others())
        if strangers := [name for name in ignore_sizes if name not in others]:
            raise ValueError(
                f"--ignore-size {listed(strangers)}: the file has no such field that is not "
                f"understood; {f'it has {listed(others)}' if others else 'leave the option out'}"
            )
        unnamed = {name: value for name, value in others.items() if name not in ignore_sizes}
        sizes = [name for name, value in unnamed.items() if _may_be_a_size(name, value)]
        if unnamed and not ignore_unknown:
            way_out = "use --ignore-unknown" if len(sizes) < len(unnamed) else ""
        else:
            unnamed, way_out = {name: unnamed[name] for name in sizes}, ""
        if sizes:
            each = f"--ignore-size {','.join(sizes)}, which leaves the count in doubt"
            way_out = f"{way_out} and {each}" if way_out else f"use {each}"
        if unnamed:
            raise ValueError(
                f"{architecture} has fields that are not understood: {_written(unnamed)}; if no "
                f"size depends on them, remove them from a copy of the file, or {way_out}"
            )
        return tuple(f"{name}={short(value)}" for name, value in others.items())

    def _others(self) -> Iterator[tuple[str, Any]]:
        """Yield the fields that nobody took, those of objects as "object.field"."""
        for name in sorted(self.left - IGNORED):
            if not NO_SIZES.search(name):
                yield name, self.config[name]
        for outer, fields in self.inner.items():
            yield from ((f"{outer}.{name}", value) for name, value in fields._others())


def _may_be_a_size(name: str, value: Any) -> bool:
    """Whether a field is called like a size, or holds a number above 1, a list or an object."""
    if isinstance(value, bool) or value is None:
        return False
    number = isinstance(value, int | float) and value > 1
    return number or isinstance(value, list | dict) or bool(re.search(SIZES, name))


def _written(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short(value)}" for name, value in values.items())


def _countable(value: Any, allowed: Collection[Any]) -> str:
    """Say what can be counted in place of a value; of a list, at the first place that differs."""
    lists = [each for each in allowed if isinstance(each, list)]
    if isinstance(value, list) and lists and lists[0]:
        (wanted,) = lists
        if len(value) != len(wanted):
            return f"{len(wanted)} entries can be counted, and it has {len(value)}"
        index = next(index for index, each in enumerate(wanted) if each != value[index])
        return f"{wanted[index]!r} can be counted at index {index}, not {short(value[index])}"
    return f"{listed(map(short, allowed))} can be counted"


def short(value: Any) -> str:
    """Return a value as an error message shows it, with an end."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


KINDS: dict[Any, str] = {
    int: "a whole number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "an object",
    (int, float): "a number",
}
