"""What ranks must agree on before they train together: the same module, on the right device, with the same numbers.

`check` compares names and shapes, `check_equal` the numbers, and `copy_from_first` makes the numbers equal.
"""

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from . import comm

PIECE_BYTES = 64 * 2**20  # how much of the model is packed into one message, and so copied, at a time


def check(module: nn.Module, group: comm.Group) -> None:
    """ValueError unless the module can be trained, lives on this rank's device and is alike on every rank."""
    named = [*module.named_parameters(), *module.named_buffers()]
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "the module has no trainable parameter, so there is nothing to average; "
            "set requires_grad on some, or use it without DataParallel"
        )
    device = comm.device(group)
    for name, tensor in named:
        if tensor.device != device:
            raise ValueError(
                f"{name} is on {tensor.device}, but rank {group.rank()} talks from {device}; "
                f"use module.to(comm.device(group)) before wrapping (to_empty for a module on meta)"
            )
    facts = [(name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad) for name, tensor in named]
    digest = torch.tensor([*hashlib.sha256(repr(facts).encode()).digest()], dtype=torch.uint8, device=device)
    first, *others = comm.all_gather(digest[None], group)
    for rank, other in enumerate(others, start=1):
        if not torch.equal(other, first):
            raise ValueError(
                f"rank {rank}'s module differs from rank 0's in the name, shape, dtype, requires_grad or order of its "
                f"parameters and buffers; build the same module, and freeze the same layers, on every rank"
            )


@torch.no_grad()
def copy_from_first(tensors: Sequence[Tensor], group: comm.Group) -> None:
    """Overwrite the tensors with rank 0's: packed into few messages, as bytes, because a message has one dtype.

    Beside the tensors it needs three pieces of PIECE_BYTES, and a copy of every tensor that is not contiguous.
    """
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    for pieces in _messages(flat):
        received = comm.broadcast(torch.cat(pieces), group).split([len(piece) for piece in pieces])
        for piece, part in zip(pieces, received, strict=True):
            piece.copy_(part)
    for tensor, flattened in zip(tensors, flat, strict=True):
        if not tensor.is_contiguous():  # where it is, `flattened` is a view of it
            tensor.copy_(flattened.view(tensor.dtype).view(tensor.shape))


def _messages(flat: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut and group byte tensors into messages of PIECE_BYTES at most."""
    message: list[Tensor] = []
    for piece in (piece for tensor in flat for piece in tensor.split(PIECE_BYTES)):
        if message and sum(map(len, message)) + len(piece) > PIECE_BYTES:
            yield message
            message = []
        message.append(piece)
    if message:
        yield message


@torch.no_grad()
def check_equal(model: nn.Module, group: comm.Group) -> None:
    """ValueError unless the model has the same numbers on every rank, as far as sums tell."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if not parameter.is_meta]
    if not named:
        return
    sums = torch.stack([parameter.double().sum() for _, parameter in named])
    apart = comm.all_reduce(sums, group, "max") != comm.all_reduce(sums, group, "min")
    if apart.any():
        name = named[int(apart.nonzero()[0])][0]
        raise ValueError(
            f"{name} differs between ranks, whose pieces would not fit together; call torch.manual_seed with the same "
            f"number on every rank before you build the model, or load the same state"
        )
