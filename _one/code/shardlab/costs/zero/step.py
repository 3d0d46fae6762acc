"""One step under ZeRO, predicted: a rank's program, with its collectives in turn on one link.

The program is that of `ranks.zero`: a layer is gathered while the one before it computes, and
gradients are sent while those of the next layer are computed. Here that holds for stage 1 too, as
in large engines, whereas `ranks.zero` sends them in its step (Rajbhandari et al. 2020,
https://arxiv.org/abs/1910.02054; Zhao et al. 2023, https://arxiv.org/abs/2304.11277). All ranks are
alike, so one stands for all; `replay` plays the program for many.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.arguments import checked, within
from shardlab.layout import Layout
from shardlab.trace import Event

from .. import collectives, data_parallel, memory
from ..compute import flops
from ..facts.hardware import Link
from ..traces.programs import Writer
from ..training import Training
from . import sharding


@dataclass(frozen=True, kw_only=True)
@checked
class ZeroRun(data_parallel.DataParallelRun):
    """A data-parallel run at a stage of ZeRO.

    overlap: send while computing; False: wait for each message.
    """

    zero: int = 3
    hold: bool = False  # gradients stay whole until the last microbatch, see `zero.sent_bytes`

    @cached_property
    def training(self) -> Training:
        """The same run for the counts of memory and of bytes."""
        return Training(
            spec=self.spec,
            layout=Layout(dp=self.ranks, zero=self.zero),
            recipe=self.recipe,
            microbatch=self.batch_per_rank // self.num_microbatches,
            num_microbatches=self.num_microbatches,
            sequence=self.tokens_per_sequence,
            attention=self.attention,
        )


@dataclass(frozen=True, kw_only=True)
@checked
class ZeroStep:
    """One step of a run, in seconds of one rank."""

    run: ZeroRun
    forward: float
    backward: float
    update: float
    communication: float  # the link is busy
    waiting: float  # the rank waits for the link

    @property
    def compute(self) -> float:
        """Seconds of the same step without communication."""
        return self.forward + self.backward + self.update

    @property
    def seconds(self) -> float:
        """Duration of the step."""
        return self.compute + self.waiting

    @property
    def efficiency(self) -> float:
        """Throughput as a share of that of as many ranks without communication: 1 is perfect."""
        return self.compute / self.seconds

    @property
    def parts(self) -> dict[str, float]:
        """The step's duration, split: sums to `seconds`."""
        return {
            "forward": self.forward,
            "backward": self.backward,
            "waiting": self.waiting,
            "update": self.update,
        }


@checked
def step(run: ZeroRun) -> ZeroStep:
    """Predict one step. Each rank updates the parameters whose optimizer states it holds."""
    speed = run.utilisation * run.chip.peak_flops
    work = flops.training_step(run.spec, batch=run.batch_per_rank, sequence=run.tokens_per_sequence)
    forward = sum(work["forward"].values()) / speed
    backward = sum(work["backward"].values()) / speed
    busy, played = play(program(run), run)
    held = run.num_parameters / (run.ranks if run.zero >= memory.CUT_FROM["optimizer"] else 1)
    return ZeroStep(
        run=run,
        forward=forward,
        backward=backward,
        update=run.recipe.update_traffic * held / run.chip.memory_bandwidth,
        communication=busy,
        waiting=max(0.0, played - forward - backward),
    )


@checked
def play(events: Iterable[Event], run: ZeroRun) -> tuple[float, float]:
    """Return the seconds for which the link is busy, and those until the rank is done.

    Collectives follow one another on the link.
    """
    link = replace(run.link, bandwidth=run.link_utilisation * run.link.bandwidth)
    ends: dict[int | None, float] = {}
    clock = free = busy = 0.0
    for event in events:
        if event.kind == "compute":
            clock += event.flops / (run.utilisation * run.chip.peak_flops)
        elif event.kind == "communicate":
            seconds = _seconds(event, run.ranks, link)
            ends[event.number] = free = max(clock, free) + seconds
            busy += seconds
        elif event.number in ends:
            clock = max(clock, ends[event.number])
        else:
            raise ValueError(f"events wait for a communication {event.number}, not issued before")
    return busy, clock


def _seconds(event: Event, ranks: int, link: Link) -> float:
    if event.op == "all_reduce":
        return collectives.all_reduce_seconds(event.nbytes, ranks, link)
    # A reduce-scatter takes as long.
    return collectives.all_gather(event.nbytes, ranks).seconds(link)


@checked
def program(run: ZeroRun, rank: int = 0) -> list[Event]:
    """List what one rank computes, sends and waits for in a step.

    The update's FLOPs are not counted.
    """
    within("rank", rank, run.ranks)
    writer = _Writer(run, rank)
    for number in range(run.num_microbatches):
        last = number == run.num_microbatches - 1
        writer.forward()
        writer.backward(send=last or (run.zero >= memory.CUT_FROM["gradients"] and not run.hold))
    if memory.CUT_FROM["optimizer"] <= run.zero < memory.CUT_FROM["parameters"]:
        writer.gather_all()
    return writer.events


class _Writer(Writer):
    """The program of one rank of a run."""

    def __init__(self, run: ZeroRun, rank: int) -> None:
        super().__init__(rank)
        self.run = run
        self.group = range(run.ranks)
        sequence = run.tokens_per_sequence
        work = flops.forward(run.spec, batch=run.training.microbatch, sequence=sequence)
        self.layer_work = (sum(work.values()) - work["head"]) / run.spec.num_layers
        self.head_work = work["head"]
        sizes = sharding.buffers(run.training)
        *self.layers, self.rest = [sharding.padded(numel, run.ranks) for numel in sizes]
        self.cut = run.zero >= memory.CUT_FROM["parameters"]

    def forward(self) -> None:
        """Gather each layer while the one before it computes."""
        rest = self._gather(self.rest)
        arriving = self._gather(self.layers[0])
        self._wait(rest)
        for following in [*self.layers[1:], 0]:
            self._wait(arriving)
            arriving = self._gather(following)
            self.compute(self.layer_work, "forward")
        self.compute(self.head_work, "forward")

    def backward(self, *, send: bool) -> None:
        """Send each layer's gradients while the next layer computes; send: False to hold them."""
        arriving = self._gather(self.layers[-1])
        leaving = None
        self.compute(2 * self.head_work, "backward")
        for layer, following in zip(self.layers[::-1], [*self.layers[-2::-1], 0], strict=True):
            self._wait(arriving)
            arriving = self._gather(following)
            self.compute(2 * self.layer_work, "backward")
            sent = self._send(layer) if send else None
            self._wait(leaving)
            leaving = sent
        last = self._send(self.rest) if send else None
        self._wait(leaving)
        self._wait(last)

    def gather_all(self) -> None:
        """Gather all parameters after the update, for the stages that keep them whole."""
        element = self.run.recipe.parameters
        sizes = (*self.layers, self.rest)
        numbers = [self._issue("all_gather", element * size) for size in sizes]
        for number in numbers:
            self._wait(number)

    def _gather(self, numel: int) -> int | None:
        if not self.cut or not numel:
            return None
        return self._issue("all_gather", self.run.recipe.parameters * numel)

    def _send(self, numel: int) -> int | None:
        op = "reduce_scatter" if self.run.zero >= memory.CUT_FROM["optimizer"] else "all_reduce"
        return self._issue(op, self.run.recipe.gradients * numel)

    def _issue(self, op: str, nbytes: float) -> int | None:
        if self.run.ranks == 1:
            return None
        number = self.collective(op, nbytes, self.group)
        self.wait([] if self.run.overlap else [number])
        return number

    def _wait(self, number: int | None) -> None:
        self.wait([] if number is None or not self.run.overlap else [number])
