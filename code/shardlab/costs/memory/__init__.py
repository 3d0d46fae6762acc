"""Memory: what one rank holds while it trains, predicted part by part.

Read `shards` first, which counts the parameters of a cut model, then `activations`, what backward
needs, and `parts`, which adds everything up; `overhead` is what a process takes beside its tensors.
`timeline` follows the tensors through one step, `offload` times moves to the host's memory, and
`loading` counts what ranks read of a published model at their start.
"""

from .parts import (
    CUT_FROM,
    MicrobatchBytes,
    buffers,
    fullest_stages,
    kept,
    messages,
    microbatch_bytes,
    model_states,
    of_microbatches,
    per_rank,
    recomputed,
    states,
    total,
    worst_stage,
)

__all__ = [
    "CUT_FROM",
    "MicrobatchBytes",
    "buffers",
    "fullest_stages",
    "kept",
    "messages",
    "microbatch_bytes",
    "model_states",
    "of_microbatches",
    "per_rank",
    "recomputed",
    "states",
    "total",
    "worst_stage",
]
