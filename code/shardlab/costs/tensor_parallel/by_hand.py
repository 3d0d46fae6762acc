"""Model parallelism by hand, predicted: who is busy while pieces of a layer are computed here and added up there.

What `ranks.tensor_parallel.by_hand` does, in the forward pass of one layer: `tp` ranks compute a piece each, and one
more adds.
Messages take latency + bytes / bandwidth (Hockney 1994); all pieces come and go through the last rank's one link.
"""

from dataclasses import replace

from .run import Run, layer


def parts(run: Run) -> dict[str, float]:
    """Seconds that follow each other; run.tp: the ranks that compute pieces, without the one that adds them."""
    link, message = run.link, run.message
    moved = link.latency + run.tp * message / (run.link_utilisation * link.bandwidth)
    added = (run.tp + 2) * message / run.chip.memory_bandwidth  # reads the pieces and the residual, writes the sum
    return {
        "pieces": layer(run).matrices["forward"],
        "to the last rank": moved,
        "combining": added,
        "back to the others": moved,
    }


def busy(run: Run) -> dict[str, float]:
    """Shares of the time that ranks compute: those with pieces, the last one, and those with pieces and no last one."""
    seconds, together = parts(run), layer(replace(run, overlap=False))
    whole = sum(seconds.values())
    forward = together.matrices["forward"] + together.between["forward"]
    return {
        "ranks with pieces": seconds["pieces"] / whole,
        "the last rank": seconds["combining"] / whole,
        "all ranks, tensor parallel": forward / (forward + together.exposed["forward"]),
    }
