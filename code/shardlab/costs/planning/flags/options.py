"""The options of one program for one plan, as data and as text."""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from shardlab.files.arguments import checked

from ...training import Training

Value = int | str | bool
Options = dict[str, Value]  # True: the name alone; DeepSpeed's names are paths into its JSON
FP32 = 4  # bytes
STATES_CUT, ALL_CUT = 1, 3  # stages of ZeRO: the optimizer's states; also gradients and parameters


@dataclass(frozen=True, kw_only=True)
@checked
class Flags:
    """The options of one program for one plan."""

    program: str
    values: Options
    remarks: tuple[str, ...] = ()  # what differs from the plan, or is set elsewhere
    refusal: str = ""  # why the program cannot run the plan; "": it can

    @property
    def text(self) -> str:
        """The options as one writes them: a command line, or the JSON of DeepSpeed."""
        if self.program == "DeepSpeed":
            return json.dumps(self.nested, indent=2)
        words = [
            name if value is True else f"{name} {value}" for name, value in self.values.items()
        ]
        return " \\\n".join(words)

    @property
    def nested(self) -> dict[str, Any]:
        """The options as a tree: "bf16.enabled" is an entry of "bf16"."""
        tree: dict[str, Any] = {}
        for path, value in self.values.items():
            *folders, name = path.split(".")
            place = tree
            for folder in folders:
                place = place.setdefault(folder, {})
            place[name] = value
        return tree


@checked
def first(causes: Mapping[str, bool]) -> str:
    """Return the first cause that holds, "" where none does."""
    return next((cause for cause, holds in causes.items() if holds), "")


@checked
def cut_beside_stages(training: Training) -> dict[str, bool]:
    """Say whether gradients or parameters are cut beside pipeline stages."""
    layout = training.layout
    cause = f"ZeRO-{layout.zero} does not run with pipeline stages; choose ZeRO 0 or 1"
    return {cause: layout.zero > STATES_CUT and layout.pp > 1}


@checked
def lacks_schedule(training: Training, known: Collection[str]) -> dict[str, bool]:
    """Say that the program's pipeline does not have the plan's schedule."""
    cause = f"its pipeline has no {training.schedule} schedule; choose {' or '.join(known)}"
    return {cause: training.layout.pp > 1 and training.schedule not in known}


@checked
def states_are_not_set_up(training: Training) -> dict[str, bool]:
    """Say that no options are known here for layers that keep states instead of keys."""
    recurrent = training.spec.recurrent
    rule = recurrent.rule if recurrent else "states"
    return {f"no options for layers of {rule} are known here": recurrent is not None}


@checked
def equal_layers(training: Training) -> int | None:
    """Count the layers of each chunk; None where chunks are unequal."""
    pieces = training.layout.pp * training.chunks
    layers, rest = divmod(training.spec.num_layers, pieces)
    return None if rest else layers
