"""Real text to train on, one byte per token: the chapters of this book, or a folder of yours."""

from pathlib import Path

import torch
from torch import Tensor

from shardlab.files import project

VOCAB_SIZE = 256  # every byte is a token


def read(folder: str | Path = project.BOOK) -> Tensor:
    """Read all .md files below `folder`, or of this book, in order of their paths: [bytes], uint8.

    What lies in folders that tools make (.ipynb_checkpoints, _build) is left out.
    """
    found = sorted(Path(folder).rglob("*.md"))
    files = [file for file in found if not _made_by_tools(file.relative_to(folder))]
    data = b"\n".join(file.read_bytes() for file in files)
    if not data:
        raise ValueError(
            f"{folder} holds {len(files)} .md files and no text; "
            "pass a folder of chapters, such as 'book'"
        )
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(torch.get_default_device())


def _made_by_tools(path: Path) -> bool:
    return any(part[0] in "._" for part in path.parts)


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
