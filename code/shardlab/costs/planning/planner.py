"""Every way to cut a model over a cluster, timed or rejected.

What a step takes is `step`'s sum, what it holds is `memory`'s. Here both are taken apart, so that what depends on few
of the choices is computed once for all the others: a hundred thousand plans take about a second. A test holds the
results to those of `step` and `memory`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from shardlab.layout import Layout, divisors, tensor_degrees

from .. import step
from ..facts.hardware import Link
from ..step import axes, exposed
from ..training import Training
from . import footprint
from .plans import Plan, Plans, Question

Degrees = tuple[int, int, int, int]  # tp, cp, pp, dp


def search(question: Question) -> Plans:
    """Every plan, timed or rejected."""
    tables = _Tables(question)
    fitting: list[Plan] = []
    rejected: list[Plan] = []
    for degrees, reason in _degrees(question):
        if reason:
            rejected.append(Plan(0.0, 0.0, *degrees, reason=reason))
            continue
        for plan in _Cut(tables, degrees).plans():
            (rejected if plan.reason else fitting).append(plan)
    fitting.sort()
    return Plans(question, fitting, rejected)


def _degrees(question: Question) -> Iterator[tuple[Degrees, str]]:
    """(tp, cp, pp, dp) that use all GPUs, each with the reason why it cannot be, or ""."""
    gpus, works = question.cluster.gpus, set(tensor_degrees(question.spec))
    for tp in divisors(gpus):
        for cp in question.context:
            for pp in divisors(gpus // (tp * cp)) if gpus % (tp * cp) == 0 else ():
                dp = gpus // (tp * cp * pp)
                tests = {
                    "heads": tp not in works,
                    "node size": not axes.fits_nodes(question.cluster, tp),
                    "layers": pp > question.spec.num_layers,
                    "batch": question.batch % dp > 0,
                    "sequence": question.length % cp > 0,
                }
                yield (tp, cp, pp, dp), next((reason for reason, failed in tests.items() if failed), "")


class _Tables:
    """What many plans share, computed once."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.chip = question.cluster.node.chip
        self.recomputations = [
            each for each in question.recomputations if each != "selective" or question.attention == "stored"
        ]
        self.microbatches: dict[tuple[object, ...], tuple[step.Micro, footprint.Kept]] = {}
        self.links: dict[tuple[int, int], dict[str, Link]] = {}

    def training(self, layout: Layout, microbatch: int = 1, recomputation: str = "none") -> Training:
        """One microbatch of it."""
        question = self.question
        return Training(
            spec=question.spec,
            layout=layout,
            recipe=question.recipe,
            microbatch=microbatch,
            sequence=question.sequence,
            attention=question.attention,
            recomputation=recomputation,
            dropout=question.dropout,
        )

    def micro(self, tp: int, cp: int, shared: bool, size: int, again: str) -> tuple[step.Micro, footprint.Kept]:
        """Seconds and bytes of a microbatch; shared: the sequence is, too."""
        key = tp, cp, shared, size, again
        if key not in self.microbatches:
            training = self.training(Layout(tp=tp, cp=cp, sequence_parallel=shared), size, again)
            run, cluster = self.question.run(training), self.question.cluster
            if (tp, cp) not in self.links:
                self.links[tp, cp] = {"tp": axes.link(cluster, 1, tp), "cp": axes.link(cluster, tp, cp)}
            self.microbatches[key] = step.microbatch(run, self.links[tp, cp]), footprint.kept(training)
        return self.microbatches[key]


class _Zero(NamedTuple):
    """What one stage of ZeRO means for a (tp, cp, pp, dp)."""

    stage: int
    messages: exposed.DataMessages
    once: float  # seconds in a step: the update, and the sum of a tied embedding's gradients
    first: float  # bytes that stand on the first and on the last stage
    last: float


class _Cut:
    """All plans of one (tp, cp, pp, dp)."""

    def __init__(self, tables: _Tables, degrees: Degrees) -> None:
        self.tables, self.question, self.degrees = tables, tables.question, degrees
        self.tp, self.cp, self.pp, self.dp = degrees
        layout = Layout(dp=self.dp, tp=self.tp, pp=self.pp, cp=self.cp)
        self.links = axes.links(self.question.cluster, layout)
        held = step.holdings(tables.training(layout))
        self.layers = held.layers  # of the stage with most parameters
        stages = self.question.zero if layout.replicas > 1 else (0,)
        self.zeros = [self._zero(replace(layout, zero=stage), held) for stage in stages]
        self.orders = list(self._orders())
        self.ends = footprint.layers_of_ends(self.question.spec.num_layers, self.pp)

    def _zero(self, layout: Layout, held: exposed.Holdings) -> _Zero:
        training = self.tables.training(layout)
        tied = step.tied_seconds(training, self.links["pp"])
        return _Zero(
            stage=layout.zero,
            messages=exposed.data_messages(layout, training.recipe, self.links["replicas"], held),
            once=step.update_seconds(training, held, self.tables.chip) + tied,
            first=footprint.standing(training, 0),
            last=footprint.standing(training, self.pp - 1),
        )

    def _orders(self) -> Iterator[tuple[str, int, step.Stages]]:
        """Schedules, with their chunks and stages; on one stage all are the same."""
        num_layers = self.question.spec.num_layers
        for name in self.question.schedules if self.pp > 1 else ("1F1B",):
            options = [1]
            if name == "interleaved":
                most = -(-(num_layers + 2) // self.pp)
                pieces = {v: v * self.pp for v in range(2, most + 1)}
                options = [v for v, count in pieces.items() if num_layers % count == 0 or (num_layers + 2) % count == 0]
            for chunks in options:
                yield name, chunks, step.stages_of(num_layers, self.pp, chunks)

    def plans(self) -> list[Plan]:
        """Every one, timed or rejected."""
        found: list[Plan] = []
        for shared in self.question.sequence_parallel if self.tp > 1 else (False,):
            if shared and self.question.length % (self.cp * self.tp):
                found.append(Plan(0.0, 0.0, *self.degrees, sequence_parallel=True, reason="sequence"))
                continue
            for size in divisors(self.question.batch // self.dp):
                for again in self.tables.recomputations:
                    self._time(shared, size, again, found)
        return found

    def _time(self, shared: bool, size: int, again: str, found: list[Plan]) -> None:
        """All schedules and stages of ZeRO for one kind of microbatch."""
        pp, engine, capacity = self.pp, self.question.engine, self.question.capacity
        tp, cp, _, dp = self.degrees
        m = self.question.batch // (self.dp * size)
        micro, kept = self.tables.micro(self.tp, self.cp, shared, size, again)
        spec, tokens = self.question.spec, size * self.question.length // self.cp
        nbytes = tokens * spec.hidden_size * self.question.recipe.element / self.tp
        send = step.send_seconds(nbytes, pp, self.links["pp"])
        computing = self.layers, micro.forward, micro.backward
        waits = [exposed.data_wait(zero.messages, engine, *computing) for zero in self.zeros]
        most, least = self.ends
        for name, chunks, cut in self.orders:
            if name == "interleaved" and m < pp:
                found.append(Plan(0.0, 0.0, tp, cp, pp, dp, 0, shared, size, again, name, chunks, "microbatches"))
                continue
            flying = footprint.flying(name, 0, pp, m, chunks)
            first = footprint.first_stage(kept, flying, most / chunks, alone=pp == 1)
            last = 0.0
            if pp > 1:
                last = footprint.last_stage(kept, footprint.flying(name, pp - 1, pp, m, chunks), least / chunks)
            sending = step.sending_seconds(send, pp, m, chunks, name == "naive", engine)
            for zero, wait in zip(self.zeros, waits, strict=True):
                nbytes = max(zero.first + first, zero.last + last)
                seconds, reason = 0.0, "memory"
                if nbytes <= capacity:
                    busy = step.pipeline_seconds(micro, wait, cut, m, chunks, name == "naive")
                    seconds, reason = busy + sending + wait.end + zero.once, ""
                found.append(
                    Plan(seconds, nbytes, tp, cp, pp, dp, zero.stage, shared, size, again, name, chunks, reason)
                )
