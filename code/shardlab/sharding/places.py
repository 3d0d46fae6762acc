"""Which boxes of which parameters each rank of a layout holds, as plain data.

Tensor parallelism cuts a matrix by rows or columns. ZeRO-3 flattens such a piece and cuts it again,
often in the middle of a row. An interval of a flattened matrix is at most three boxes:

    . . . .
    . . a a     the end of a row
    b b b b     whole rows
    c . . .     the beginning of a row
"""

from collections.abc import Iterator
from math import ceil, prod

from shardlab.files.arguments import checked
from shardlab.model.spec import TransformerSpec

from . import cuts
from .layout import Layout, stages

Box = tuple[range, ...]  # of a whole parameter, one range for each dim
Place = tuple[str, Box]  # a parameter's name, and a box of it
CUTS_PARAMETERS = 3  # the stage of ZeRO that cuts parameters


@checked
def places(spec: TransformerSpec, layout: Layout) -> list[list[Place]]:
    """List the boxes of parameters that each rank holds; tp ranks are neighbours, stages come last.

    ZeRO-3 cuts each parameter by itself, as `plain.zero` does. A tied head is listed as the
    embedding, on the first stage. Errors: ValueError for a layout that does not split the model, or
    that shares experts between ranks.
    """
    layout.check(spec)
    if layout.expert_ranks > 1:
        raise ValueError(
            f"ep={layout.ep}, whole_experts={layout.whole_experts}: ranks hold different experts, "
            "which are not listed here; use ep=1 and whole_experts=False"
        )
    held = cuts.model(spec, layout.tp)
    zero_ranks = layout.replicas if layout.zero == CUTS_PARAMETERS else 1
    ranks = []
    for stage in range(layout.pp):
        here = {name: cut for name, cut in held.items() if _stage(name, spec, layout.pp) == stage}
        for replica in range(layout.replicas):
            for rank in range(layout.tp):
                pieces = [(name, _piece(cut, rank)) for name, cut in here.items()]
                row = replica % zero_ranks
                ranks.append(
                    [(name, box) for name, piece in pieces for box in _rows(piece, zero_ranks, row)]
                )
    return ranks


@checked
def boxes(piece: Box, begin: int, end: int) -> Iterator[Box]:
    """List the boxes of an interval of a flattened piece, in its order.

    Errors: ValueError for an interval that is not in the piece.
    """
    count = prod(map(len, piece))
    if not 0 <= begin <= end <= count:
        raise ValueError(f"begin={begin}, end={end}: a piece of {count} numbers has 0 to {count}")
    return _boxes(piece, begin, end)


def _boxes(piece: Box, begin: int, end: int) -> Iterator[Box]:
    if len(piece) <= 1:
        yield tuple(numbers[begin:end] for numbers in piece)
        return
    first, *others = piece
    row = prod(map(len, others))
    while begin < end:
        number, inside = divmod(begin, row)
        count = (end - begin) // row
        if inside == 0 and count:  # whole rows
            yield (first[number : number + count], *others)
            begin += count * row
        else:
            until = min(end, (number + 1) * row)
            for box in _boxes(tuple(others), inside, until - number * row):
                yield (first[number : number + 1], *box)
            begin = until


def _stage(name: str, spec: TransformerSpec, pp: int) -> int:
    """Number the stage that holds a parameter: the first has the embedding, the last the head."""
    if name.startswith("embedding."):
        return 0
    if not name.startswith("blocks."):
        return pp - 1
    layer = int(name.split(".")[1])
    return next(n for n, layers in enumerate(stages(spec.num_layers, pp)) if layer in layers)


def _piece(cut: cuts.Cut, rank: int) -> Box:
    """Return what a rank of tensor parallelism holds, without padding."""
    whole = [range(length) for length in cut.shape]
    if cut.dim is not None:
        whole[cut.dim] = cut.held(rank)
    return tuple(whole)


def _rows(piece: Box, ranks: int, rank: int) -> Iterator[Box]:
    """List what a rank of ZeRO-3 holds of a piece; the last ranks may hold less, or nothing."""
    count = prod(map(len, piece))
    size = ceil(count / ranks)
    begin, end = (min(size * each, count) for each in (rank, rank + 1))
    if begin < end:
        yield from boxes(piece, begin, end)
