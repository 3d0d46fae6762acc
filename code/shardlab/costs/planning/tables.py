"""What many plans share: degrees that use every GPU, and the microbatches of one (tp, cp, ep)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from shardlab.arguments import Count, checked
from shardlab.sharding.layout import Layout, divisors, tensor_degrees

from .. import context_parallel, memory, step
from ..step import axes
from . import footprint
from .plans import Question, TrainingPlan


@dataclass(frozen=True, kw_only=True)
@checked
class Degrees:
    """The degree of each axis of a layout."""

    tp: Count
    cp: Count
    pp: Count
    dp: Count
    ep: Count = 1
    whole_experts: bool = False

    @property
    def layout(self) -> Layout:
        """The layout without ZeRO, and without sequence parallelism unless experts need it."""
        return Layout(
            dp=self.dp,
            tp=self.tp,
            pp=self.pp,
            cp=self.cp,
            ep=self.ep,
            sequence_parallel=self.whole_experts,
            whole_experts=self.whole_experts,
        )

    def rejected(self, reason: str, *, sequence_parallel: bool = False) -> TrainingPlan:
        """Reject all plans with these degrees and choices for one of `plans.REASONS`."""
        return TrainingPlan(
            tp=self.tp,
            cp=self.cp,
            pp=self.pp,
            dp=self.dp,
            ep=self.ep,
            sequence_parallel=sequence_parallel or self.whole_experts,
            whole_experts=self.whole_experts,
            reason=reason,
        )


@checked
def every_degree(question: Question) -> Iterator[tuple[Degrees, str]]:
    """Yield all degrees that use every GPU, each with the reason why it is impossible, or ""."""
    gpus = question.cluster.gpus
    spec = question.spec
    possible = set(tensor_degrees(spec))
    dealt = set(divisors(spec.experts.num_experts)) if spec.experts else {1}
    for tp in divisors(gpus):
        for cp in question.context:
            if gpus % (tp * cp):
                continue
            for pp in divisors(gpus // (tp * cp)):
                dp = gpus // (tp * cp * pp)
                tests = {
                    "heads": tp not in possible,
                    "node size": not axes.fits_nodes(question.cluster, tp),
                    "layers": pp > spec.num_layers,
                    "batch": question.batch % dp > 0,
                    "sequence": question.length % cp > 0,
                }
                failed = [reason for reason, fails in tests.items() if fails]
                ways = question.whole_experts if tp > 1 else (False,)
                for ep, whole in product(question.experts, ways):
                    slices = tp if whole else 1
                    further = {
                        "experts": dp % ep > 0 or ep * slices not in dealt,
                        "sequence": question.length % (cp * slices) > 0,
                    }
                    reasons = [*failed, *(reason for reason, fails in further.items() if fails), ""]
                    degrees = Degrees(tp=tp, cp=cp, pp=pp, dp=dp, ep=ep, whole_experts=whole)
                    yield degrees, reasons[0]


@dataclass(frozen=True, kw_only=True)
@checked
class Microbatch:
    """One kind of microbatch: its choices, and what it costs on every stage."""

    size: Count
    sequence_parallel: bool
    recomputation: str
    time: step.MicrobatchTime
    memory: memory.MicrobatchBytes  # "gathered" with the blocks of other ranks of cp
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

    def microbatch(
        self, degrees: Degrees, size: Count, *, sequence_parallel: bool, recomputation: str
    ) -> Microbatch:
        """Look up one kind of microbatch, or compute it. Of `degrees` pp and dp do not matter."""
        dealt = degrees.ep, degrees.whole_experts
        key = degrees.tp, degrees.cp, *dealt, size, sequence_parallel, recomputation
        if key not in self.microbatches:
            layout = replace(
                degrees.layout, dp=degrees.ep, pp=1, sequence_parallel=sequence_parallel
            )
            training = self.question.training(
                layout, microbatch=size, recomputation=recomputation
            )
            links = axes.links(self.question.cluster, layout)
            held = footprint.of_a_microbatch(training)
            blocks = context_parallel.at_work(training, training.program.context_strategy)
            self.microbatches[key] = Microbatch(
                size=size,
                sequence_parallel=sequence_parallel,
                recomputation=recomputation,
                time=step.microbatch(self.question.run(training), links),
                memory=replace(held, gathered=held.gathered + blocks),
                message_bytes=training.message_bytes,
            )
        return self.microbatches[key]
