"""Buckets of gradients that are sent together: one long message is cheaper than many short ones.

Buckets are filled in the reverse order of the parameters, which is roughly the order in which
backward produces gradients (Li et al. 2020, https://arxiv.org/abs/2006.15704, section 3.2).

Shapes: [n] holds the n elements of a bucket's parameters; a view has its parameter's shape.
"""

from collections.abc import Iterable

import torch
from torch import nn


class Bucket:
    """A flat buffer with a view per parameter, into which that parameter's gradient moves."""

    def __init__(self, parameters: list[nn.Parameter], scale: float):
        sizes = [parameter.numel() for parameter in parameters]
        self.parameters = parameters
        self.buffer = parameters[0].new_zeros(sum(sizes))  # [n]
        parts = self.buffer.split(sizes)
        self.views = [part.view_as(p) for part, p in zip(parts, parameters, strict=True)]
        exact = torch.promote_types(self.buffer.dtype, torch.float32)
        self.scale = self.buffer.new_tensor(scale, dtype=exact)  # else every call makes a tensor
        self.missing: set[int] = set()  # numbers of the parameters whose gradient has not arrived
        self.expect_all()

    def expect_all(self) -> None:
        """Mark every gradient as missing."""
        self.missing = set(range(len(self.parameters)))

    def fill(self, index: int) -> None:
        """Move a gradient into its view, times `scale`, in one pass over memory."""
        if index not in self.missing:
            raise RuntimeError(
                "a parameter received its gradient twice in one backward; if it is "
                "checkpointed, pass use_reentrant=False to torch.utils.checkpoint"
            )
        self.missing.remove(index)
        parameter = self.parameters[index]
        view = self.views[index]
        assert parameter.grad is not None
        if parameter.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(parameter.shape)} is "
                f"sparse, and a bucket is dense; "
                f"use sparse=False in nn.Embedding and nn.EmbeddingBag"
            )
        torch.mul(parameter.grad, self.scale, out=view)
        parameter.grad = view

    def fill_accumulated(self) -> None:
        """Fill gradients that earlier microbatches left and this backward did not reach."""
        for index in sorted(self.missing):
            if self.parameters[index].grad is not None:
                self.fill(index)

    def zero_missing(self) -> None:
        """Let parameters without any gradient count as zero in the sum; their `grad` stays None."""
        for index in self.missing:
            self.views[index].zero_()
        self.missing.clear()


def assign(parameters: Iterable[nn.Parameter], bucket_bytes: int, scale: float) -> list[Bucket]:
    """Assign parameters to buckets, in the given order.

    bucket_bytes  a bucket closes once it holds this much; 0: one bucket per parameter
    scale         what every gradient is multiplied by on its way into its bucket

    A bucket has one dtype and one device, as a message does. Scaling by 1/ranks before the sum
    keeps sums in fp16 below its largest number, 65504; bf16 has the range of fp32 and needs no such
    care. The price is that tiny gradients in fp16 become zero, for example half of its smallest
    number, 6e-8.
    """
    if bucket_bytes < 0:
        raise ValueError(
            f"bucket_bytes={bucket_bytes} is negative; "
            f"use 0 for one message per parameter, or a size such as 25 * 2**20"
        )
    closed: list[list[nn.Parameter]] = []
    open_: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in parameters:
        kind = (parameter.dtype, parameter.device)
        members = open_.setdefault(kind, [])
        members.append(parameter)
        if sum(member.nbytes for member in members) >= bucket_bytes:
            closed.append(open_.pop(kind))
    return [Bucket(members, scale) for members in [*closed, *open_.values()]]
