"""Carry what a rank observed to its judge as plain data: numbers, words, tensors, our own records.

Pickle would rebuild objects of the learner's classes, and so run the learner's code in the process
of the judge.
"""

import base64
import json
import sys
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

MAX_LENGTH = 1 << 24  # characters of one rank's reply in one case; ours need up to 10 million


def pack(observed: Any) -> str:
    """Write plain data as JSON. Errors: TypeError or ValueError that names what is not plain."""
    text = json.dumps(_form(observed))
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{len(text):,} characters are too many to judge; {MAX_LENGTH:,} may be")
    return text


def unpack(text: Any) -> Any:
    """Rebuild what `pack` wrote. Errors: ValueError for anything else."""
    try:
        return _built(json.loads(text))
    except Exception as error:  # whatever a forged reply provokes
        raise ValueError(f"no plain data ({type(error).__name__})") from None


def _form(x: Any) -> Any:
    """Return JSON's form of `x`, with numbers and words of exactly Python's own types."""
    if x is None or isinstance(x, int | float | str):
        return _exact(x)
    if isinstance(x, bytes):
        return {"bytes": _as_text(x)}
    if isinstance(x, Tensor):
        return {"tensor": _form_of_tensor(x)}
    if isinstance(x, dict):
        return {"dict": [[_form(key), _form(value)] for key, value in x.items()]}
    kind = type(x)
    if _is_record(kind):
        values = {name: _form(getattr(x, name)) for name in _names(kind)}
        return {"record": [kind.__module__, kind.__qualname__, values]}
    if isinstance(x, list):
        return [_form(each) for each in x]
    if isinstance(x, tuple):
        return {"tuple": [_form(each) for each in x]}
    raise TypeError(f"a {kind.__name__} cannot be judged; numbers, words and tensors can")


def _exact(x: Any) -> Any:
    """Return an equal value of Python's own type: a subclass could equal whatever it likes."""
    if isinstance(x, int) and not isinstance(x, bool):
        return int.__int__(x)
    if isinstance(x, float):
        return float.__float__(x)
    return str.__str__(x) if isinstance(x, str) else x


def _built(form: Any) -> Any:
    """Return what this form of JSON stands for."""
    if isinstance(form, list):
        return [_built(each) for each in form]
    if not isinstance(form, dict):
        return form
    ((kind, content),) = form.items()
    if kind == "bytes":
        return base64.b64decode(content)
    if kind == "tensor":
        return _built_tensor(*content)
    if kind == "dict":
        return {_built(key): _built(value) for key, value in content}
    if kind == "tuple":
        return tuple(_built(each) for each in content)
    if kind == "record":
        module, name, values = content
        record = getattr(sys.modules[module], name)
        if _is_record(record):
            return record(**{key: _built(value) for key, value in values.items()})
    raise ValueError(f"unknown kind {kind}")


# ---- tensors and records -------------------------------------------------------------------------


def _form_of_tensor(x: Tensor) -> list[Any]:
    if x.layout is not torch.strided or x.is_meta:
        raise TypeError(f"a tensor of {x.layout} on {x.device} cannot be judged; a dense one can")
    numbers = x.detach().cpu().flatten().clone(memory_format=torch.contiguous_format)
    dtype = str(numbers.dtype).removeprefix("torch.")
    return [dtype, list(x.shape), _as_text(numbers.view(torch.uint8).numpy().tobytes())]


def _built_tensor(name: str, shape: list[int], text: str) -> Tensor:
    dtype = getattr(torch, name)
    data = bytearray(base64.b64decode(text))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _as_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_record(kind: Any) -> bool:
    """Tell whether this is a dataclass or a named tuple of this package."""
    if not isinstance(kind, type) or not kind.__module__.startswith("shardlab."):
        return False
    ours = getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind
    return ours and (is_dataclass(kind) or hasattr(kind, "_fields"))


def _names(kind: Any) -> list[str]:
    return [each.name for each in fields(kind)] if is_dataclass(kind) else [*kind._fields]
