"""Which layouts run, and how fast: four published sweeps, against what `memory` and `step` predict.

Each program is described from its source code, which says what it keeps. One number is chosen on
any of these rows: `training.MARGIN`, on the peaks that the Playbook prints.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from shardlab.costs import memory, step
from shardlab.costs.facts import nodes, recipes
from shardlab.costs.facts.hardware import chip
from shardlab.costs.facts.network import Cluster, Node
from shardlab.costs.programs import (
    FOUNDRY_2023,
    MEGATRON_DEEPSPEED_2022,
    NANOTRON_2025,
    SCALING_2023,
    SCALING_FLASH_1,
)
from shardlab.costs.published.rows import rows
from shardlab.costs.training import Training
from shardlab.costs.units import GB
from shardlab.files.arguments import Count, Positive, checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from . import FOLDER

CAPACITY = 80 * GB  # of every chip here
A100S, H100S = nodes.node("DGX A100"), nodes.node("DGX H100")


@dataclass(frozen=True, kw_only=True)
@checked
class Attempt:
    """A layout that somebody tried."""

    sweep: str  # attempts of one sweep differ in their layout alone
    training: Training
    node: Node
    ran: bool
    seconds: float = 0.0  # of one step; 0: not printed, or it did not run
    peak: float = 0.0  # bytes that torch's allocator reserved; 0: not printed

    @property
    def nbytes(self) -> float:
        """Bytes on a rank of the fullest stage, predicted."""
        return memory.total(self.training)

    @property
    def fits(self) -> bool:
        """Whether the prediction says that it runs."""
        return self.nbytes <= CAPACITY

    @property
    def run(self) -> step.Run:
        """What was tried, with its machine."""
        num_nodes = -(-self.training.layout.ranks // self.node.gpus)
        cluster = Cluster(node=self.node, num_nodes=num_nodes)
        return step.Run(training=self.training, cluster=cluster)

    @cached_property
    def predicted(self) -> step.Step:
        """The prediction of one step."""
        return step.step(self.run)

    @property
    def error(self) -> float:
        """How much longer the predicted step is than the measured one, as a share.

        Errors: ValueError where none was printed.
        """
        if not self.seconds:
            raise ValueError(f"seconds={self.seconds} of this step were not printed; see `ran`")
        return self.predicted.seconds / self.seconds - 1


# github.com/mosaicml/llm-foundry: loss_fn "fused_crossentropy" and FSDP with amp_bf16.
_FSDP = recipes.recipe("autocast, fp32 Adam")


@dataclass(frozen=True, kw_only=True)
@checked
class Tried:
    """A row of a table of layouts."""

    tp: Count
    pp: Count
    dp: Count = 1
    zero: int = 1
    microbatch: Count
    ran: bool
    peak: float = 0.0
    seconds: float = 0.0

    @property
    def layout(self) -> Layout:
        """The layout, its sequences whole."""
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, zero=self.zero)

    def attempt(self, sweep: str, node: Node, training: Training) -> Attempt:
        """Say how it went for this training."""
        return Attempt(
            sweep=sweep,
            training=training,
            node=node,
            ran=self.ran,
            seconds=self.seconds,
            peak=self.peak,
        )


@dataclass(frozen=True, kw_only=True)
@checked
class TriedKernels(Tried):
    """A row of Hagemann et al."""

    model: str
    kernels: str
    recomputation: str
    sequence_parallel: bool


@dataclass(frozen=True, kw_only=True)
@checked
class FoundryRow:
    """A row of llm-foundry."""

    model: str

    num_layers: Count
    hidden_size: Count
    num_heads: Count
    recomputation: str
    gpus: Count
    sequence: Count
    microbatch: Count
    num_microbatches: Count
    tokens_per_second: Positive  # of one GPU


def _llama(
    layers: int, width: int, heads: int, ffn: int, *, words: int, length: int
) -> TransformerSpec:
    return TransformerSpec(
        style="llama",
        vocab_size=words,
        context_length=length,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        ffn_size=ffn,
    )


def _unfused(kernels: str, size: int) -> tuple[str, ...]:
    """Name what a row of Hagemann runs operation by operation.

    Attention's output is rearranged by a copy where a microbatch has several sequences.
    """
    names = ["rotary", "SwiGLU"]
    if "rms" not in kernels:
        names.append("norms")
    if size > 1 or "flash" not in kernels:
        names.append("attention")
    return tuple(names)


def _hagemann() -> Iterator[Attempt]:
    specs = {
        "13B": _llama(40, 5120, 40, 13_824, words=128_000, length=2048),
        "30B": _llama(60, 6656, 52, 17_920, words=128_000, length=2048),
    }
    for row in rows("hagemann_2023", TriedKernels, FOLDER):
        dp = 64 // (row.tp * row.pp)
        program = SCALING_FLASH_1 if row.kernels == "flash1" else SCALING_2023
        training = Training(
            spec=specs[row.model],
            layout=replace(
                row.layout, dp=dp, sequence_parallel=row.sequence_parallel and row.tp > 1
            ),
            microbatch=row.microbatch,
            num_microbatches=2048 // (dp * row.microbatch),
            recomputation=row.recomputation,
            attention="flash" if "flash" in row.kernels else "stored",
            recipe=recipes.recipe("mixed, 16-bit gradients"),
            program=replace(program, unfused=_unfused(row.kernels, row.microbatch)),
        )
        sweep = f"{row.model}, {row.kernels}, sequence parallel {row.sequence_parallel:d}"
        yield row.attempt(sweep, A100S, training)


def _playbook() -> Iterator[Attempt]:
    spec = _llama(32, 4096, 32, 14_336, words=131_072, length=4096)
    head = spec.vocab_size / (4 * spec.hidden_size + 3 * spec.ffn)  # in layers
    for row in rows("playbook_2025", Tried, FOLDER):
        # Blocks are dealt by cost and the head counts, so the first stages hold more layers
        # (models/base.py of nanotron): as many as the stages of this longer model.
        layers = ceil((32 + head) / row.pp) * row.pp if row.pp > 1 else 32
        training = Training(
            spec=replace(spec, num_layers=layers),
            layout=replace(row.layout, sequence_parallel=row.tp > 1),
            microbatch=row.microbatch,
            num_microbatches=256 // (row.dp * row.microbatch),
            recipe=recipes.recipe("mixed, fp32 gradients"),
            program=NANOTRON_2025,
        )
        yield row.attempt("8B, one node", H100S, training)


def _foundry() -> Iterator[Attempt]:
    for row in rows("foundry", FoundryRow, FOLDER):
        spec = TransformerSpec(
            vocab_size=50_368,
            context_length=row.sequence,
            hidden_size=row.hidden_size,
            num_layers=row.num_layers,
            num_heads=row.num_heads,
        )
        training = Training(
            spec=spec,
            layout=Layout(dp=row.gpus, zero=3),
            microbatch=row.microbatch,
            num_microbatches=row.num_microbatches,
            recomputation=row.recomputation,
            recipe=_FSDP,
            program=FOUNDRY_2023,
        )
        tokens = row.microbatch * row.num_microbatches * row.sequence
        seconds = tokens / row.tokens_per_second
        yield Attempt(sweep="MPT", training=training, node=A100S, ran=True, seconds=seconds)


def _jean_zay() -> Iterator[Attempt]:
    """Yield the runs of one day, on servers with four cards of 100 Gb/s."""
    four_cards = nodes.node("AWS p4d.24xlarge")
    node = replace(four_cards, name="Jean Zay", chip=chip("A100 SXM 80 GB"))
    spec = TransformerSpec(
        vocab_size=250_880, context_length=2048, hidden_size=14_336, num_layers=72, num_heads=64
    )
    for row in rows("jean_zay_2022", Tried, FOLDER):
        batch = 2016 if 2048 % row.dp else 2048
        training = Training(
            spec=spec,
            layout=row.layout,
            microbatch=row.microbatch,
            num_microbatches=batch // (row.dp * row.microbatch),
            recomputation="full",
            attention="stored",
            program=MEGATRON_DEEPSPEED_2022,
        )
        yield row.attempt("181B, 384 GPUs", node, training)


HAGEMANN = tuple(_hagemann())
PLAYBOOK = tuple(_playbook())
FOUNDRY = tuple(_foundry())
JEAN_ZAY = tuple(_jean_zay())  # kept back: no number was chosen on them
