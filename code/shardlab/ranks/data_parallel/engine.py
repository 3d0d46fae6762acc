"""Data parallelism: every rank holds the whole model, sees other samples, and averages gradients.

In the manner of torch's DistributedDataParallel (Li et al. 2020, https://arxiv.org/abs/2006.15704): wrap a
module, call forward, backward and the optimizer's step as on one device. The average is right when every rank
has the same number of samples; for unequal shards multiply the loss by the weight that `sampler` deals.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .. import agreement, backward, comm
from . import buckets


class DataParallel(nn.Module):
    """A replica that agrees with its peers: equal at the start, equal gradients after every backward.

    bucket_bytes  gradients are sent together in messages of about this size; 0: one message per parameter
    overlap       send a bucket while backward still computes the next one; False: send after backward
    find_unused   allow parameters that a backward does not reach (costs one more small message per step)

    Freeze parameters before you wrap. After backward, `grad` is a view into a bucket: the next backward
    overwrites it, so clone what you want to keep. A backward that failed on all ranks is forgotten at the next
    forward; call zero_grad before it. Sparse gradients are refused.
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
        self.module, self.group, self.overlap, self.find_unused = module, group, overlap, find_unused
        self.synchronize, self._in_backward = True, False
        self._buffers_differ = self._has_buffers = any(True for _ in module.buffers())
        agreement.copy_from_first([*module.parameters(), *module.buffers()], group)
        trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.buckets = buckets.assign(reversed(trainable), bucket_bytes, scale=1 / group.size())
        self._waits: list[Callable[[], Any]] = []  # one for each bucket that was sent, in order
        self._listen()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, after rank 0's buffers went to all ranks (once per averaged backward)."""
        if self._in_backward and not backward.is_running():  # the last one failed
            self._make_ready()
        if self._buffers_differ:
            agreement.copy_from_first(list(self.module.buffers()), self.group)
        self._buffers_differ = self._has_buffers and self.synchronize and torch.is_grad_enabled()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward adds to the local gradients and sends nothing; the next one outside averages."""
        before, self.synchronize = self.synchronize, False
        try:
            yield
        finally:
            self.synchronize = before

    def _listen(self) -> None:
        """Hook every parameter. Hooks go when this wrapper goes, so that a module can be wrapped anew."""
        this = weakref.ref(self)

        def hook(bucket: buckets.Bucket, index: int) -> Callable[[Tensor], None]:
            def arrived(parameter: Tensor) -> None:
                wrapper = this()
                if wrapper is not None and wrapper.synchronize:
                    wrapper._arrived(bucket, index)

            return arrived

        handles = [
            parameter.register_post_accumulate_grad_hook(hook(bucket, index))
            for bucket in self.buckets
            for index, parameter in enumerate(bucket.parameters)
        ]
        weakref.finalize(self, lambda: [handle.remove() for handle in handles])

    def _arrived(self, bucket: buckets.Bucket, index: int) -> None:
        if not self._in_backward:
            self._in_backward = True
            backward.when_it_ends(self._finish)
        bucket.fill(index)
        if self.overlap and not bucket.missing:
            self._send_full()

    def _send_full(self) -> None:
        """Send every full bucket that has no predecessor waiting: messages pair up by their order alone."""
        for bucket in self.buckets[len(self._waits) :]:
            if bucket.missing:
                return
            self._waits.append(comm.start_all_reduce(bucket.buffer, self.group))

    def _finish(self) -> None:
        """The end of backward: send the rest, wait for all."""
        unreached = [p for bucket in self.buckets for p in bucket.fill_rest()]
        if unreached and not self.find_unused:
            raise RuntimeError(self._explain(unreached))
        self._send_full()
        self._make_ready()
        if self.find_unused:
            self._take_from_others()

    def _make_ready(self) -> None:
        """Wait for what was sent, because it fills our buffers, and expect every gradient anew."""
        waits, self._waits, self._in_backward = self._waits, [], False
        for bucket in self.buckets:
            bucket.expect_all()
        for wait in waits:
            wait()

    def _take_from_others(self) -> None:
        """Where any rank had a gradient, all take the average; where none had, `grad` stays None."""
        places = [place for b in self.buckets for place in zip(b.parameters, b.views, strict=True)]
        here = torch.tensor([p.grad is not None for p, _ in places], dtype=torch.uint8)
        anywhere = comm.all_reduce(here.to(comm.device(self.group)), self.group, "max")
        for (parameter, view), reached in zip(places, anywhere.tolist(), strict=True):
            if reached:
                parameter.grad = view

    def _explain(self, unreached: list[nn.Parameter]) -> str:
        ids = {id(parameter) for parameter in unreached}
        names = [name for name, parameter in self.module.named_parameters() if id(parameter) in ids]
        return (
            f"backward gave no gradient to {len(names)} parameters of rank {self.group.rank()} "
            f"({', '.join(names[:5])}); freeze them (requires_grad=False) before wrapping, "
            f"or use DataParallel(..., find_unused=True)"
        )
