"""Training: what a run computes on each rank and what it keeps, as one frozen object."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from shardlab import schedules
from shardlab.files.arguments import Count, checked, within
from shardlab.model.spec import TransformerSpec
from shardlab.schedules import CHUNKED, WHOLE, Action, classic
from shardlab.sharding.hybrids import alike, unlike
from shardlab.sharding.layout import ONE_RANK, Layout, layers_of_stage, stages

from .facts.recipes import MIXED, Recipe
from .program import Program
from .programs import NEMO_2024

ATTENTIONS = {
    "flash": "the scores are never stored",
    "stored": "the scores of every pair of tokens are stored",
}
RECOMPUTATIONS = {
    "none": "backward's inputs are all kept",
    "selective": "attention's scores are recomputed",
    "full": "each layer keeps only its input and is recomputed",
}


class MicrobatchesInFlight(NamedTuple):
    """Microbatches in flight at a stage's peak, counted once for each chunk of the stage."""

    all: int
    of_first: int  # those of the stage's first chunk
    of_last: int


@dataclass(frozen=True, kw_only=True)
@checked
class Training:
    """A model, how it is cut, and how one rank goes through its part of a step."""

    spec: TransformerSpec
    layout: Layout = ONE_RANK
    recipe: Recipe = MIXED
    precision: str | None = None  # of the layers' matrices: "fp8"; None: the chip's for training
    microbatch: Count = 1  # sequences computed at a time, by each rank of dp
    num_microbatches: Count = 1  # in one step; their gradients add up
    sequence: Count | None = None  # tokens; None: the model's context length
    attention: str = "flash"  # see ATTENTIONS
    recomputation: str = "none"  # see RECOMPUTATIONS
    # With "full": how many layers of the largest stage are recomputed, and the same share of every
    # other stage's. None: all.
    recomputed_layers: Count | None = None
    schedule: str = "1F1B"  # of the pipeline, one of `schedules.WHOLE`
    chunks: Count = 1  # pieces of the model on each rank; above 1 for `schedules.CHUNKED` only
    # As in GPT-2 and GPT-3: on the scores, after each half of a layer, on the embedding.
    dropout: bool = False
    # Of a mixture: the load of the fullest rank of ep over the mean, see `expert_parallel.load`.
    imbalance: float = 1.0
    program: Program = NEMO_2024  # what sends, keeps and computes all this

    def __post_init__(self) -> None:
        self.layout.check(self.spec)
        for name, known in (
            ("attention", ATTENTIONS),
            ("recomputation", RECOMPUTATIONS),
            ("schedule", WHOLE),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"unknown {name} {getattr(self, name)!r}; known: {', '.join(known)}"
                )
        if self.imbalance < 1:
            raise ValueError(
                f"imbalance={self.imbalance}: the fullest rank has at least the mean load; use 1 "
                "or more"
            )
        # Raises where there are none, or too many.
        self.spec.tokens(self.microbatch, self.tokens_per_sequence)
        pieces = self.layout.cp * (self.layout.tp if self.layout.sequence_parallel else 1)
        if self.tokens_per_sequence % pieces:
            raise ValueError(
                f"a sequence of {self.tokens_per_sequence} tokens does not split over {pieces} "
                "ranks (cp, and tp where it is sequence parallel); "
                f"use a multiple of {pieces}"
            )
        self._check_chunks()
        self._check_recomputed()

    def _check_chunks(self) -> None:
        if self.schedule not in CHUNKED:
            if self.chunks != 1:
                raise ValueError(
                    f"chunks={self.chunks} need the {' or '.join(CHUNKED)} schedule, not "
                    f"{self.schedule!r}"
                )
            return
        pieces = self.chunks * self.layout.pp
        if not alike(self.spec, pieces):
            raise ValueError(f"chunks * pp = {pieces}: {unlike(self.spec)}")
        ends = self.spec.num_layers + 2  # Llama 3: embedding and head count as a layer each
        if self.spec.num_layers % pieces and ends % pieces:
            raise ValueError(
                f"{self.spec.num_layers} layers do not split evenly into {self.chunks} chunks on "
                f"each of {self.layout.pp} stages; use a divisor of {self.spec.num_layers} for "
                f"chunks * pp (or of {ends}: embedding and head in the place of a layer each)"
            )

    def _check_recomputed(self) -> None:
        if self.recomputed_layers is None:
            return
        if self.recomputation != "full":
            raise ValueError(
                f"recomputed_layers={self.recomputed_layers} needs recomputation='full', not "
                f"{self.recomputation!r}"
            )
        if self.recomputed_layers > self.most_layers:
            raise ValueError(
                f"recomputed_layers={self.recomputed_layers}: a stage has {self.most_layers} "
                f"layers; use at most {self.most_layers}, or None for all"
            )

    @property
    def most_layers(self) -> int:
        """Layers of the largest stage."""
        return max(map(len, stages(self.spec.num_layers, self.layout.pp, self.chunks)))

    @property
    def recomputed_share(self) -> float:
        """Share of a stage's layers whose whole forward is recomputed, from 0 to 1."""
        if self.recomputation != "full":
            return 0.0
        return (self.recomputed_layers or self.most_layers) / self.most_layers

    @property
    def recomputed_kinds(self) -> "list[tuple[float, Training]]":
        """The shares of layers kept and recomputed, each with a run of such layers alone.

        Empty where all layers are treated alike: seconds and bytes of a stage are linear in the
        number of its layers that are recomputed.
        """
        share = self.recomputed_share
        if share in (0, 1):
            return []
        alike = replace(self, recomputed_layers=None)
        return [(1 - share, replace(alike, recomputation="none")), (share, alike)]

    @property
    def tokens_per_sequence(self) -> int:
        """Tokens of one sample, over all ranks of cp together."""
        return self.spec.context_length if self.sequence is None else self.sequence

    @property
    def layer_kinds(self) -> "list[tuple[float, Training]]":
        """Of a hybrid, each kind of layer's share and the same run with layers of it alone.

        Every stage has as many of each (`Layout.check`), so a mean over kinds, weighted by their
        shares, is exact for a sum over a stage's layers. Empty where all layers are of one kind.
        """
        alone = replace(self.layout, ep=1, whole_experts=False)  # of layers without experts
        return [
            (share, replace(self, spec=spec, layout=self.layout if spec.experts else alone))
            for share, spec in self.spec.layer_kinds
        ]

    def layers_of(self, stage: int) -> int:
        """Count the layers of a pipeline stage. Errors: ValueError for one that does not exist."""
        return len(layers_of_stage(self.spec.num_layers, self.layout.pp, stage, self.chunks))

    def in_flight(self, stage: int) -> MicrobatchesInFlight:
        """Count the microbatches whose activations a stage holds at its peak."""
        m = self.num_microbatches
        size = {"pp": self.layout.pp, "num_microbatches": m, "chunks": self.chunks}
        return in_flight(self.schedule, stage, **size)

    @property
    def averages_late(self) -> bool:
        """Whether ZeRO-2 or -3 keeps gradients whole until the step, as `ranks.train` does.

        It does where a stage has several chunks, whose backwards alternate.
        """
        return self.layout.zero > 1 and self.chunks > 1

    def keeps_whole(self, stage: int) -> bool:
        """Tell whether a stage keeps gradients whole until the step under ZeRO-2 or -3.

        It does where gradients are averaged late, and at both ends of a pipeline that share a tied
        embedding, whose gradients must be added first.
        """
        layout = self.layout
        within("stage", stage, layout.pp)
        shares = self.spec.tied and layout.pp > 1 and stage in (0, layout.pp - 1)
        return self.averages_late or (layout.zero > 1 and shares)

    @property
    def tokens(self) -> int:
        """Tokens of one microbatch on one rank."""
        return self.microbatch * self.tokens_per_sequence // self.layout.cp

    @property
    def message_bytes(self) -> float:
        """Bytes that a rank sends to the next stage for a microbatch: all activations, or 1/tp."""
        parts = self.layout.sequence_parallel or self.program.sends_parts
        whole = self.tokens * self.spec.hidden_size * self.recipe.element
        return whole / (self.layout.tp if parts else 1)

    @property
    def dispatched_tokens(self) -> int:
        """Tokens of one microbatch that a rank sends to experts.

        Where experts stay whole, each rank of tp sends those of its slice of the sequences.
        """
        return self.tokens * self.layout.expert_tp // self.layout.tp

    @property
    def routed_tokens(self) -> int:
        """Copies of tokens in one microbatch that the routed experts of a rank compute.

        On average: each rank sends away as many as it receives.
        """
        return self.dispatched_tokens * self.spec.experts.per_token if self.spec.experts else 0


@checked
@cache
def in_flight(
    schedule: str, stage: int, *, pp: Count, num_microbatches: Count, chunks: Count
) -> MicrobatchesInFlight:
    """Count the microbatches in flight at a stage's peak, without playing a schedule with a formula.

    A stage has then run all forwards before its first backward, and no backward. GPipe holds all
    microbatches; 1F1B as many as stages follow, itself included (Narayanan et al. 2021,
    https://arxiv.org/abs/2104.04473); interleaving adds to them (Korthikanti et al. 2022, section
    4.2.3, https://arxiv.org/abs/2205.05198).
    """
    within("stage", stage, pp)
    if schedule not in WHOLE:
        raise ValueError(f"unknown schedule {schedule!r}; known: {', '.join(WHOLE)}")
    warm_up = min(num_microbatches, pp - stage)
    if most := {"1F1B": warm_up, "GPipe": num_microbatches, "naive": 1}.get(schedule):
        return MicrobatchesInFlight(most, most, most)
    if schedule != "interleaved":
        return _counted(schedules.make(schedule, pp, num_microbatches, chunks).orders[stage])
    largest = next(classic.group_sizes(num_microbatches, pp))
    warm_up = 2 * (pp - 1 - stage) + (chunks - 1) * largest + 1
    most = min(num_microbatches * chunks, warm_up)
    left = most
    of_first = 0
    of_last = 0
    for size in classic.group_sizes(num_microbatches, pp):  # each goes through all chunks
        of_first += min(left, size)
        of_last += min(max(0, left - (chunks - 1) * size), size)
        left -= chunks * size
        if left <= 0:
            break
    return MicrobatchesInFlight(most, of_first, of_last)


def _counted(order: Sequence[Action]) -> MicrobatchesInFlight:
    """Count on a stage's actions what a schedule without a formula has in flight at its peak."""
    held: list[int] = []  # chunks, one for each microbatch in flight
    peak: list[int] = []
    last = max(action.chunk for action in order)
    for action in order:
        if action.kind == "F":
            held.append(action.chunk)
            peak = max(peak, [*held], key=len)
        else:
            held.remove(action.chunk)
    return MicrobatchesInFlight(len(peak), peak.count(0), peak.count(last))
