"""What a checkpoint holds beside boxes: the options of optimizers, and random states."""

import inspect
import random
import reprlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from shardlab.files import given

from .boxes import COUNT
from .index import SavedTensor, damaged

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
    groups = optimizer.param_groups
    return [{name: group[name] for name in optimizer.defaults} for group in groups]


def restore_options(optimizer: Optimizer, saved: Any, path: str | Path) -> None:
    """Restore what `options_of` returned and the checkpoint at `path` has held.

    Errors: ValueError for options of another optimizer, and for values that this one does not take.
    """
    if not isinstance(saved, list) or not all(isinstance(options, dict) for options in saved):
        raise damaged(path, f"its options of the optimizer are {reprlib.repr(saved)}")
    groups = optimizer.param_groups
    if len(saved) != len(groups):
        raise _of_another(path, f"options of {len(saved)} groups of parameters", len(groups))
    for group, here, there in zip(groups, options_of(optimizer), saved, strict=True):
        unknown = [name for name in there if name not in here or _decides(here[name], there[name])]
        if unknown:
            other = {name: here[name] for name in here if name not in there or name in unknown}
            raise _of_another(path, {name: there[name] for name in unknown}, other)
        restored = {}
        for name, option in there.items():
            mine = here[name]
            if not _suits(option, mine):
                raise damaged(path, f"the option {name} is {option!r} there, and {mine!r} here")
            restored[name] = tuple(option) if isinstance(mine, tuple) else option
        _twin(optimizer, here | restored, path)
        group.update(restored)


def check_states(
    optimizer: Optimizer,
    saved: Mapping[str, SavedTensor],
    shapes: Mapping[str, Sequence[int]],
    path: str | Path,
) -> None:
    """Check that the states in a checkpoint are those that a step of this optimizer makes.

    saved: the checkpoint's `contents`. shapes: of the parameters. Call it after `restore_options`,
    on which the states depend. Errors: ValueError for other names, dtypes or shapes.
    """
    twin = _twin(optimizer, options_of(optimizer)[0], path)
    if twin is None:
        return
    (probe,) = twin.param_groups[0]["params"]
    found: dict[str, dict[str, Any]] = {}
    for name, each in saved.items():
        kind, _, parameter = name.partition("/")
        if parameter in shapes and kind != "weights":
            found.setdefault(parameter, {})[kind] = _described(kind, each.dtype, each.shape)
    for parameter, there in found.items():
        here = {}
        for kind, state in twin.state[probe].items():
            shape = tuple(shapes[parameter]) if state.shape == probe.shape else tuple(state.shape)
            here[kind] = _described(kind, state.dtype, shape)
        if there != here:
            raise _of_another(path, f"{parameter} has {there}", here)


def _twin(optimizer: Optimizer, options: Options, path: str | Path) -> Optimizer | None:
    """Make an optimizer of the same class that has taken a step, so that its own checks speak.

    Returns None if the class needs more than its options. Errors: ValueError for its refusal.
    """
    like = optimizer.param_groups[0]["params"][0]

    def make(options: Options) -> Optimizer:
        probe = torch.zeros(tuple(range(2, 2 + like.ndim)), dtype=like.dtype, device=like.device)
        probe.grad = torch.zeros_like(probe)
        known = inspect.signature(type(optimizer)).parameters
        taken = {name: option for name, option in options.items() if name in known}
        twin = type(optimizer)([probe], **taken)
        twin.step()
        return twin

    try:
        make(options_of(optimizer)[0])
    except WRONG:
        return None
    try:
        return make(options)
    except WRONG as error:
        raise damaged(path, f"its options of the optimizer are refused: {error}") from None


def _of_another(path: str | Path, there: Any, here: Any) -> ValueError:
    """Make the error of a checkpoint that is sound, but not for this optimizer."""
    what = f"{path} was saved with another optimizer: {there} there, and {here} here; "
    return ValueError(given.line(what + "build the model and the optimizer that were saved"))


def _described(kind: str, dtype: torch.dtype, shape: Sequence[int]) -> str:
    """Describe a state; the dtype of a count follows torch's default, so either of two will do."""
    is_count = kind == COUNT and dtype in (torch.float32, torch.float64)
    return f"{'float' if is_count else str(dtype).removeprefix('torch.')} {[*shape]}"


def _decides(here: Any, there: Any) -> bool:
    """Whether an option that chooses an algorithm, and is no number, chooses another one there."""
    if here is None:  # torch chooses, as for `foreach`
        return not isinstance(there, bool | None)
    return isinstance(here, bool | str) and (type(there), there) != (type(here), here)


def _suits(new: Any, old: Any) -> bool:
    """Whether an option from JSON can take the place of `old`; JSON has lists for tuples."""
    if isinstance(old, tuple):
        alike = isinstance(new, list) and len(new) == len(old)
        return alike and all(map(_suits, new, old))
    if isinstance(old, bool) or not isinstance(old, int | float):
        return not _decides(old, new)
    is_number = isinstance(new, int | float) and not isinstance(new, bool)
    return is_number and abs(new) <= sys.float_info.max  # not of NaN


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
