"""A step under ZeRO as a program for `replay`: what a rank computes, sends and waits for, in order.

As `ranks.zero` does it (Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054; Zhao et al. 2023,
https://arxiv.org/abs/2304.11277): from stage 2 on, a layer's messages travel while the next one
computes; what travels once in a step, does so after the last backward. `breakdown.step` is its
closed form for `programs.BOOK_ZERO`.
"""

from shardlab.files.arguments import checked, within
from shardlab.trace import Event

from .. import zero
from ..memory import CUT_FROM
from ..traces.programs import Writer
from . import axes, layer_time
from .breakdown import holdings, update_seconds
from .run import Run, microbatch


@checked
def zero_program(run: Run, rank: int = 0, *, hold: bool = False) -> list[Event]:
    """List the events of one rank in a step under ZeRO-1, -2 or -3, without other axes.

    hold: gradients stay whole until the last microbatch, see `zero.sent_bytes`. Errors: ValueError
    for other layouts, and programs that gather embedding and head again.
    """
    layout = run.training.layout
    within("rank", rank, layout.ranks)
    if not layout.zero or layout.ranks != layout.dp:
        raise ValueError(f"{layout} has other axes than dp, or no ZeRO; use `program`")
    if run.training.program.regathers_ends:
        raise ValueError(f"{run.training.program.name} gathers its ends again; use BOOK_ZERO")
    writer = _Writer(run, rank)
    last = run.training.num_microbatches - 1
    cuts = layout.zero >= CUT_FROM["gradients"]
    for number in range(last + 1):
        writer.forward()
        writer.backward(send=cuts and (number == last or not hold))
    writer.end()
    return writer.events


class _Writer(Writer):
    """The program of one rank of a run."""

    def __init__(self, run: Run, rank: int) -> None:
        super().__init__(rank)
        training = run.training
        chip = run.cluster.node.chip
        self.training = training
        self.group = range(training.layout.dp)
        self.layer = microbatch(run, axes.links(run.cluster, training.layout))
        self.embedding = layer_time.embedding_seconds(training, chip)
        self.head = layer_time.head_seconds(training, chip)
        self.update = update_seconds(training, holdings(training), chip)
        sizes = zero.buffers(training)
        *self.layers, self.rest = [zero.padded(numel, training.layout.dp) for numel in sizes]
        self.cut = training.layout.zero >= CUT_FROM["parameters"]

    def forward(self) -> None:
        """Gather each layer while the one before it computes."""
        rest = self._gather(self.rest)
        arriving = self._gather(self.layers[0])
        self.wait(rest)
        self.work(self.embedding[0], "forward")
        for following in [*self.layers[1:], 0]:
            self.wait(arriving)
            arriving = self._gather(following)
            self.work(self.layer.forward, "forward")
        self.work(self.head[0], "forward")

    def backward(self, *, send: bool) -> None:
        """Send each layer's gradients while the next layer computes; send: False to hold them."""
        arriving = self._gather(self.layers[-1])
        leaving: list[int] = []
        self.work(self.head[1], "backward")
        for layer, following in zip(self.layers[::-1], [*self.layers[-2::-1], 0], strict=True):
            self.wait(arriving)
            arriving = self._gather(following)
            self.work(self.layer.backward, "backward")
            sent = self._scatter(layer) if send else []
            self.wait(leaving)
            leaving = sent
        self.work(self.embedding[1], "backward")
        last = self._scatter(self.rest) if send else []
        self.wait([*leaving, *last])

    def end(self) -> None:
        """Average what was not averaged before, update, and gather parameters that stay whole."""
        sizes = (*self.layers, self.rest)
        if self.training.layout.zero < CUT_FROM["gradients"]:
            self.wait([number for size in sizes for number in self._scatter(size)])
        self.work(self.update, "update")
        if not self.cut:
            self.wait([number for size in sizes for number in self._issue("all_gather", size)])

    def _gather(self, numel: int) -> list[int]:
        return self._issue("all_gather", numel) if self.cut and numel else []

    def _scatter(self, numel: int) -> list[int]:
        return self._issue("reduce_scatter", numel)

    def _issue(self, op: str, numel: int) -> list[int]:
        if len(self.group) == 1:
            return []
        recipe = self.training.recipe
        each = recipe.parameters if op == "all_gather" else recipe.gradients
        return [self.collective(op, each * numel, self.group)]
