"""The fields of a `config.json`: each is used, known to change no size, or refused by its name."""

from collections.abc import Mapping
from typing import Any

from shardlab.sharding.layout import listed

from .. import limits
from .defaults import DEFAULTS
from .known import ATTENTIONS, CONFIRMED, DROPOUTS, IGNORED

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
        self.assumed: dict[str, int | None] = {}
        self.notes: list[str] = []
        self.attentions = set(ATTENTIONS)

    def rename(self, names: Mapping[str, str]) -> None:
        """Call fields as transformers does: own name -> name there."""
        self.config = {names.get(name, name): value for name, value in self.config.items()}
        self.left = set(self.config)

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
            raise ValueError(f"{name}={value!r} must be {KINDS[kind]}")
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
            raise ValueError(
                f"{name}={_short(self.config[name])} is not understood; with this architecture "
                f"only {listed(map(repr, allowed))} can be counted"
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

    def refuse_others(self, architecture: str, ignore_unknown: bool) -> None:
        """Raise ValueError that lists the fields that nobody took and that may change a size."""
        for name in sorted(self.left & CONFIRMED.keys()):
            self.only(name, *CONFIRMED[name])
        others = [f"{name}={_short(self.config[name])}" for name in sorted(self.left - IGNORED)]
        if others and not ignore_unknown:
            raise ValueError(
                f"{architecture} has fields that are not understood: {', '.join(others)}; if no "
                "size depends on them, remove them from a copy of the file, or use --ignore-unknown"
            )
        if others:
            self.notes.append(f"not understood, and ignored: {', '.join(others)}")


def _short(value: Any) -> str:
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
