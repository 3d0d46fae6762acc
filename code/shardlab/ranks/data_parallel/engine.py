"""Data parallelism that averages gradients while backward still computes.

The design is that of torch's DistributedDataParallel (Li et al. 2020,
https://arxiv.org/abs/2006.15704): wrap a module, then call forward, backward and the optimizer's
step as on one device. The average is right when every rank has the same number of samples;
otherwise multiply each rank's loss by the weight that `sampler` returns for it.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm

from .. import agreement, backward
from .buckets import Bucket, assign


class DataParallel(nn.Module):
    """A replica of a module, with equal parameters and averaged gradients on all ranks.

    bucket_bytes  gradients are sent together in messages of about this size; 0: one per parameter
    overlap       send a bucket while backward computes the next one; False: send after backward
    find_unused   allow parameters that a backward does not reach, for one small message per step

    Freeze parameters before you wrap. After backward, `grad` is a view into a bucket, which the
    next backward overwrites: clone what you want to keep. If a backward fails on all ranks, call
    zero_grad; the next forward drops what that backward left. Sparse gradients are refused.
    """

    def __init__(
        self,
        module: nn.Module,
        group: comm.Group,
        *,
        bucket_bytes: int = 25 * 2**20,
        overlap: bool = True,
        find_unused: bool = False,
    ):
        super().__init__()
        agreement.check(module, group)
        agreement.copy_from_first([*module.parameters(), *module.buffers()], group)
        self.module = module
        self.group = group
        self.overlap = overlap
        self.find_unused = find_unused
        self.synchronize = True  # False inside `no_sync`
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buckets = assign(reversed(trainable), bucket_bytes, scale=1 / group.size())
        self._has_buffers = any(True for _ in module.buffers())
        self._buffers_differ = self._has_buffers  # a forward of training may have changed them
        self._in_backward = False
        self._waits: list[Callable[[], Any]] = []  # of the buckets that were sent, in order
        self._listen()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module; first copy rank 0's buffers to all ranks, once per averaged backward."""
        if self._in_backward and not backward.is_running():  # the last backward failed
            self._make_ready()
        if self._buffers_differ:
            agreement.copy_from_first(list(self.module.buffers()), self.group)
        self._buffers_differ = self._has_buffers and self.synchronize and torch.is_grad_enabled()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let each backward inside add to local gradients only; the next one outside averages."""
        before = self.synchronize
        self.synchronize = False
        try:
            yield
        finally:
            self.synchronize = before

    def _listen(self) -> None:
        """Hook every parameter until this wrapper is deleted: a module can be wrapped again."""
        handles = []
        for bucket in self.buckets:
            for index, parameter in enumerate(bucket.parameters):
                hook = partial(_notify, weakref.ref(self), bucket, index)
                handles.append(parameter.register_post_accumulate_grad_hook(hook))
        weakref.finalize(self, lambda: [handle.remove() for handle in handles])

    def _arrived(self, bucket: Bucket, index: int) -> None:
        """Move a new gradient into its bucket, and send buckets that are full."""
        if not self._in_backward:  # this is the first gradient of a backward
            self._in_backward = True
            backward.when_it_ends(self._finish)
        bucket.fill(index)
        if self.overlap and not bucket.missing:
            self._send_full()

    def _send_full(self) -> None:
        """Send full buckets in their order, by which messages of all ranks pair up."""
        for bucket in self.buckets[len(self._waits) :]:
            if bucket.missing:
                return
            wait = comm.start_all_reduce(bucket.buffer, self.group)
            self._waits.append(wait)

    def _finish(self) -> None:
        """Send the remaining buckets at the end of backward, and wait for all."""
        for bucket in self.buckets:
            bucket.fill_accumulated()
        unreached = [b.parameters[index] for b in self.buckets for index in sorted(b.missing)]
        if unreached and not self.find_unused:
            raise RuntimeError(self._explain(unreached))
        for bucket in self.buckets:
            bucket.zero_missing()
        self._send_full()
        self._make_ready()
        if self.find_unused:
            self._adopt_averages()

    def _make_ready(self) -> None:
        """Mark every gradient as missing, and wait for sends in flight: they fill our buffers."""
        waits = self._waits
        self._waits = []
        self._in_backward = False
        for bucket in self.buckets:
            bucket.expect_all()
        for wait in waits:
            wait()

    def _adopt_averages(self) -> None:
        """Set `grad` to the average where any rank had a gradient; elsewhere it stays None."""
        parameters = [parameter for bucket in self.buckets for parameter in bucket.parameters]
        views = [view for bucket in self.buckets for view in bucket.views]
        here = torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8)
        anywhere = comm.all_reduce(here.to(comm.device(self.group)), self.group, "max")
        for parameter, view, reached in zip(parameters, views, anywhere.tolist(), strict=True):
            if reached:
                parameter.grad = view

    def _explain(self, unreached: list[nn.Parameter]) -> str:
        """Name parameters without a gradient, and say what to do about them."""
        ids = {id(parameter) for parameter in unreached}
        names = [name for name, p in self.module.named_parameters() if id(p) in ids]
        return (
            f"backward gave no gradient to {len(names)} parameters of rank {self.group.rank()} "
            f"({', '.join(names[:5])}); freeze them (requires_grad=False) before wrapping, "
            f"or use DataParallel(..., find_unused=True)"
        )


def _notify(
    wrapper: "weakref.ref[DataParallel]", bucket: Bucket, index: int, parameter: Tensor
) -> None:
    """Tell `wrapper`, while it exists and synchronizes, that a gradient has arrived."""
    alive = wrapper()
    if alive is not None and alive.synchronize:
        alive._arrived(bucket, index)
