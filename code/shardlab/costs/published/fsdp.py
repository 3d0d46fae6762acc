"""Steps published under FSDP2 (ZeRO-3), measured with torchtitan on A100s, H100s and H200s."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardlab.files.arguments import Positive, checked

from ..facts import hardware, nodes
from ..facts.network import Node
from ..facts.recipes import RECIPES
from ..program import Program
from ..programs import TITAN_COMPILED, TITAN_EAGER, TITAN_KEEPING, TITAN_ON_AMPERE
from ..units import GB
from .layouts import LayoutRow, PublishedStep, Setting
from .rows import rows

H100 = "torchtitan, FSDP2, H100"
A100 = "torchtitan, FSDP2, A100"
H200 = "torchtitan, FSDP2, H200"


@dataclass(frozen=True, kw_only=True)
@checked
class FSDPRow(LayoutRow):
    """One row: how it ran, and how fast."""

    table: str
    program: str
    again: str  # what backward computes again
    tokens_per_second: Positive  # of one GPU


def grand_teton() -> Node:
    """Return the server with H100s of older memory and a limit of 500 W."""
    chip = replace(
        hardware.chip("H100 SXM 80 GB"),
        name="H100 SXM 96 GB, 500 W",
        memory=96 * GB,
        memory_bandwidth=2400 * GB,
        power=500,
    )
    return replace(nodes.node("DGX H100"), name="Grand Teton, 500 W", chip=chip)


def _program(row: FSDPRow) -> Program:
    if row.table != A100:
        return TITAN_EAGER if row.program == "eager" else TITAN_COMPILED
    return TITAN_KEEPING if row.again == "none" else TITAN_ON_AMPERE


def torchtitan() -> Iterator[PublishedStep]:
    """Yield Llama 3 8B on H100s and H200s, and others on A100s."""
    on = {
        H100: grand_teton(),
        A100: nodes.node("DGX A100"),
        H200: nodes.node("AWS p5en.48xlarge"),
    }
    for row in rows("torchtitan", FSDPRow):
        name = f"{row.model}, recomputed: {row.again}" if row.table == A100 else row.program
        precision = "fp8" if row.program.endswith("fp8") else None
        assert row.sequence is not None
        yield row.step(
            Setting(
                table=row.table, node=on[row.table], program=_program(row), precision=precision
            ),
            row.microbatch * row.sequence / row.tokens_per_second,
            name=f"{name}, {row.gpus} GPUs",
            layout=replace(row.layout, zero=3),
            recipe=RECIPES["mixed, fp32 gradients"],
            recomputation="full" if row.again == "full" else "none",
        )
