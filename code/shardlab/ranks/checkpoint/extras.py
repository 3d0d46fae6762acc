"""What a checkpoint holds beside boxes: the options of optimizers, and random states."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from .index import damaged

# ---- the options of optimizers -----------------------------------------------------------------


def options_of(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the options of each group of parameters, such as its learning rate."""
    groups = []
    for group in optimizer.param_groups:
        groups.append({name: option for name, option in group.items() if name != "params"})
    return groups


def restore_options(optimizer: Optimizer, options: Any, path: str | Path) -> None:
    """Restore what `options_of` returned and the checkpoint at `path` has held.

    Errors: ValueError if they are not of the types that this optimizer has.
    """
    groups = optimizer.param_groups
    if not isinstance(options, list) or len(options) != len(groups):
        raise damaged(path, f"its options are not those of {len(groups)} groups of parameters")
    for group, saved in zip(groups, options, strict=True):
        if not isinstance(saved, dict):
            raise damaged(path, f"the options of a group of parameters are {saved!r}")
        for name, option in saved.items():
            group[name] = _like(group.get(name), option, path, name)


def _like(old: Any, new: Any, path: str | Path, name: str) -> Any:
    """Return an option as JSON holds it with the type of its predecessor, for instance a tuple."""
    if isinstance(old, tuple) and isinstance(new, list) and len(new) == len(old):
        return tuple(_like(a, b, path, name) for a, b in zip(old, new, strict=True))
    is_number = isinstance(new, int | float) and not isinstance(new, bool)
    if isinstance(old, tuple) or (type(old) in (int, float) and not is_number):
        raise damaged(path, f"the option {name} is {new!r} there, and {old!r} here")
    return new


# ---- random states -----------------------------------------------------------------------------


def random_states() -> dict[str, Any]:
    """Return the random states of torch, on the CPU and on this rank's GPU, and of Python."""
    version, numbers, gauss = random.getstate()
    gpu = {"gpu": torch.cuda.get_rng_state()} if torch.cuda.is_initialized() else {}
    python = {"version": version, "python": torch.tensor(numbers), "gauss": gauss}
    return {"torch": torch.get_rng_state(), **python, **gpu}


def restore_random_states(states: Mapping[str, Any], path: str | Path) -> None:
    """Restore what `random_states` returned and the checkpoint at `path` has held.

    Errors: ValueError if something is missing or has another type.
    """
    try:
        numbers = tuple(states["python"].tolist())
        random.setstate((states["version"], numbers, states["gauss"]))
        torch.set_rng_state(states["torch"].cpu())
        if "gpu" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["gpu"].cpu())
    except (AttributeError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise damaged(path, f"its random states are none ({error!r})") from None
