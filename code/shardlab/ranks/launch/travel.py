"""How a call travels to a rank that is already there, and its result home: as copies, whose tensors change device.

So the same function runs on the CPU and on GPUs: on a rank its arguments, the variables of the notebook or script that
it uses, and the tensors that it makes all live on the rank's device; what it returns comes home to the CPU.
"""

import io
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle


def away(fn: Callable[..., Any], group: Any, args: tuple[Any, ...], device: Any) -> bytes:
    """Call fn(group, *args) as on a rank that has just been started, and return its result, `packed`."""
    fn, args = unpacked(packed((fn, args)), device)
    with _afresh(device):
        return packed_result(fn(group, *args), packed)


def packed(x: Any) -> bytes:
    """Anything as bytes: also the functions of a script or notebook, with the variables that they use."""
    import torch

    whole = io.BytesIO()
    torch.save(x, whole, pickle_module=cloudpickle, pickle_protocol=pickle.DEFAULT_PROTOCOL)
    return whole.getvalue()


def unpacked(whole: bytes, device: Any = "cpu") -> Any:
    """What was `packed`, its tensors on the device."""
    import torch

    return torch.load(io.BytesIO(whole), map_location=device, weights_only=False)


def packed_result(result: Any, pack: Callable[[Any], bytes] = cloudpickle.dumps) -> bytes:
    """What a function returned, as bytes; TypeError, in a reader's words, where that cannot be."""
    try:
        return pack(result)
    except Exception as error:
        raise TypeError(
            f"the function returned a {type(result).__name__}, which cannot be sent back to you ({error}); "
            "return tensors, numbers, strings, or lists and dicts of these"
        ) from None


def draw_own_numbers() -> None:
    """Seed anew: ranks that start with the same random state would draw alike what should differ between them."""
    import numpy
    import torch

    torch.seed()
    numpy.random.seed()  # noqa: NPY002 (the state that readers' code may use)
    random.seed()


@contextmanager
def _afresh(device: Any) -> Iterator[None]:
    """Inside: new tensors on the device, torch's usual dtype, random numbers of one's own; after it, all as before."""
    import numpy
    import torch

    dtype, states = torch.get_default_dtype(), (random.getstate(), numpy.random.get_state())  # noqa: NPY002
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.set_default_dtype(torch.float32)
        draw_own_numbers()
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)
            random.setstate(states[0])
            numpy.random.set_state(states[1])  # noqa: NPY002
