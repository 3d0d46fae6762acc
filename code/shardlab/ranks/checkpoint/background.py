"""Save while training goes on: training stands still only while its numbers are copied.

    saver = checkpoint.Background(folder, group)
    saver.save(12, boxes, facts)          # returns when the numbers are copied to the host's memory
    ...                                   # training changes them; a thread writes the copy
    saver.wait()                          # folder/step-00000012 is safe, or an error says why not

A checkpoint gets its name when the bytes of all ranks are on the disk, so whenever a run is killed,
the one before is whole: the thread does what `saving.write` does. For this the ranks must agree,
and training sends in its own group meanwhile. Two threads in one group would be matched in the
order in which each rank happens to call, so the saver has a group of its own. Markers in files
would need no group, but a rank that looks for another's marker cannot tell late from lost, and a
marker that a killed run has left looks like a new one; a group knows both.

The copy takes as many bytes of the host's memory as the rank will write. At scale it is made into
pinned memory that is allocated once; torch.distributed.checkpoint's `async_save` can do so
(https://docs.pytorch.org/docs/stable/distributed.checkpoint.html).
"""

from collections.abc import Iterable, Mapping
from concurrent import futures
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from shardlab import comm

from .boxes import TensorBox
from .saving import ToWrite, prepare, write
from .together import apart


class Stall(NamedTuple):
    """Seconds for which a save held up training."""

    waiting: float  # until the save before was safe
    copying: float


class Background:
    """Saves in a folder, one at a time, each by a thread; all ranks of the group make one.

    keep, nodes: as in `checkpoint.save`.
    """

    def __init__(
        self, folder: str | Path, group: comm.Group, *, keep: int = 2, nodes: int = 1
    ) -> None:
        self.folder = folder
        self.group = apart(group)
        self.options = {"keep": keep, "nodes": nodes}
        self.last: Path | None = None  # that is known to be safe
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: futures.Future[Path] | None = None

    def save(
        self,
        step: int,
        boxes: Iterable[TensorBox],
        facts: Mapping[str, Any],
        own: Mapping[str, Any] | None = None,
    ) -> Stall:
        """Copy what `checkpoint.save` would write, and let the thread write it; all ranks call it.

        It first waits until the save before is safe, and raises what went wrong with that one; then
        nothing of the new one has begun. Other errors of the new one come from the next `save` or
        `wait`, but for ValueError where `step`, `keep` or `nodes` is no such number.
        """
        began = perf_counter()
        self.wait()
        safe = perf_counter()
        share = prepare(self.folder, step, self.group, boxes, facts, own, **self.options)
        self._writing = self._thread.submit(write, _copy(share), self.group)
        return Stall(safe - began, perf_counter() - safe)

    def wait(self) -> Path | None:
        """Wait until the last save is safe, and return its checkpoint; None without a save.

        Call it when training ends, before the ranks do. Errors: those of that save, once, as in
        `checkpoint.save`.
        """
        if self._writing is not None:
            futures.wait([self._writing])
            writing, self._writing = self._writing, None
            self.last = writing.result()
        return self.last


def _copy(share: ToWrite) -> ToWrite:
    """Copy a share to the host's memory, so that nothing changes it any more."""
    held = {piece: tensor.detach().to("cpu", copy=True) for piece, tensor in share.held.items()}
    facts, plain = deepcopy((share.facts, share.plain))
    return replace(share, held=held, facts=facts, plain=plain)
