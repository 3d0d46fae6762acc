"""Steps of mixtures that publishers timed, and what `step` predicts for their layouts.

Nothing is fitted to these rows. All have tp = 1, so that their layouts are ours. What no row tells
is not in the prediction: recomputation, and how the rows' programs hide their messages.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from shardlab.arguments import Positive, checked
from shardlab.sharding.layout import Layout

from .. import step
from ..compute import flops
from ..facts import hardware, mixtures, nodes, recipes
from ..facts.network import Cluster, Node
from ..programs import DEEPSEEK_2024, NEMO_2024
from ..training import Training
from ..units import TFLOP
from .mixtures import LAYOUTS, SEQUENCE

_BRIDGE = (
    "https://docs.nvidia.com/nemo/megatron-bridge/latest/performance-summary.html (25.11; tokens "
    "are forced to be spread evenly over the experts)"
)
_V3 = "DeepSeek-AI 2024, sections 1, 3.1, 3.2 and 4.2 (https://arxiv.org/abs/2412.19437)"
_MIXTRAL = (  # the rate is of version 0.9, the layout of 0.8
    "https://github.com/NVIDIA/Megatron-LM/blob/022bcb5afe888664d3fb61adacea6e6c887a97f8/"
    "megatron/core/transformer/moe/README.md"
)
V3_HOURS = 180_000  # of one H800, for 10^12 tokens
MIXTRAL_RATE = 468 * TFLOP  # model FLOP/s of one GPU, every pair of tokens counted


@dataclass(frozen=True, kw_only=True)
@checked
class MixtureStep:
    """A published step of a mixture."""

    name: str
    run: step.Run
    tokens_per_second: Positive  # of one GPU, measured
    source: str

    @cached_property
    def predicted(self) -> step.Step:
        """The step as `step` predicts it."""
        return step.step(self.run)

    @property
    def measured(self) -> float:
        """Seconds of a step."""
        return self.run.tokens / (self.tokens_per_second * self.run.training.layout.ranks)

    @property
    def error(self) -> float:
        """How much longer the step is predicted than it was measured, as a share."""
        return self.predicted.seconds / self.measured - 1


def _h800() -> Node:
    """A DGX H100 with fewer NVLinks, as DeepSeek describes its servers."""
    node = nodes.node("DGX H100")
    link = hardware.link("NVLink 4 (H800)")
    wires = tuple(
        replace(wire, link=link) if wire.link.kind == "NVLink" else wire for wire in node.wires
    )
    return replace(node, name="8 x H800", wires=wires, source=_V3)


def _run(
    model: str,
    cluster: Cluster,
    layout: Layout,
    batch: int,
    microbatch: int = 1,
    chunks: int = 1,
    precision: str | None = "fp8",
) -> step.Run:
    training = Training(
        spec=replace(mixtures.published(model).spec, context_length=SEQUENCE),
        layout=layout,
        recipe=recipes.recipe("mixed, fp32 gradients"),
        microbatch=microbatch,
        num_microbatches=batch // (layout.dp * microbatch),
        schedule="interleaved" if chunks > 1 else "1F1B",
        chunks=chunks,
        program=DEEPSEEK_2024 if cluster.node.name == "8 x H800" else NEMO_2024,
    )
    return step.Run(training=training, cluster=cluster, precision=precision)


def _rate_of_mixtral(run: step.Run) -> float:
    """Turn model FLOP/s of a GPU into its tokens per second."""
    spec = run.training.spec
    return SEQUENCE * MIXTRAL_RATE / flops.model_flops(spec, batch=1, sequence=SEQUENCE)


_V3_RUN = _run("DeepSeek-V3", Cluster(node=_h800(), num_nodes=256), LAYOUTS["DeepSeek-V3"], 15_360)
_MIXTRAL_RUN = _run(
    "Mixtral 8x7B",
    nodes.cluster("DGX H100", 8),
    Layout(dp=16, pp=4, ep=8, zero=1),
    256,
    chunks=8,
    precision=None,
)


def _bridge(
    model: str,
    node: str,
    rate: float,
    layout: Layout,
    batch: int,
    microbatch: int = 1,
    chunks: int = 1,
) -> MixtureStep:
    """Make a row of Megatron Bridge, in 8 bits. rate: tokens per second of one GPU."""
    cluster = nodes.cluster(node, layout.ranks // nodes.node(node).gpus)
    return MixtureStep(
        name=f"{model}, {layout.ranks} {node.split()[1]}",
        run=_run(model, cluster, layout, batch, microbatch, chunks),
        tokens_per_second=rate,
        source=_BRIDGE,
    )


_B200, _H100 = "HGX B200", "DGX H100"
_ON_16 = Layout(dp=8, pp=2, ep=8, zero=1)
STEPS: dict[str, MixtureStep] = {
    row.name: row
    for row in (
        MixtureStep(
            name="Mixtral 8x7B, 64 H100",
            run=_MIXTRAL_RUN,
            tokens_per_second=_rate_of_mixtral(_MIXTRAL_RUN),
            source=_MIXTRAL,
        ),
        MixtureStep(
            name="DeepSeek-V3, 2048 H800",
            run=_V3_RUN,
            tokens_per_second=1e12 / (V3_HOURS * 3600),
            source=_V3,
        ),
        _bridge("DeepSeek-V3", _B200, 2139, Layout(dp=16, pp=16, ep=8, zero=1), 2048),
        _bridge("Qwen3-235B-A22B", _B200, 3269, Layout(dp=8, pp=8, ep=8, zero=1), 1024, chunks=2),
        _bridge("Qwen3-30B-A3B", _H100, 5275, _ON_16, 512, microbatch=2, chunks=24),
        _bridge("Qwen3-30B-A3B", _B200, 9299, Layout(dp=8, ep=8, zero=1), 512),
    )
}
