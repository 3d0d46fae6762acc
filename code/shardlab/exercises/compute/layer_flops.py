"""Exercise: FLOPs of one layer's forward, by part, against what torch counts on a real layer."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.observe.saved_tensors import without_memory

from ..checker import Case, Exercise
from ..shared import formulas

PARTS = ("projections", "scores", "feed-forward")


def of(function: Callable[..., Any], x: torch.Tensor) -> float:
    """Count the FLOPs of one call; the scores are two products, as in every kernel."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        function(x)
    return float(counter.get_total_flops())


@cache
def counted(
    batch: int, sequence: int, hidden: int, kv_hidden: int, ffn: int, gated: bool
) -> dict[str, float]:
    """Count the FLOPs of a reference layer without memory for its numbers: any size is possible."""
    spec = TransformerSpec(
        vocab_size=1,
        context_length=sequence,
        hidden_size=hidden,
        num_layers=1,
        num_heads=hidden // HEAD,
        num_kv_heads=kv_hidden // HEAD,
        ffn_size=ffn,
        style="llama" if gated else "gpt2",
    )
    with without_memory():
        block, x = transformer.Block(spec), torch.empty(batch, sequence, hidden)
        attention = block.attention
        matrices = attention.q, attention.k, attention.v, attention.out
        projections = sum(of(matrix, x) for matrix in matrices)
        return {
            "projections": projections,
            "scores": of(attention, x) - projections,
            "feed-forward": of(block.mlp, x),
        }


def case(title: str, *sizes: int, gated: bool = False) -> Case:
    """Make a case of these arguments."""
    names = ("batch", "sequence", "hidden", "kv_hidden", "ffn")
    given = {**dict(zip(names, sizes, strict=True)), "gated": gated}
    return Case(world_size=1, title=title, given=given)


HEAD = 2  # numbers per head, which do not change the FLOPs
EXERCISE = Exercise(
    name="compute.layer_flops",
    compare="shardlab.costs.compute.flops.forward",
    points=2,
    pure=True,
    cases=[
        case("one token", 1, 1, 4, 4, 8),
        case("three tokens", 1, 3, 4, 4, 8),
        case("two sequences", 2, 3, 4, 4, 8),
        case("a narrow feed-forward block", 2, 3, 8, 8, 10),
        case("shared keys and values", 2, 3, 8, 4, 32),
        case("gated", 2, 3, 8, 8, 20, gated=True),
        case("a layer of GPT-3", 1, 2048, 12288, 12288, 4 * 12288),
        case("a layer of Llama 3 8B", 1, 8192, 4096, 1024, 14336, gated=True),
    ],
    attempt=formulas.call,
    properties={
        "returns the FLOPs of three parts": formulas.has_parts(*PARTS),
        "projections": formulas.is_part("projections", counted),
        "scores": formulas.is_part("scores", counted),
        "feed-forward block": formulas.is_part("feed-forward", counted),
    },
)
