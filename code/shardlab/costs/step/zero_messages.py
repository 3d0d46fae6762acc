"""ZeRO's messages in the program of one rank: what it gathers, scatters and waits for, and when.

As `ranks.zero` does it (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054; Zhao et al.
2023, https://arxiv.org/abs/2304.11277): from stage 2 on, a layer's messages travel while the next
one computes; what travels once in a step, does so after the last backward.
"""

from collections.abc import Sequence

from shardlab.files.arguments import checked

from .. import zero
from ..memory import CUT_FROM, shards
from ..traces.writing import Writer
from ..training import Training


@checked
class ZeroMessages:
    """Writes the messages of one rank into its program; none without ZeRO."""

    def __init__(
        self,
        writer: Writer,
        training: Training,
        stage: int,
        replicas: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        """Take the sizes of a pipeline stage. counts: layers that travel together."""
        layout = training.layout
        self.writer = writer
        self.recipe = training.recipe
        self.group = tuple(replicas)
        self.zero = layout.zero if layout.replicas > 1 else 0
        sizes = [zero.padded(numel, layout.replicas) for numel in zero.buffers(training, stage)]
        self.layer = sizes[0]
        self.layers = [count * self.layer for count in counts]
        self.rest = sum(sizes[sum(counts) :])
        where = training.spec, layout, stage, training.chunks
        self.ends = training.program.regathers_ends * sum(shards.embedding_and_head(*where))
        self.whole = layout.zero < CUT_FROM["gradients"] or training.keeps_whole(stage)
        self.ahead: list[int] = []  # layers that the pass has yet to gather
        self.arriving: list[int] = []
        self.leaving: list[int] = []

    def begin(self, kind: str) -> None:
        """Gather what a forward ("F") or backward needs outside the layers, and the first layer."""
        outside = self._gather(self.rest if kind == "F" else self.ends)
        self.ahead = self.layers[:: 1 if kind == "F" else -1]
        self._next()
        self.writer.wait(outside)

    def enter(self, layers: int) -> None:
        """Wait for the layers that compute next, and gather those after them meanwhile."""
        if layers:
            self.writer.wait(self.arriving)
            self._next()

    def leave(self, layers: int) -> None:
        """Send the gradients of layers, and wait for those that were sent before them."""
        if layers:
            sent = self._scatter(layers * self.layer)
            self.writer.wait(self.leaving)
            self.leaving = sent

    def finish(self) -> None:
        """End a backward: send the gradients outside the layers, and wait for all."""
        self.writer.wait([*self.leaving, *self._scatter(self.rest)])
        self.leaving = []

    def update(self, seconds: float) -> None:
        """Average what was not averaged before, update, and gather parameters that stay whole."""
        sizes = (*self.layers, self.rest)
        if self.whole:
            self.writer.wait(n for size in sizes for n in self._issue("reduce_scatter", size))
        self.writer.work(seconds, "update")
        if self.zero < CUT_FROM["parameters"]:
            self.writer.wait([n for size in sizes for n in self._issue("all_gather", size)])

    def _next(self) -> None:
        self.arriving = self._gather(self.ahead.pop(0)) if self.ahead else []

    def _gather(self, numel: int) -> list[int]:
        return self._issue("all_gather", numel) if self.zero >= CUT_FROM["parameters"] else []

    def _scatter(self, numel: int) -> list[int]:
        return [] if self.whole else self._issue("reduce_scatter", numel)

    def _issue(self, op: str, numel: int) -> list[int]:
        if not (self.zero and numel):
            return []
        each = self.recipe.parameters if op == "all_gather" else self.recipe.gradients
        return [self.writer.collective(op, each * numel, self.group)]
