"""A plan: steps, each a list of moves that happen at the same time; and what every rank holds after each of them.

Every rank's buffer is cut into the same pieces. In one step no rank sends, or receives, more than one message.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

ADD, COPY = "add", "copy"


class Move(NamedTuple):
    """One message: pieces of one rank go to another, which adds them to its own or takes them as they are."""

    source: int
    to: int
    pieces: range
    action: str  # ADD or COPY
    shift: int = 0  # they land so many pieces further on

    @property
    def landing(self) -> range:
        """The pieces that they become."""
        return range(self.pieces.start + self.shift, self.pieces.stop + self.shift)


Step = list[Move]
Cell = tuple[int, ...]  # whose numbers are in a piece, in order; a rank that was added twice stands there twice


@dataclass(frozen=True)
class Plan:
    """What all ranks do in one collective."""

    name: str
    num_ranks: int
    num_pieces: int
    steps: list[Step]


def cuts(length: int, num_pieces: int) -> list[int]:
    """Where the pieces of a buffer begin, and where the last one ends; the first ones are longer by one if need be."""
    size, longer = divmod(length, num_pieces)
    return [piece * size + min(piece, longer) for piece in range(num_pieces + 1)]


# ---- what every rank holds: [rank][piece] ----------------------------------------------------------------------------


def everyones(plan: Plan) -> list[list[Cell]]:
    """Before an all-reduce: every rank has its own numbers in every piece."""
    return [[(rank,)] * plan.num_pieces for rank in range(plan.num_ranks)]


def one_piece_each(plan: Plan) -> list[list[Cell]]:
    """Before an all-gather: rank r has piece r."""
    ranks = range(plan.num_ranks)
    return [[(rank,) if piece == rank else () for piece in range(plan.num_pieces)] for rank in ranks]


def only(plan: Plan, rank: int = 0) -> list[list[Cell]]:
    """Before a broadcast: one rank has everything."""
    return [[(rank,) if each == rank else ()] * plan.num_pieces for each in range(plan.num_ranks)]


def contents(plan: Plan, start: list[list[Cell]]) -> list[list[list[Cell]]]:
    """What every rank holds before the first step, and after each."""
    found = [start]
    for step in plan.steps:
        before, after = found[-1], [list(row) for row in found[-1]]
        for move in step:
            for piece, place in zip(move.pieces, move.landing, strict=True):
                mine = before[move.to][place] if move.action == ADD else ()
                after[move.to][place] = tuple(sorted(mine + before[move.source][piece]))
        found.append(after)
    return found


def in_words(plan: Plan, rank: int) -> list[str]:
    """What one rank does in every step, a line each."""
    lines = []
    for number, step in enumerate(plan.steps, 1):
        sent = [f"send {_named(move.pieces)} to rank {move.to}" for move in step if move.source == rank]
        got = [f"{move.action} {_named(move.pieces)} of rank {move.source}" for move in step if move.to == rank]
        lines.append(f"step {number}: {', '.join(sent + got) or 'nothing'}")
    return lines


def _named(pieces: range) -> str:
    return f"piece {pieces[0]}" if len(pieces) == 1 else f"pieces {pieces[0]} to {pieces[-1]}"


# ---- plans made of plans ---------------------------------------------------------------------------------------------


def rooted(plan: Plan, root: int) -> Plan:
    """A plan for rank 0, with `root` in its place: every rank takes the part of the rank so many places before it.

    Errors: ValueError for a rank that does not exist.
    """
    n = plan.num_ranks
    if not 0 <= root < n:
        raise ValueError(f"rank {root} is none of {n} ranks; use 0 to {n - 1}")
    return replace(plan, steps=placed(plan, [(rank + root) % n for rank in range(n)]))


def placed(plan: Plan, ranks: Sequence[int], first: int = 0, width: int = 1) -> list[Step]:
    """The plan among these ranks; its pieces, each `width` of a larger plan's, begin there with the piece `first`."""

    def place(move: Move) -> Move:
        pieces = range(first + width * move.pieces.start, first + width * move.pieces.stop)
        return Move(ranks[move.source], ranks[move.to], pieces, move.action, width * move.shift)

    return [[place(move) for move in step] for step in plan.steps]


def side_by_side(plans: Iterable[list[Step]]) -> list[Step]:
    """Equally long plans of different ranks, at the same time."""
    return [[move for step in steps for move in step] for steps in zip(*plans, strict=True)]


def checked(n: int) -> int:
    """The number of ranks. Errors: ValueError where there are none."""
    if n < 1:
        raise ValueError(f"{n} ranks have nothing to say; use at least 1")
    return n


def powers(n: int) -> list[int]:
    """1, 2, 4 ... below n."""
    return [2**k for k in range((checked(n) - 1).bit_length())]
