"""What many plans share, computed once: the microbatches of one (tp, cp)."""

from dataclasses import dataclass

from shardlab.arguments import Count, checked
from shardlab.layout import Layout

from .. import memory, step
from ..step import axes
from ..training import Training
from .plans import Question, TrainingPlan


@dataclass(frozen=True, kw_only=True)
@checked
class Degrees:
    """The degree of each axis of a layout."""

    tp: Count
    cp: Count
    pp: Count
    dp: Count

    @property
    def layout(self) -> Layout:
        """The layout, without ZeRO and sequence parallelism."""
        return Layout(dp=self.dp, tp=self.tp, pp=self.pp, cp=self.cp)

    def rejected(self, reason: str, *, sequence_parallel: bool = False) -> TrainingPlan:
        """Reject all plans with these degrees and choices for one of `plans.REASONS`."""
        return TrainingPlan(
            tp=self.tp,
            cp=self.cp,
            pp=self.pp,
            dp=self.dp,
            sequence_parallel=sequence_parallel,
            reason=reason,
        )


@dataclass(frozen=True, kw_only=True)
@checked
class Microbatch:
    """One kind of microbatch: its choices, and what it costs on every stage."""

    size: Count
    sequence_parallel: bool
    recomputation: str
    time: step.MicrobatchTime
    memory: memory.MicrobatchBytes
    message_bytes: float


class Tables:
    """What many plans share, computed once."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self.chip = question.cluster.node.chip
        stored = question.attention == "stored"  # else there are no scores to recompute
        self.recomputations = [
            each for each in question.recomputations if each != "selective" or stored
        ]
        self.microbatches: dict[tuple[object, ...], Microbatch] = {}

    def training(
        self, layout: Layout, microbatch: Count = 1, recomputation: str = "none"
    ) -> Training:
        """Make a training of one microbatch."""
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

    def microbatch(
        self, degrees: Degrees, size: Count, *, sequence_parallel: bool, recomputation: str
    ) -> Microbatch:
        """Look up one kind of microbatch, or compute it. Of `degrees` only tp and cp matter."""
        key = degrees.tp, degrees.cp, size, sequence_parallel, recomputation
        if key not in self.microbatches:
            layout = Layout(tp=degrees.tp, cp=degrees.cp, sequence_parallel=sequence_parallel)
            training = self.training(layout, size, recomputation)
            links = axes.links(self.question.cluster, layout)
            self.microbatches[key] = Microbatch(
                size=size,
                sequence_parallel=sequence_parallel,
                recomputation=recomputation,
                time=step.microbatch(self.question.run(training), links),
                memory=memory.microbatch_bytes(training),
                message_bytes=step.message_bytes(training),
            )
        return self.microbatches[key]
