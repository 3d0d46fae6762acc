"""One model on a cluster, on two engines: what a GPU holds, and how long a step takes at least.

A step writes texts, takes the log p of their tokens, trains on them, and hands the weights over.
Left out: judging the texts, a reference model, conversion of the weights, and the messages of the
generator's experts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

from shardlab.files.arguments import Count, Positive, checked
from shardlab.sharding.layout import Layout

from .. import memory
from ..facts import hardware
from ..facts.network import Cluster
from ..memory import overhead
from ..step import Run, axes, step
from ..training import Training
from .copies import GeneratorCopies
from .decode import ROOM, DecodingRank
from .hand_over import HandOver
from .moments import SharedGPU


@dataclass(frozen=True, kw_only=True)
@checked
class TwoEngines:
    """A model that learns from its own texts on all GPUs of a cluster.

    Methods take `generators`, the GPUs that only generate: 0 if all GPUs do both, in turn. The dp of
    the trainer and the number of copies follow from the GPUs. Errors: ValueError where they do not
    divide, and where the longest text does not fit into the model's context.
    """

    training: Training  # its dp, sequence and number of microbatches follow from GPUs and texts
    copy: Layout  # of one copy of the generator
    cluster: Cluster
    prompt: Count  # tokens
    lengths: Sequence[Count]  # tokens of a step's answers, in the order in which they start
    element: Count = 2  # bytes of a weight in the generator, and on its way there
    answers: Count = 1  # to each prompt, which a copy reads once for all of them
    bucket: Positive = 1e9  # bytes of a message of the hand-over, which both sides hold

    def __post_init__(self) -> None:
        _ = self.texts(), self.trainer()  # refuse what cannot be

    @property
    def possible(self) -> list[int]:
        """List the numbers of GPUs that may only generate: both engines' GPUs divide."""
        gpus, step = self.cluster.gpus, self.copy.ranks
        return [n for n in range(step, gpus, step) if not (gpus - n) % self.unit]

    @property
    def best(self) -> int | None:
        """The `generators` of the shortest step that fits into memory; 0: in turn, None: none fits."""
        able = [n for n in (0, *self.possible) if self.fits(n)]
        return min(able, key=lambda n: self.step(n)["step"], default=None)

    @property
    def unit(self) -> int:
        """The number of GPUs that share a replica and its experts: the trainer takes multiples of it."""
        layout = self.training.layout
        return layout.tp * layout.cp * layout.pp * layout.ep

    def trainer(self, generators: int = 0) -> Training:
        """Return the training on the GPUs that are left, as if all texts were equally long."""
        left, layout = self.cluster.gpus - generators, self.training.layout
        if left < 1 or left % self.unit:
            raise ValueError(
                f"generators={generators} leave {left} of {self.cluster.gpus} GPUs, and the trainer "
                f"needs a multiple of tp * cp * pp * ep = {self.unit}"
            )
        dp = left // (layout.tp * layout.cp * layout.pp)
        return replace(
            self.training,
            layout=replace(layout, dp=dp),
            sequence=self._whole(sum(self.lengths) / len(self.lengths)),
            num_microbatches=ceil(len(self.lengths) / dp / self.training.microbatch),
        )

    def texts(self, generators: int = 0) -> GeneratorCopies:
        """Return the copies of the generator, with a step's texts."""
        gpus, copy = generators or self.cluster.gpus, self.copy
        if gpus % copy.ranks:
            raise ValueError(
                f"{gpus} GPUs do not divide into copies of {copy.ranks}; use generators = a multiple"
            )
        rank = DecodingRank(
            spec=self.training.spec,
            chip=self.cluster.node.chip,
            layout=copy,
            element=self.element,
            link=axes.links(self.cluster, copy)["tp"],
        )
        return GeneratorCopies(
            decoding=rank, copies=gpus // copy.ranks, prompt=self.prompt, lengths=self.lengths
        )

    def step(self, generators: int = 0) -> dict[str, float]:
        """Return the least seconds of each engine, of what lies between, and of a step.

        "hand over" includes, in turn, that the optimizer's states go to the host and come back. Apart,
        slots are always full, and the slower engine decides.
        """
        training, texts = self.trainer(generators), self.texts(generators)
        handing = self._hand_over(generators)
        prompts = ceil(len(self.lengths) / self.answers)
        reading = prompts * texts.decoding.reading(self.prompt) * self.copy.tp  # GPU-seconds
        train = step(Run(training=training, cluster=self.cluster)).seconds + self._log_p(training)
        if generators:
            write = (texts.generating + reading) / generators
            whole = max(write + handing, train)
        else:
            write = texts.writing[-1][0] + reading / self.cluster.gpus
            host = hardware.host_link(self.cluster.node.chip)
            stages = memory.fullest_stages(training)
            states = max(memory.states(training, stage)["optimizer"] for stage in stages)
            handing += 2 * states / host.bandwidth
            whole = write + handing + train
        return {"generate": write, "hand over": handing, "train": train, "step": whole}

    def held(self, generators: int = 0) -> dict[str, dict[str, float]]:
        """List the bytes on a GPU, by moment and part; apart, it knows "train" or "generate" only.

        The trainer has its fullest microbatch: of texts of mean length, or the longest alone.
        """
        mean = self.trainer(generators)
        longest = replace(mean, microbatch=1, sequence=self._whole(max(self.lengths)))
        training = max(mean, longest, key=memory.total)
        trainer = memory.per_rank(training, memory.worst_stage(training))
        always = sum(overhead.fixed(training).values())
        trainer["overhead"] -= always  # the margin, which torch gives back
        rank = self.texts(generators).decoding
        shared = SharedGPU(
            trainer=trainer,
            weights=rank.weights,
            cache=ROOM * rank.chip.memory - rank.weights,
            gathered=self.bucket,
            beside=always,
        ).moments()
        return {name: shared[name] for name in ("train", "generate")} if generators else shared

    def fits(self, generators: int = 0) -> bool:
        """Tell whether no moment holds more than the memory of a GPU."""
        most = max(sum(parts.values()) for parts in self.held(generators).values())
        return most <= self.cluster.node.chip.memory

    def _whole(self, answer: float) -> int:
        """Return the tokens of a prompt and an answer, rounded up so that ranks share them."""
        layout, tokens = self.training.layout, self.prompt + answer
        pieces = layout.cp * (layout.tp if layout.sequence_parallel else 1)
        return ceil(tokens / pieces) * pieces

    def _hand_over(self, generators: int) -> float:
        """Seconds in which every GPU of the generator gets its weights, over all cards at once."""
        cluster, texts = self.cluster, self.texts(generators)
        one = cluster.num_nodes == 1
        ring = (1, cluster.gpus) if one else (cluster.node.gpus, cluster.num_nodes)
        return HandOver(
            whole=texts.decoding.weights * self.copy.ranks,
            cut=self.copy.ranks,
            copies=texts.copies,
            trainers=cluster.gpus - generators,
            bucket=self.bucket,
        ).seconds(axes.link(cluster, *ring))

    def _log_p(self, training: Training) -> float:
        """Seconds of a forward of all texts: a third of what forward and backward compute."""
        kept = replace(training, recomputation="none", recomputed_layers=None)
        alone = step(Run(training=kept, cluster=self.cluster))
        return (alone.computing - alone.parts["update"]) / 3
