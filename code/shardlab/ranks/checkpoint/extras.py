"""What a checkpoint holds beside boxes: the options of optimizers, and random states."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from .index import damaged

Options = dict[str, Any]
WRONG = (
    AttributeError,
    KeyError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
)
# ---- the options of optimizers -----------------------------------------------------------------


def options_of(optimizer: Optimizer) -> list[Options]:
    """Return the options of each group of parameters, such as its learning rate."""
    found = []
    for group in optimizer.param_groups:
        options = dict(group)
        del options["params"]
        found.append(options)
    return found


def restore_options(optimizer: Optimizer, saved: Any, path: str | Path) -> None:
    """Restore what `options_of` returned and the checkpoint at `path` has held.

    Errors: ValueError if they are not of the types that this optimizer has.
    """
    groups = optimizer.param_groups
    if not isinstance(saved, list) or len(saved) != len(groups):
        raise damaged(path, f"its options are not those of {len(groups)} groups of parameters")
    for group, options in zip(groups, saved, strict=True):
        if not isinstance(options, dict):
            raise damaged(path, f"the options of a group of parameters are {options!r}")
        for name, option in options.items():
            if not _suits(option, group.get(name)):
                raise damaged(
                    path,
                    f"the option {name} is {option!r} there, and {group.get(name)!r} here",
                )
            is_tuple = isinstance(group.get(name), tuple)
            group[name] = tuple(option) if is_tuple else option


def _suits(new: Any, old: Any) -> bool:
    """Whether an option from JSON can take the place of `old`; JSON has lists for tuples."""
    if isinstance(old, tuple):
        alike = isinstance(new, list) and len(new) == len(old)
        return alike and all(map(_suits, new, old))
    if isinstance(old, bool) or not isinstance(old, int | float):
        return isinstance(new, int | float | str | None if old is None else type(old))
    return isinstance(new, int | float) and not isinstance(new, bool)


# ---- random states -----------------------------------------------------------------------------


def random_states() -> dict[str, Any]:
    """Return the random states of torch, on the CPU and on this rank's GPU, and of Python."""
    version, numbers, gauss = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "python": torch.tensor(numbers),
        "version": version,
        "gauss": gauss,
    }
    if torch.cuda.is_initialized():
        states["gpu"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: Mapping[str, Any], path: str | Path) -> None:
    """Restore what `random_states` returned and the checkpoint at `path` has held.

    Errors: ValueError if something is missing or has another type.
    """
    try:
        numbers = tuple(states["python"].tolist())
        gauss = states["gauss"]
        if not isinstance(gauss, float | None):
            raise TypeError(f"gauss is {gauss!r}")
        random.setstate((states["version"], numbers, gauss))
        torch.set_rng_state(states["torch"].cpu())
        if "gpu" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["gpu"].cpu())
    except WRONG as error:
        raise damaged(path, f"its random states are none ({error!r})") from None
