"""Model parallelism by hand, predicted: ranks compute pieces of a layer, another adds them.

What `ranks.tensor_parallel.by_hand` does in the forward pass of one layer: `tp` ranks compute one
piece each, and one more rank adds the pieces. Messages take latency + bytes / bandwidth (Hockney
1994); all pieces come and go through the last rank's one link.
"""

from dataclasses import replace

from shardlab.arguments import checked

from .run import TensorParallelRun, layer


@checked
def parts(run: TensorParallelRun) -> dict[str, float]:
    """List the seconds that follow one another.

    run.tp: the ranks with pieces, without the one that adds.
    """
    link = run.link
    message = run.message
    moved = link.latency + run.tp * message / (run.link_utilisation * link.bandwidth)
    # Reads the pieces and the residual, writes the sum.
    added = (run.tp + 2) * message / run.chip.memory_bandwidth
    return {
        "pieces": layer(run).matrices["forward"],
        "to the last rank": moved,
        "combining": added,
        "back to the others": moved,
    }


@checked
def busy(run: TensorParallelRun) -> dict[str, float]:
    """Return the share of time for which ranks compute, by hand and with tensor parallelism."""
    seconds = parts(run)
    together = layer(replace(run, overlap=False))
    whole = sum(seconds.values())
    forward = together.matrices["forward"] + together.between["forward"]
    return {
        "ranks with pieces": seconds["pieces"] / whole,
        "the last rank": seconds["combining"] / whole,
        "all ranks, tensor parallel": forward / (forward + together.exposed["forward"]),
    }
