"""A file of tensors in the format of safetensors: a header in JSON, then the numbers.

    8 bytes: n | n bytes: {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}} | numbers

The library, https://huggingface.co/docs/safetensors, reads such files. Its `save_file` would hold
all tensors on the CPU at once and hide the number of an OSError, so `write` is our own.
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write(file: Path, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Write tensors to a file, one at a time, and to the disk; return their checksums.

    Errors: OSError of the disk; ValueError for a dtype that is not in DTYPES.
    """
    shapes = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()}
    text, begins = header(shapes)
    checksums = {}
    with file.open("wb") as opened:
        opened.write(text)
        for name in begins:
            numbers = as_bytes(tensors[name])
            opened.write(numbers)
            checksums[name] = zlib.crc32(numbers)
        opened.flush()
        os.fsync(opened.fileno())
    return checksums


def header(
    shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], **metadata: str
) -> tuple[bytes, dict[str, int]]:
    """Lay out a file of tensors as the library does: return its header, and where each begins.

    shapes: dtype and shape by name. metadata: texts that the header holds, too. The begins are
    bytes from the beginning of the file, in the order of the file. Errors: ValueError for a dtype
    that is not in DTYPES.
    """
    for name, (dtype, _) in shapes.items():
        if dtype not in NAMES:
            known = ", ".join(map(str, NAMES))
            raise ValueError(f"{name} is of {dtype}; convert it to one of {known}")
    # The widest numbers come first, so that each tensor begins at a multiple of their width.
    ordered = sorted(shapes, key=lambda name: (-shapes[name][0].itemsize, name))
    rows: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    begins, end = {}, 0
    for name in ordered:
        dtype, shape = shapes[name]
        begins[name], end = end, end + dtype.itemsize * prod(shape)
        place = {"shape": [*shape], "data_offsets": [begins[name], end]}
        rows[name] = {"dtype": NAMES[dtype], **place}
    text = json.dumps(rows, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text
    return whole, {name: len(whole) + begin for name, begin in begins.items()}


def read(file: Path, names: Iterable[str]) -> Iterator[Tensor]:
    """Read tensors from a file, one at a time, on the CPU.

    Errors: ValueError if the file is not of this format or lacks one of them; OSError of the disk.
    """
    try:
        # Without mmap, for which a file that someone cuts meanwhile ends in SIGBUS.
        with safe_open(file, framework="pt", backend="pread") as opened:
            for name in names:
                yield opened.get_tensor(name)
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def checksum(tensor: Tensor) -> int:
    """Compute the CRC-32 of a tensor's numbers, which differs after any single flipped bit."""
    return zlib.crc32(as_bytes(tensor))


def as_bytes(tensor: Tensor) -> bytearray | memoryview:
    """Return the bytes of a tensor's numbers: [...] -> [bytes]. Those on the CPU are not copied."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data
