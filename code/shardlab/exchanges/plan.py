"""A plan of a collective: its steps, and what every rank holds after each of them.

A step is a list of moves that happen at the same time. Every rank's buffer is cut into the same
pieces. In one step no rank sends, or receives, more than one message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from shardlab.files.arguments import Count, Integer, checked, within

ADD, COPY = "add", "copy"


class Move(NamedTuple):
    """One message: pieces of one rank, which another adds to its own or takes as they are.

    shift: Move(0, 2, range(2, 3), COPY, shift=1) puts piece 2 of rank 0 into piece 3 of rank 2.
    """

    source: int
    to: int
    pieces: range
    action: str  # ADD or COPY
    shift: Integer = 0  # how many places further on the pieces land

    @property
    def landing(self) -> range:
        """The pieces of the receiver into which the message goes."""
        return range(self.pieces.start + self.shift, self.pieces.stop + self.shift)


Moves = list[Move]  # those of one step, at the same time
Cell = tuple[int, ...]  # the ranks whose numbers are in a piece; one added twice stands twice
Held = list[list[Cell]]  # [rank][piece]


@dataclass(frozen=True, kw_only=True)
@checked
class Plan:
    """What all ranks do in one collective."""

    name: str
    num_ranks: Count
    num_pieces: Count
    steps: list[Moves]

    def __post_init__(self) -> None:
        ranks = self.num_ranks
        last = self.num_pieces
        for move in chain.from_iterable(self.steps):
            source, to, pieces, _, shift = move
            fits = pieces.stop <= last and 0 <= pieces.start + shift <= last - len(pieces)
            if not (fits and source < ranks > to):
                raise ValueError(f"{move} does not fit {last} pieces on {ranks} ranks")


# ---- what every rank holds -----------------------------------------------------------------------


@checked
def everyones(plan: Plan) -> Held:
    """Fill every piece of each rank with its own numbers, as before an all-reduce.

    2 ranks with 3 pieces hold [[(0,), (0,), (0,)], [(1,), (1,), (1,)]].
    """
    return [[(rank,)] * plan.num_pieces for rank in range(plan.num_ranks)]


@checked
def one_piece_each(plan: Plan) -> Held:
    """Give piece r to rank r and nothing else, as before an all-gather.

    2 ranks hold [[(0,), ()], [(), (1,)]].
    """
    pieces = range(plan.num_pieces)
    ranks = range(plan.num_ranks)
    return [[(rank,) if piece == rank else () for piece in pieces] for rank in ranks]


@checked
def only(plan: Plan, rank: int = 0) -> Held:
    """Give everything to `rank` and nothing to the others, as before a broadcast.

    2 ranks with 3 pieces hold [[(0,), (0,), (0,)], [(), (), ()]].
    """
    within("rank", rank, plan.num_ranks)
    held: Held = [[()] * plan.num_pieces for _ in range(plan.num_ranks)]
    held[rank] = [(rank,)] * plan.num_pieces
    return held


@checked
def contents(plan: Plan, start: Held) -> list[Held]:
    """List what every rank holds before the first step, which is `start`, and after each step."""
    if len(start) != plan.num_ranks or any(len(row) != plan.num_pieces for row in start):
        raise ValueError(
            f"start must hold {plan.num_pieces} pieces for each of {plan.num_ranks} ranks, "
            "as `everyones` does"
        )
    found = [start]
    for step in plan.steps:
        before = found[-1]
        after = [list(row) for row in before]
        for move in step:
            for piece, place in zip(move.pieces, move.landing, strict=True):
                own = before[move.to][place] if move.action == ADD else ()
                received = before[move.source][piece]
                after[move.to][place] = tuple(sorted([*own, *received]))
        found.append(after)
    return found


@checked
def in_words(plan: Plan, rank: int) -> list[str]:
    """Say what `rank` does in every step, a line each."""
    within("rank", rank, plan.num_ranks)
    lines = []
    for number, step in enumerate(plan.steps, 1):
        words = []
        for move in step:
            if move.source == rank:
                words.append(f"send {_named(move.pieces)} to rank {move.to}")
        for move in step:
            if move.to == rank:
                words.append(f"{move.action} {_named(move.pieces)} of rank {move.source}")
        lines.append(f"step {number}: {', '.join(words) or 'nothing'}")
    return lines


def _named(pieces: range) -> str:
    return f"piece {pieces[0]}" if len(pieces) == 1 else f"pieces {pieces[0]} to {pieces[-1]}"


# ---- plans made of plans -------------------------------------------------------------------------


@checked
def placed(plan: Plan, ranks: Sequence[int], first: int = 0, width: Count = 1) -> list[Moves]:
    """Return the steps of `plan` on the ranks and the pieces of a larger plan.

    ranks: ranks[r] does what rank r did. Piece p becomes the `width` pieces from first + width * p.
    """

    if len(ranks) != plan.num_ranks:
        raise ValueError(f"ranks={list(ranks)} must name {plan.num_ranks} ranks, as the plan has")

    def place(move: Move) -> Move:
        start = first + width * move.pieces.start
        stop = first + width * move.pieces.stop
        source = ranks[move.source]
        to = ranks[move.to]
        return Move(source, to, range(start, stop), move.action, width * move.shift)

    return [[place(move) for move in step] for step in plan.steps]


@checked
def side_by_side(plans: Iterable[list[Moves]]) -> list[Moves]:
    """Merge the steps of equally long plans of different ranks, which run at the same time."""
    return [list(chain.from_iterable(steps)) for steps in zip(*plans, strict=True)]


@checked
def powers(n: Count) -> list[int]:
    """Return 1, 2, 4 ... below `n`."""
    return [2**k for k in range((n - 1).bit_length())]
