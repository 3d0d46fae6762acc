"""Carry a call to a rank and its result back, as copies whose tensors change device.

So the same function runs on the CPU and on GPUs. On a rank, the arguments, the variables that the
function uses from its notebook or script, and the tensors that it makes are all on the rank's
device; the result returns to the CPU.
"""

import copyreg
import functools
import inspect
import io
import pickle
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle


def away(fn: Callable[..., Any], group: Any, args: tuple[Any, ...], device: Any) -> bytes:
    """Call fn(group, *args) as on a rank that has just started, and return its packed result."""
    fn, args = unpacked(packed((fn, args)), device)
    with _afresh(device):
        return packed_result(fn(group, *args), packed)


def _by_value(cached: Any) -> Any:
    """Pickle a function with a cache as cloudpickle does others, which pickle would only name."""
    name = cached.__qualname__
    by_value = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    if cached.__module__ not in by_value and "<locals>" not in name:
        return name
    new = functools.partial(_empty, **cached.cache_parameters())
    return new, (), cached.__wrapped__, None, None, functools.update_wrapper


def _empty(**parameters: Any) -> Any:
    """Make a cache whose function is set later, since that may call itself by its name."""

    def called(*args: Any, **options: Any) -> Any:
        return cached.__wrapped__(*args, **options)

    cached: Any = functools.lru_cache(**parameters)(called)
    return cached


copyreg.pickle(functools._lru_cache_wrapper, _by_value)


def packed(x: Any) -> bytes:
    """Pickle anything, also functions of a script or notebook, with the variables that they use."""
    import torch

    whole = io.BytesIO()
    torch.save(x, whole, pickle_module=cloudpickle, pickle_protocol=pickle.DEFAULT_PROTOCOL)
    return whole.getvalue()


def unpacked(whole: bytes, device: Any = "cpu") -> Any:
    """Unpickle what `packed` returned, with its tensors on the device."""
    import torch

    return torch.load(io.BytesIO(whole), map_location=device, weights_only=False)


def packed_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    """Pickle a call. Errors: TypeError that names the variable that cannot be copied."""
    try:
        call: bytes = cloudpickle.dumps((fn, args))
        return call
    except Exception as error:
        used = inspect.getclosurevars(fn) if inspect.isfunction(fn) else None
        named = {**used.globals, **used.nonlocals} if used else {}
        named |= {f"args[{position}]": value for position, value in enumerate(args)}
        stuck = [name for name, value in named.items() if not _can_travel(value)]
        raise TypeError(
            f"{' and '.join(stuck) or 'the function'} cannot be copied to the ranks ({error}); "
            "make it inside the function"
        ) from None


def _can_travel(value: Any) -> bool:
    try:
        return bool(cloudpickle.dumps(value))
    except Exception:
        return False


def unpacked_call(call: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Unpickle a call on a rank. Errors: TypeError where pickle has only a name that is not here."""
    try:
        fn, args = pickle.loads(call)
    except AttributeError as error:
        raise TypeError(f"{error}; make it inside the function") from None
    if getattr(fn, "__module__", "") == "__main__":
        # pickle looks there for the classes of a notebook's cells
        vars(sys.modules["__main__"]).update(getattr(fn, "__globals__", {}))
    return fn, args


def packed_result(result: Any, pack: Callable[[Any], bytes] = cloudpickle.dumps) -> bytes:
    """Pickle what a function returned. Errors: TypeError that says what may be returned."""
    try:
        return pack(result)
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(result).__name__}, which cannot be sent back to you "
            f"({error}); return tensors, numbers, strings, or lists and dicts of these"
        ) from None


def draw_own_numbers() -> None:
    """Seed all random generators, because forked ranks would otherwise draw equal numbers."""
    import numpy
    import torch

    if torch.accelerator.current_accelerator() is None:
        torch.default_generator.seed()  # takes a hundredth of the time of torch.seed()
    else:
        torch.seed()
    numpy.random.seed()  # noqa: NPY002 (the state that readers' code may use)
    random.seed()


@contextmanager
def _afresh(device: Any) -> Iterator[None]:
    """Use the usual dtype, `device` for new tensors, fresh random numbers; undo it at the end."""
    import numpy
    import torch

    dtype = torch.get_default_dtype()
    python_state = random.getstate()
    numpy_state = numpy.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.set_default_dtype(torch.float32)
        draw_own_numbers()
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            random.setstate(python_state)
            numpy.random.set_state(numpy_state)  # noqa: NPY002
