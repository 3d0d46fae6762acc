"""Which layouts run, and how fast: four published sweeps, against what `memory` and `step` predict.

Each program is described from its source code, which says what it keeps. One number is chosen on
any of these rows: `training.MARGIN`, on the peaks that the Playbook prints.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from shardlab.arguments import checked
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

from .. import memory, step
from ..facts import nodes, recipes
from ..facts.chips import chip
from ..facts.network import Cluster, Node
from ..programs import (
    FOUNDRY_2023,
    MEGATRON_DEEPSPEED_2022,
    NANOTRON_2025,
    SCALING_2023,
    SCALING_FLASH_1,
)
from ..training import Training
from ..units import GB, GiB
from . import fit_tables as tables
from .fit_tables import OOM

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


def _lines(text: str, keys: int) -> Iterator[tuple[list[str], list[str]]]:
    for line in text.split("\n"):
        if words := line.split():
            yield words[:keys], words[keys:]


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


def _hagemann(sweep: str, text: str, spec: TransformerSpec) -> Iterator[Attempt]:
    for (kernels, tp, pp, again, shared), results in _lines(text, 5):
        dp = 64 // (int(tp) * int(pp))
        program = SCALING_FLASH_1 if kernels == "flash1" else SCALING_2023
        parallel = shared == "1" and tp != "1"
        layout = Layout(tp=int(tp), pp=int(pp), dp=dp, zero=1, sequence_parallel=parallel)
        for size, result in zip((1, 2, 4, 8), results, strict=False):
            if result == "-":
                continue
            training = Training(
                spec=spec,
                layout=layout,
                microbatch=size,
                num_microbatches=2048 // (dp * size),
                recomputation=again,
                attention="flash" if "flash" in kernels else "stored",
                recipe=recipes.recipe("mixed, 16-bit gradients"),
                program=replace(program, unfused=_unfused(kernels, size)),
            )
            yield Attempt(
                sweep=f"{sweep}, {kernels}, sequence parallel {shared}",
                training=training,
                node=A100S,
                ran=result != OOM,
                seconds=0 if result == OOM else float(result),
            )


def _playbook() -> Iterator[Attempt]:
    spec = _llama(32, 4096, 32, 14_336, words=131_072, length=4096)
    head = spec.vocab_size / (4 * spec.hidden_size + 3 * spec.ffn)  # in layers
    for key, results in _lines(tables.PLAYBOOK, 4):
        tp, pp, dp, zero = map(int, key)
        layout = Layout(tp=tp, pp=pp, dp=dp, zero=zero, sequence_parallel=tp > 1)
        # Blocks are dealt by cost and the head counts, so the first stages hold more layers
        # (models/base.py of nanotron): as many as the stages of this longer model.
        layers = ceil((32 + head) / pp) * pp if pp > 1 else 32
        for result in results:
            size, peak, seconds = f"{result}:0".split(":")[:3]
            ran = peak != OOM
            training = Training(
                spec=replace(spec, num_layers=layers),
                layout=layout,
                microbatch=int(size),
                num_microbatches=256 // (dp * int(size)),
                recipe=recipes.recipe("mixed, fp32 gradients"),
                program=NANOTRON_2025,
            )
            yield Attempt(
                sweep="8B, one node",
                training=training,
                node=H100S,
                ran=ran,
                seconds=float(seconds),
                peak=float(peak) * GiB if ran else 0,
            )


def _foundry() -> Iterator[Attempt]:
    for (name, again, gpus), results in _lines(tables.FOUNDRY, 3):
        layers, width, heads = tables.MPT[name]
        for length, size, count, rate in (map(int, result.split(":")) for result in results):
            spec = TransformerSpec(
                vocab_size=50_368, context_length=length, hidden_size=width, num_layers=layers,
                num_heads=heads,
            )  # fmt: skip
            layout = Layout(dp=int(gpus), zero=3)
            training = Training(
                spec=spec, layout=layout, microbatch=size, num_microbatches=count,
                recomputation=again, recipe=_FSDP, program=FOUNDRY_2023,
            )  # fmt: skip
            yield Attempt(
                sweep="MPT", training=training, node=A100S, ran=True,
                seconds=size * count * length / rate,
            )  # fmt: skip


def _jean_zay() -> Iterator[Attempt]:
    """Yield the runs of one day, on servers with four cards of 100 Gb/s."""
    four_cards = nodes.node("AWS p4d.24xlarge")
    node = replace(four_cards, name="Jean Zay", chip=chip("A100 SXM 80 GB"))
    spec = TransformerSpec(
        vocab_size=250_880, context_length=2048, hidden_size=14_336, num_layers=72, num_heads=64
    )
    for key, results in _lines(tables.JEAN_ZAY, 3):
        tp, pp, dp = map(int, key)
        batch = 2016 if 2048 % dp else 2048
        for size, result in (each.split(":") for each in results):
            training = Training(
                spec=spec, layout=Layout(tp=tp, pp=pp, dp=dp, zero=1), microbatch=int(size),
                num_microbatches=batch // (dp * int(size)), recomputation="full",
                attention="stored", program=MEGATRON_DEEPSPEED_2022,
            )  # fmt: skip
            yield Attempt(
                sweep="181B, 384 GPUs", training=training, node=node, ran=result != OOM,
                seconds=0 if result == OOM else float(result),
            )  # fmt: skip


HAGEMANN = (
    *_hagemann("13B", tables.LLAMA_13B, _llama(40, 5120, 40, 13_824, words=128_000, length=2048)),
    *_hagemann("30B", tables.LLAMA_30B, _llama(60, 6656, 52, 17_920, words=128_000, length=2048)),
)
PLAYBOOK = tuple(_playbook())
FOUNDRY = tuple(_foundry())
JEAN_ZAY = tuple(_jean_zay())  # kept back: no number was chosen on them
ATTEMPTS = (*HAGEMANN, *PLAYBOOK, *FOUNDRY)
