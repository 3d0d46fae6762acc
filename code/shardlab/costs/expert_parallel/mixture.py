"""Whole mixtures: the FLOPs of a token."""

from shardlab.arguments import Count, checked
from shardlab.model.spec import TransformerSpec

from ..compute import flops as whole
from ..facts import mixtures

BLOCKS = ("dense feed-forward", "shared experts", "routed experts")


@checked
def flops(
    spec: TransformerSpec, *, sequence: Count, pairs: str = "causal"
) -> dict[str, float]:
    """Count the FLOPs of one token's forward by part, averaged over a sequence.

    The parts are those of `compute.flops`, with its feed-forward blocks apart. Backward takes twice
    as many. attention: "full" counts every pair of tokens, "causal" those that the mask leaves.
    Errors: ValueError for no experts, a sequence beyond the context, unknown pairs.
    """
    used = mixtures.active_parameters(spec)
    counted = whole.forward(spec, batch=1, sequence=sequence, pairs=pairs)
    parts = {part: count / sequence for part, count in counted.items()}
    blocks = {block: 2.0 * used[block] for block in BLOCKS}
    return {
        "attention": parts["projections"],
        "scores": parts["scores"],
        "routers": parts["feed-forward"] - sum(blocks.values()),
        **blocks,
        "head": parts["head"],
    }
