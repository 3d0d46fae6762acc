"""What ranks must agree on before they train together: the module, its device and its numbers.

`check` compares how modules are built, `check_equal` compares their numbers, and `copy_from_first`
makes the numbers equal.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor, nn

from shardlab import comm

MESSAGE_BYTES = 64 * 2**20  # the most that is packed into one message, and so copied at a time


def check(
    module: nn.Module, group: comm.Group, ignored: Collection[nn.Parameter] = ()
) -> None:
    """Refuse a module that cannot be trained, is on another device, or differs between ranks.

    Names, shapes, dtypes, `requires_grad` and order of all parameters and buffers are compared by a
    hash; their numbers may differ, and so may `ignored` parameters. Errors: ValueError.
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise ValueError(
            "the module has no trainable parameter, so there is nothing to average; "
            "set requires_grad on some, or use the module without DataParallel"
        )
    without = {id(parameter) for parameter in ignored}
    named = [*module.named_parameters(), *module.named_buffers()]
    named = [(name, tensor) for name, tensor in named if id(tensor) not in without]
    device = comm.device(group)
    for name, tensor in named:
        if tensor.device != device:
            raise ValueError(
                f"{name} is on {tensor.device}, but rank {group.rank()} communicates from "
                f"{device}; use module.to(comm.device(group)) first (to_empty if it is on meta)"
            )
    facts = [(name, tuple(x.shape), x.dtype, x.requires_grad) for name, x in named]
    digest = hashlib.sha256(repr(facts).encode()).digest()
    own = torch.tensor([*digest], dtype=torch.uint8, device=device)  # [32]
    first, *others = comm.all_gather(own[None], group)               # [ranks, 32]
    for rank, other in enumerate(others, start=1):
        if not torch.equal(other, first):
            raise ValueError(
                f"rank {rank}'s module differs from rank 0's in the name, shape, dtype, "
                f"requires_grad or order of its parameters and buffers; "
                f"build the same module, and freeze the same layers, on every rank"
            )


@torch.no_grad()
def copy_from_first(tensors: Sequence[Tensor], group: comm.Group) -> None:
    """Overwrite `tensors` with rank 0's, in messages of at most MESSAGE_BYTES.

    A message has one dtype, so tensors are sent as bytes. Needs memory for three messages, and for
    a copy of every tensor that is not contiguous.
    """
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    for message in _messages(flat):
        received = comm.broadcast(torch.cat(message), group)
        sizes = [len(part) for part in message]
        for part, new in zip(message, received.split(sizes), strict=True):
            part.copy_(new)
    for tensor, flattened in zip(tensors, flat, strict=True):
        if not tensor.is_contiguous():  # where it is, `flattened` is a view of it
            tensor.copy_(flattened.view(tensor.dtype).view(tensor.shape))


def _messages(flat: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group slices of `flat`, tensors of bytes, into messages of at most MESSAGE_BYTES."""
    message: list[Tensor] = []
    for tensor in flat:
        for part in tensor.split(MESSAGE_BYTES):
            if message and sum(map(len, message)) + len(part) > MESSAGE_BYTES:
                yield message
                message = []
            message.append(part)
    if message:
        yield message


def is_hollow(x: Tensor) -> bool:
    """Tell whether a tensor is one number, seen in a larger shape, as in `memory.hollow`."""
    return x.numel() > 1 and not any(x.stride())


@torch.no_grad()
def check_equal(model: nn.Module, group: comm.Group) -> None:
    """Refuse a model whose numbers differ between ranks.

    Only the sum of each parameter is compared. Parameters on torch's meta device have no numbers,
    hollow ones none of their own, and both are skipped. Errors: ValueError.
    """
    named = [(name, p) for name, p in model.named_parameters() if not (p.is_meta or is_hollow(p))]
    if not named:
        return
    sums = torch.stack([parameter.double().sum() for _, parameter in named])
    largest = comm.all_reduce(sums, group, "max")
    smallest = comm.all_reduce(sums, group, "min")
    differing = (largest != smallest).nonzero()
    if len(differing):
        name, _ = named[int(differing[0])]
        raise ValueError(
            f"{name} differs between ranks, so their pieces would not fit together; call "
            f"torch.manual_seed with the same number on every rank before you build the model, "
            f"or load the same state"
        )
