"""Search for the fastest layout: every way to cut a model over a cluster, timed or rejected.

`step` and `memory` define what a plan takes. The search computes each of their terms once for all
plans that share it, so that a hundred thousand plans take about a second. A test compares the
results with `step.step` and `memory.total`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import product
from math import ceil
from operator import add
from typing import Any

from shardlab.files.arguments import checked, unchecked
from shardlab.schedules import CHUNKED
from shardlab.sharding.hybrids import alike
from shardlab.sharding.layout import divisors

from .. import memory, step
from .. import training as trainings
from ..memory import overhead
from ..step import axes, replicas
from ..step.replicas import DataMessages, Holdings
from ..training import Training
from .plans import Plans, Question, TrainingPlan
from .tables import Degrees, Microbatch, every_degree

MOST_PLANS = 2_000_000  # a search of this size takes about a quarter of a minute, and 1 GB
MOST_PARTS = 10**9  # sequences, or GPUs: to find their divisors takes time, too

# A question is checked once. These are called for each of its plans.
in_flight = unchecked(trainings.in_flight)
of_microbatches = unchecked(memory.of_microbatches)
data_wait = unchecked(replicas.data_wait)
sending_seconds = unchecked(step.sending_seconds)
pipeline_seconds = unchecked(step.pipeline_seconds)
send_seconds = unchecked(step.send_seconds)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Order:
    """A schedule with its chunks, and the stages that they make."""

    schedule: str
    chunks: int
    stages: step.StageLayers
    cut: "_Cut"


@dataclass(frozen=True, kw_only=True, eq=False)
class _Cut:
    """What schedules share that deal the same layers to stages in as many chunks."""

    fullest: dict[int, int]  # stage that may be the fullest -> its layers
    held: Holdings  # of the stage with the most parameters
    zeros: list["_Zero"]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Zero:
    """What one stage of ZeRO costs for given degrees and chunks."""

    stage: int
    messages: DataMessages
    once: float  # seconds in a step: the update, and the sum of a tied embedding's gradients
    resident: list[float]  # bytes on each stage that may be the fullest


@checked
def search(question: Question) -> Plans:
    """Time or reject every plan; sort those that fit, the fastest first.

    Errors: ValueError where there are more than MOST_PLANS plans, with their number.
    """
    _check_size(question)
    microbatch = _microbatches(replace(question, batch=1))
    fitting: list[TrainingPlan] = []
    rejected: list[TrainingPlan] = []
    for degrees, reason in every_degree(question):
        if reason:
            rejected.append(degrees.rejected(reason))
            continue
        for plan in _Search(question, degrees, microbatch).plans():
            (rejected if plan.reason else fitting).append(plan)
    fitting.sort()
    return Plans(question, fitting, rejected)


def _check_size(question: Question) -> None:
    """Refuse a question that takes too long to answer. Errors: ValueError with the way out."""
    gpus = question.cluster.gpus
    if max(question.batch, gpus) > MOST_PARTS:
        raise ValueError(
            f"batch={question.batch} sequences on {gpus} GPUs have too many divisors to try; "
            f"use at most {MOST_PARTS:,} of each"
        )
    legal = (degrees for degrees, reason in every_degree(question) if not reason)
    plans = sum(_count(question, degrees) for degrees in legal)
    if plans > MOST_PLANS:
        raise ValueError(
            f"batch={question.batch} sequences on {gpus} GPUs make up to {plans:,} plans, and a "
            f"search tries at most {MOST_PLANS:,}; leave fewer choices open (zero, schedules, "
            "recomputations, context), or use a batch with fewer divisors"
        )


def _count(question: Question, degrees: Degrees) -> int:
    """Count the plans with given degrees, including those that are rejected together."""
    orders = sum(len(list(_chunks(question, each, degrees.pp))) for each in question.schedules)
    choices = len(question.sequence_parallel) * len(question.recomputations) * len(question.zero)
    return len(divisors(question.batch // degrees.dp)) * orders * choices


def _chunks(question: Question, schedule: str, pp: int) -> Iterator[int]:
    """Yield in how many chunks the stages of a schedule can have their layers."""
    if schedule not in CHUNKED:
        yield 1
        return
    num_layers = question.spec.num_layers
    most = -(-(num_layers + 2) // pp)
    for chunks in range(2, min(most, question.most_chunks or most) + 1):
        even = num_layers % (chunks * pp) == 0 or (num_layers + 2) % (chunks * pp) == 0
        if even and alike(question.spec, chunks * pp):
            yield chunks


@lru_cache(maxsize=4)  # questions that differ in their batch alone have the same microbatches
def _microbatches(question: Question) -> Callable[..., Microbatch]:
    """Return a function that counts what a kind of microbatch costs, each kind once."""
    return cache(partial(Microbatch.of, question))


@lru_cache(maxsize=2**14)  # of a few questions that differ in their batch or machine alone
def _resident(training: Training, stage: int) -> float:
    """Count the bytes on a rank of the stage that do not depend on the microbatches."""
    tensors = sum((memory.states(training, stage) | memory.messages(training, stage)).values())
    return tensors + sum(overhead.overhead(training, tensors).values())


class _Search:
    """All plans with given degrees."""

    def __init__(
        self, question: Question, degrees: Degrees, microbatch: Callable[..., Microbatch]
    ) -> None:
        self.question = question
        self.capacity = question.capacity
        self.degrees = degrees
        self.microbatch = microbatch
        self.links = axes.links(self.question.cluster, degrees.layout)
        self.resident: dict[tuple[bool, bool, int], list[float]] = {}  # by dealing and ZeRO's stage
        self.orders = list(self._orders())
        self.sizes = divisors(self.question.batch // degrees.dp)
        stored = question.attention == "stored"  # else there are no scores to recompute
        self.recomputations = [
            each for each in question.recomputations if each != "selective" or stored
        ]

    def _cut(self, schedule: str, chunks: int) -> _Cut:
        layout = self.degrees.layout
        training = self.question.training(layout, schedule=schedule, chunks=chunks)
        held = step.holdings(training)
        fullest = {stage: training.layers_of(stage) for stage in memory.fullest_stages(training)}
        stages = self.question.zero if layout.replicas > 1 else (0,)
        zeros = [
            self._zero(replace(training, layout=replace(layout, zero=stage)), held, fullest)
            for stage in stages
        ]
        return _Cut(fullest=fullest, held=held, zeros=zeros)

    def _zero(self, training: Training, held: Holdings, fullest: Iterable[int]) -> _Zero:
        update = step.update_seconds(training, held, self.question.cluster.node.chip)
        stage, chunks = training.layout.zero, training.chunks
        dealt = chunks > 1, training.spec.num_layers % (chunks * self.degrees.pp) > 0, stage
        if dealt not in self.resident:
            self.resident[dealt] = [_resident(training, each) for each in fullest]
        return _Zero(
            stage=stage,
            messages=replicas.messages_of_replicas(training, self.links, held),
            once=update + step.tied_seconds(training, self.links["pp"]),
            resident=self.resident[dealt],
        )

    def _orders(self) -> Iterator[_Order]:
        """Yield schedules with their chunks and stages; on a single stage all are the same."""
        pp = self.degrees.pp
        num_layers = self.question.spec.num_layers
        cuts: dict[int, _Cut] = {}
        for schedule in self.question.schedules if pp > 1 else ("1F1B",):
            for chunks in _chunks(self.question, schedule, pp):
                if chunks not in cuts:
                    cuts[chunks] = self._cut(schedule, chunks)
                stages = step.stages_of(num_layers, pp, chunks)
                yield _Order(schedule=schedule, chunks=chunks, stages=stages, cut=cuts[chunks])

    def plans(self) -> list[TrainingPlan]:
        """List every plan, timed or rejected."""
        found: list[TrainingPlan] = []
        tp, layout = self.degrees.tp, replace(self.degrees.layout, dp=self.degrees.ep, pp=1)
        ways = {True} if self.degrees.whole_experts else self.question.sequence_parallel
        for shared in ways if tp > 1 else (False,):
            if shared and self.question.length % (self.degrees.cp * tp):
                found.append(self.degrees.rejected("sequence", sequence_parallel=True))
                continue
            sliced = replace(layout, sequence_parallel=shared)
            for size, again in product(self.sizes, self.recomputations):
                keeping = None
                if again == "full" and "none" in self.recomputations:
                    keeping = self.microbatch(sliced, size, "none")
                found.extend(self._plans_of(self.microbatch(sliced, size, again), keeping))
        return found

    def _plans_of(self, one: Microbatch, keeping: Microbatch | None) -> Iterator[TrainingPlan]:
        """Yield the plans of all schedules and all stages of ZeRO for one kind of microbatch.

        keeping: the same microbatch with nothing recomputed. Where it does not fit and `one` does,
        a plan recomputes as few layers as suffice.
        """
        num_microbatches = self.question.batch // (self.degrees.dp * one.training.microbatch)
        seconds = self._timer(one, num_microbatches)
        without = self._timer(keeping, num_microbatches) if keeping else None
        plan = partial(
            TrainingPlan,
            **vars(self.degrees),
            sequence_parallel=one.training.layout.sequence_parallel,
            microbatch=one.training.microbatch,
            recomputation=one.training.recomputation,
        )
        for order in self.orders:
            kind: dict[str, Any] = {"schedule": order.schedule, "chunks": order.chunks}
            if order.chunks > 1 and not self.question.program.interleaves(
                self.degrees.pp, num_microbatches
            ):
                yield plan(**kind, reason="microbatches")
                continue
            flying = self._bytes_in_flight(one, order, num_microbatches)
            all_kept = self._bytes_in_flight(keeping, order, num_microbatches) if keeping else []
            for zero in order.cut.zeros:
                nbytes = max(map(add, zero.resident, flying))
                if nbytes > self.capacity:
                    yield plan(**kind, zero=zero.stage, nbytes=nbytes, reason="memory")
                    continue
                most = max(map(add, zero.resident, all_kept), default=0.0)
                layers = order.stages.most
                saved, missing = most - nbytes, most - self.capacity
                some = ceil(missing / saved * layers) if saved > 0 else layers
                taken = seconds(order, zero)
                if without is None or keeping is None or not 0 < some < layers:
                    yield plan(**kind, zero=zero.stage, seconds=taken, nbytes=nbytes)
                    continue
                share = some / layers
                mixed = _mixed(keeping, one, share)
                held = self._bytes_in_flight(mixed, order, num_microbatches)
                yield plan(
                    **kind,
                    zero=zero.stage,
                    recomputed_layers=some,
                    layers=layers,
                    seconds=(1 - share) * without(order, zero) + share * taken,
                    nbytes=max(map(add, zero.resident, held)),
                )

    def _timer(self, one: Microbatch, num_microbatches: int) -> Callable[[_Order, _Zero], float]:
        """Return a function that times a step of such microbatches."""
        program = self.question.program
        send = send_seconds(one.training.message_bytes, self.degrees.pp, self.links["pp"])
        of_layer = one.time.beside(self.links)
        again = one.training.recomputation == "full"
        waits: dict[_Zero, replicas.DataWait] = {}
        sendings: dict[_Order, float] = {}

        def seconds(order: _Order, zero: _Zero) -> float:
            held = order.cut.held
            played: dict[str, Any] = {
                "schedule": order.schedule,
                "chunks": order.chunks,
                "num_microbatches": num_microbatches,
            }
            if zero not in waits:
                waits[zero] = data_wait(zero.messages, program, held, *of_layer, recomputed=again)
            if order not in sendings:
                beside = one.time.forward * held.layers / order.chunks
                sendings[order] = sending_seconds(
                    send, program, pp=self.degrees.pp, beside=beside, **played
                )
            wait = waits[zero]
            busy = pipeline_seconds(one.time, wait, order.stages, **played)
            return busy + sendings[order] + wait.end + zero.once

        return seconds

    def _bytes_in_flight(
        self, one: Microbatch, order: _Order, num_microbatches: int
    ) -> list[float]:
        """Count the bytes on each stage that depend on the microbatches."""
        pp = self.degrees.pp
        size = {"pp": pp, "num_microbatches": num_microbatches, "chunks": order.chunks}
        grown = 1 + self.question.program.margin
        found = []
        for stage, layers in order.cut.fullest.items():
            flying = in_flight(order.schedule, stage, **size)
            first, last = stage == 0, stage == pp - 1
            each = layers / order.chunks
            parts = of_microbatches(one.memory, flying, each, first=first, last=last)
            found.append(grown * sum(parts.values()) + one.blocks)
        return found


def _mixed(keeping: Microbatch, again: Microbatch, share: float) -> Microbatch:
    """Return what a microbatch holds where this share of the layers is recomputed."""

    def mean(kept: float, recomputed: float) -> float:
        return (1 - share) * kept + share * recomputed

    layer = mean(keeping.memory.layer, again.memory.layer)
    backward = mean(keeping.memory.backward, again.memory.backward)
    return replace(again, memory=replace(again.memory, layer=layer, backward=backward))
