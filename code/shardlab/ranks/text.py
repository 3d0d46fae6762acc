"""Real text to train on, one byte per token: the prose of this book, or a file of yours.

The prose is that of November 2026 and stays as it is, so that no edit of a page moves a loss.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

VOCAB_SIZE = 256  # every byte is a token
PROSE = Path(__file__).with_suffix(".txt")


def read(file: str | Path = PROSE) -> Tensor:
    """Read a file, or the prose of this book: [bytes], uint8.

    Errors: ValueError for an empty file.
    """
    data = Path(file).read_bytes()
    if not data:
        raise ValueError(f"{file} is empty; pass a file of text")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(torch.get_default_device())


def read_ids(file: str | Path) -> Tensor:
    """Read token ids that a tokenizer wrote, as little-endian 32-bit integers: [tokens], int32.

    Errors: ValueError for a file that is empty or holds no whole number of them, and for an id
    below 0.
    """
    data = Path(file).read_bytes()
    if not data or len(data) % 4:
        raise ValueError(f"{file} has {len(data)} bytes; write whole ids, 4 bytes each, and some")
    ids = torch.from_numpy(np.frombuffer(data, "<i4").astype(np.int32))
    if int(ids.min()) < 0:
        raise ValueError(f"{file} holds the id {int(ids.min())}; write ids from 0 on, as int32")
    return ids.to(torch.get_default_device())


def num_samples(tokens: Tensor, length: int) -> int:
    """Count the windows of `length` tokens, side by side, that have a token after them."""
    if not 1 <= length < len(tokens):
        raise ValueError(
            f"length={length} does not fit a text of {len(tokens)} tokens; "
            f"use 1 to {len(tokens) - 1}"
        )
    return (len(tokens) - 1) // length


def batch(tokens: Tensor, indices: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return the windows `indices`, and the same one token later, which are the targets.

    indices: [B]. Both results: [B, length], int64. Errors: ValueError for a window that the text
    does not have.
    """
    count = num_samples(tokens, length)
    if len(indices):
        first, last = int(indices.min()), int(indices.max())
        if first < 0 or last >= count:
            raise ValueError(
                f"indices from {first} to {last}, but the text has {count} samples "
                f"of {length} tokens; use 0 to {count - 1}"
            )
    windows = tokens.unfold(0, length + 1, length)                    # [count, length + 1], views
    chosen = windows[indices].long()                                  # [B, length + 1]
    return chosen[:, :-1], chosen[:, 1:]
