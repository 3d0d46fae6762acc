"""Model parallelism by hand, predicted: ranks compute pieces of a layer, another adds them.

What `ranks.tensor_parallel.by_hand` does in the forward pass of one layer: `tp` ranks compute one
piece each, and one more rank adds the pieces. Messages take latency + bytes / bandwidth (Hockney
1994); all pieces come and go through the last rank's one link.
"""

from shardlab.files.arguments import checked

from ..compute.kernels import moved_seconds
from ..facts.hardware import Chip, ReachedLink
from ..step.exposed import activation_bytes
from ..training import Training
from .layer import layer


@checked
def parts(training: Training, chip: Chip, link: ReachedLink) -> dict[str, float]:
    """List the seconds that follow one another.

    training: its tp is the number of ranks with pieces, without the one that adds.
    """
    tp = training.layout.tp
    message = activation_bytes(training)
    moved = link.latency + tp * message / link.bandwidth
    forward = layer(training, chip, link).time.forward
    return {
        "pieces": forward.matrices + forward.attention,
        "to the last rank": moved,
        # Reads the pieces and the residual, writes the sum.
        "combining": moved_seconds((tp + 2) * message, chip),
        "back to the others": moved,
    }


@checked
def busy(training: Training, chip: Chip, link: ReachedLink) -> dict[str, float]:
    """Return the share of time for which ranks compute, by hand and with tensor parallelism."""
    seconds = parts(training, chip, link)
    whole = sum(seconds.values())
    together = layer(training, chip, link)
    forward = together.time.forward.seconds
    return {
        "ranks with pieces": seconds["pieces"] / whole,
        "the last rank": seconds["combining"] / whole,
        "all ranks, tensor parallel": forward / (forward + together.busy.forward),
    }
