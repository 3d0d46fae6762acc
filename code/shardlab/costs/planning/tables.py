"""What many plans share: degrees that use every GPU, and one microbatch on a single stage."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from shardlab.files.arguments import Count, checked
from shardlab.sharding.hybrids import alike
from shardlab.sharding.layout import Layout, divisors, tensor_degrees

from .. import context_parallel, memory, step
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
        shared = sequence_parallel or self.whole_experts
        return TrainingPlan(**vars(self), sequence_parallel=shared, reason=reason)


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
                    "kinds": not alike(spec, pp),
                    "states": cp > 1 and spec.recurrent is not None,
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

    training: Training  # of one stage, without replicas
    time: step.MicrobatchTime
    memory: memory.MicrobatchBytes
    blocks: float  # bytes of keys and values of other ranks of cp

    @classmethod
    def of(
        cls, question: Question, layout: Layout, size: Count, recomputation: str
    ) -> "Microbatch":
        """Count what a microbatch of `size` sequences costs. In `layout`, pp is 1 and dp is ep."""
        training = question.training(layout, microbatch=size, recomputation=recomputation)
        return cls(
            training=training,
            time=step.microbatch(question.run(training), axes.links(question.cluster, layout)),
            memory=memory.microbatch_bytes(training),
            blocks=context_parallel.at_work(training, training.program.context_strategy),
        )
