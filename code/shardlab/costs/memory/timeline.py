"""Memory through one step: forward fills it with activations, backward leaves gradients."""

from collections.abc import Iterator
from dataclasses import dataclass

from shardlab.files.arguments import checked

from ..training import Training
from . import parts, shards


@dataclass(frozen=True, kw_only=True)
@checked
class Moment:
    """What a rank holds at one time of a step."""

    time: float  # since the step began; the forward of one layer takes 1, its backward 2
    doing: str
    held: dict[str, float]  # part -> bytes, the parts of `memory.per_rank`


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Embedding, a layer or the head: its forward's time, and the bytes it keeps and leaves."""

    name: str
    forward: float
    activations: float
    logits: float = 0.0
    buffers: float = 0.0  # temporary, when its backward begins
    again: bool = False  # whether its backward starts by recomputing its forward
    gradients: float


@checked
def through_step(training: Training) -> list[Moment]:
    """List every moment of one step: before and after each piece, the update, what is left.

    The first backward creates the gradients; the last one is followed by the update, which frees
    them. Messages need memory too, which is left out. Errors: ValueError for more than one pipeline
    stage, or gradients cut by ZeRO.
    """
    if training.layout.pp > 1 or training.layout.zero > 1:
        raise ValueError(
            f"pp={training.layout.pp} and zero={training.layout.zero}: this follows a rank that "
            "has all layers and gradients; use pp=1 and zero=0 or 1"
        )
    if training.recomputed_kinds:
        raise ValueError(
            f"recomputed_layers={training.recomputed_layers}: this follows layers that are all "
            "alike; use recomputed_layers=None"
        )
    states = parts.states(training)
    clock = 0.0
    moments = []
    for duration, doing, changing in _work(_pieces(training), training.num_microbatches):
        clock += duration
        moments.append(Moment(time=clock, doing=doing, held={**states, **changing}))
    return moments


@checked
def peak(moments: list[Moment]) -> Moment:
    """Return the moment at which the rank holds the most."""
    return max(moments, key=lambda moment: sum(moment.held.values()))


def _pieces(training: Training) -> list[_Piece]:
    """List embedding, layers and head.

    A tied head's gradient exists from the head's backward on.
    """
    spec = training.spec
    layout = training.layout
    each = training.recipe.gradients  # bytes of one gradient
    counts = shards.parameters(spec, layout)
    layer = shards.layer_parameters(spec, layout)
    embedding = counts["token embedding"]
    positions = counts["position embedding"]
    norm = counts["norms"] / (2 * spec.num_layers + 1)
    one = parts.microbatch_bytes(training)
    one_layer = _Piece(
        name="layer",
        forward=1.0,
        activations=one.layer,
        buffers=one.gathered + one.backward,
        again=parts.recomputed(training) > 0,
        gradients=each * layer,
    )
    first = _Piece(
        name="embedding",
        forward=0.0,
        activations=one.embedding,
        gradients=each * (positions + (0.0 if spec.tied else embedding)),
    )
    last = _Piece(
        name="head",
        forward=embedding / layer,  # as many multiplications for each token as it has numbers
        activations=one.head,
        logits=one.logits,
        buffers=one.gathered + one.loss,
        gradients=each * (norm + embedding),
    )
    return [first, *[one_layer] * spec.num_layers, last]


def _work(
    pieces: list[_Piece], num_microbatches: int
) -> Iterator[tuple[float, str, dict[str, float]]]:
    """Yield (duration, what is done, bytes of changed parts) for all the work of a step."""
    left = 0.0  # bytes of the gradients of earlier microbatches
    yield 0.0, "start", _held([], left)
    for _ in range(num_microbatches):
        for n, piece in enumerate(pieces, 1):
            yield piece.forward, f"forward of the {piece.name}", _held(pieces[:n], left)
        for n, piece in reversed(list(enumerate(pieces, 1))):
            before = sum(other.gradients for other in pieces[n:])
            doing = f"backward of the {piece.name}"
            begin = _held(pieces[:n], max(left, before))
            yield piece.forward * piece.again, doing, {**begin, "buffers": piece.buffers}
            end = _held(pieces[: n - 1], max(left, before + piece.gradients))
            yield 2 * piece.forward, doing, end
        left = sum(piece.gradients for piece in pieces)
    yield 1.0, "update", _held([], left)
    yield 0.0, "gradients freed", _held([], 0.0)


def _held(pieces: list[_Piece], gradients: float) -> dict[str, float]:
    """Count the bytes when these pieces have run forward and not yet backward."""
    return {
        "gradients": gradients,
        "activations": sum(piece.activations for piece in pieces),
        "logits": sum(piece.logits for piece in pieces),
        "buffers": 0.0,
    }
