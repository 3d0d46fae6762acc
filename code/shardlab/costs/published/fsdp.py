"""Steps published under FSDP2 (ZeRO-3), measured with torchtitan on A100s, H100s and H200s."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlab.arguments import Count, Positive, checked
from shardlab.sharding.layout import Layout

from .. import step
from ..facts import hardware, models, nodes
from ..facts.network import Cluster, Node
from ..facts.recipes import RECIPES
from ..program import Program
from ..programs import TITAN_COMPILED, TITAN_EAGER, TITAN_KEEPING, TITAN_ON_AMPERE
from ..training import Training
from ..units import GB
from .layouts import PublishedStep

H100 = "torchtitan, FSDP2, H100"
A100 = "torchtitan, FSDP2, A100"
H200 = "torchtitan, FSDP2, H200"


@dataclass(frozen=True, kw_only=True)
@checked
class FSDPRun:
    """One row: how it ran, and how fast."""

    table: str
    name: str
    node: Node
    sequence: Count = 8192
    gpus: Count
    program: Program
    precision: str | None = None
    model: str = "Llama 3 8B"
    recomputation: str = "none"  # beside what the program repeats
    per_gpu: Count = 2  # sequences
    rate: Positive  # tokens/s of one GPU


def _grand_teton() -> Node:
    """Return their server: H100s with older memory and a limit of 500 W."""
    chip = replace(
        hardware.chip("H100 SXM 80 GB"),
        name="H100 SXM 96 GB, 500 W",
        memory=96 * GB,
        memory_bandwidth=2400 * GB,
        power=500,
    )
    return replace(nodes.node("DGX H100"), name="Grand Teton, 500 W", chip=chip)


# GPUs -> tokens/s of one GPU: eager, compiled, compiled with fp8 in the layers.
LIMITED = {8: (5762, 6667, 8532), 128: (5605, 6514, 8380)}
# On 64 A100s, eager: model, sequence, sequences of a GPU, recomputation, tokens/s of one GPU.
AMPERE = (
    ("Llama 3 8B", 8192, 1, "by operation", 2973),
    ("Llama 3 70B", 8192, 1, "full", 331),
    ("Llama 2 13B", 4096, 2, "none", 2162),
    ("Llama 2 13B", 4096, 2, "by operation", 1904),
    ("Llama 2 70B", 4096, 1, "by operation", 355),
    ("Llama 2 70B", 4096, 2, "full", 353),
)
# Llama 3 8B on H200s, compiled, with fp8 in the layers.
HOPPER = {32: 10_938, 64: 10_753}
WAYS = (
    ("eager", TITAN_EAGER, None),
    ("compiled", TITAN_COMPILED, None),
    ("compiled, fp8", TITAN_COMPILED, "fp8"),
)


def _runs() -> Iterator[FSDPRun]:
    for gpus, rates in LIMITED.items():
        for (name, program, precision), rate in zip(WAYS, rates, strict=True):
            yield FSDPRun(
                table=H100, name=name, node=_grand_teton(), gpus=gpus,
                program=program, precision=precision, rate=rate,
            )  # fmt: skip
    for model, sequence, per_gpu, again, rate in AMPERE:
        program = TITAN_KEEPING if again == "none" else TITAN_ON_AMPERE
        yield FSDPRun(
            table=A100, name=f"{model}, recomputed: {again}", node=nodes.node("DGX A100"), gpus=64,
            program=program, model=model, sequence=sequence, per_gpu=per_gpu, rate=rate,
            recomputation="full" if again == "full" else "none",
        )  # fmt: skip
    for gpus, rate in HOPPER.items():
        yield FSDPRun(
            table=H200, name="compiled, fp8", node=nodes.node("AWS p5en.48xlarge"), gpus=gpus,
            program=TITAN_COMPILED, precision="fp8", rate=rate,
        )  # fmt: skip


def torchtitan() -> Iterator[PublishedStep]:
    """Yield Llama 3 8B wherever nothing else is said, and others on A100s."""
    for each in _runs():
        training = Training(
            spec=models.published(each.model).spec,
            layout=Layout(dp=each.gpus, zero=3),
            recipe=RECIPES["mixed, fp32 gradients"],
            microbatch=each.per_gpu,
            sequence=each.sequence,
            recomputation=each.recomputation,
            program=each.program,
        )
        yield PublishedStep(
            table=each.table,
            name=f"{each.name}, {each.gpus} GPUs",
            run=step.Run(
                training=training,
                cluster=Cluster(node=each.node, num_nodes=each.gpus // each.node.gpus),
                precision=each.precision,
            ),
            seconds=each.per_gpu * each.sequence / each.rate,
        )
