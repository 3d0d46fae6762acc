"""Buckets: gradients that travel together, because one long message is cheaper than many short ones.

Buffers are filled in the reverse order of the parameters, which is about the order in which backward
produces gradients (Li et al. 2020, https://arxiv.org/abs/2006.15704, section 3.2).
"""

from collections.abc import Iterable

import torch
from torch import nn


class Bucket:
    """A flat buffer with a view per parameter; a gradient that arrives moves into its view."""

    def __init__(self, parameters: list[nn.Parameter], scale: float):
        sizes = [parameter.numel() for parameter in parameters]
        self.parameters = parameters
        self.buffer = parameters[0].new_zeros(sum(sizes))
        self.views = [part.view_as(p) for part, p in zip(self.buffer.split(sizes), parameters, strict=True)]
        exact = torch.promote_types(self.buffer.dtype, torch.float32)
        self.scale = self.buffer.new_tensor(scale, dtype=exact)  # a tensor: torch would make one at every call
        self.expect_all()

    def expect_all(self) -> None:
        """Wait for every parameter's gradient anew."""
        self.missing = set(range(len(self.parameters)))

    def fill(self, index: int) -> None:
        """Put one parameter's gradient, times the scale, in its place: one pass over it, and no copy back."""
        if index not in self.missing:
            raise RuntimeError(
                "a parameter received its gradient twice in one backward; "
                "if it is checkpointed, pass use_reentrant=False to torch.utils.checkpoint"
            )
        self.missing.remove(index)
        parameter, view = self.parameters[index], self.views[index]
        assert parameter.grad is not None
        if parameter.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse, and a bucket is dense; "
                f"use sparse=False in nn.Embedding and nn.EmbeddingBag"
            )
        torch.mul(parameter.grad, self.scale, out=view)
        parameter.grad = view

    def fill_rest(self) -> list[nn.Parameter]:
        """Fill what has not arrived: with the gradient of earlier microbatches, or zeros where there is none.

        Returns the parameters of the zeros; their `grad` stays None.
        """
        unreached = []
        for index in sorted(self.missing):
            if self.parameters[index].grad is None:
                self.views[index].zero_()
                unreached.append(self.parameters[index])
            else:
                self.fill(index)
        self.missing.clear()
        return unreached


def assign(parameters: Iterable[nn.Parameter], bucket_bytes: int, scale: float) -> list[Bucket]:
    """Deal parameters to buckets, in the given order; a bucket closes once it holds `bucket_bytes` or more.

    bucket_bytes  with 0, every parameter has a bucket of its own
    scale         what every gradient is multiplied by on its way into the bucket

    To scale by 1/ranks before the sum, not after it, keeps sums in fp16 below its largest number, 65504 (bf16 has
    the range of fp32 and needs no such care). The price: tiny gradients in fp16 underflow to zero, as
    half of its smallest number, 6e-8, does. A bucket has one dtype, as a message has, and one device.
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
        open_.setdefault(kind, []).append(parameter)
        if sum(p.nbytes for p in open_[kind]) >= bucket_bytes:
            closed.append(open_.pop(kind))
    return [Bucket(members, scale) for members in closed + list(open_.values())]
