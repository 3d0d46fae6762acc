"""A step of a collective: what every rank holds, piece by piece, and the moves just made."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from shardlab.exchanges import Cell, Move

from . import style

# The colours of a piece; the text in it says whose numbers it holds.
EMPTY = "rgba(128, 128, 128, 0.12)"
FIRST = (214, 228, 253)  # red, green, blue of the palest piece with numbers
LAST = (46, 117, 243)  # of the darkest
FINISHED = style.GREEN
ARRIVED = style.COLOR["communicate"]
DARK = 0.8  # from this share of all numbers on, a cell is so dark that its text must be white
BAR, GAP = 0.62, 0.06  # the width of a rank's buffer; what separates its pieces, as a share of one
FEW = 5  # ranks whose names have room below their buffers
RUN = 3  # consecutive ranks, from this number on, are written as a range
LETTERS = 4  # of a line in a narrow cell


def step(
    held: Sequence[Sequence[Cell]],
    finished: Sequence[Cell],
    moves: Sequence[Move] = (),
    *,
    alt: str = "",
) -> go.Figure:
    """Draw what every rank holds, [rank][piece], and the moves of the step before.

    finished: what a piece holds when nothing is missing. Buffers are columns, equally high for any
    number of pieces; arrows pass behind them.
    """
    num_pieces = len(held[0])
    ranks = range(len(held))
    arrows = [_arrow(move, moves, num_pieces) for move in moves]
    return style.figure(
        [_cells(held, finished, moves), *_legend()],
        x=style.axis(
            "" if len(held) <= FEW else "rank",
            tickvals=list(ranks),
            ticktext=[f"rank {rank}" if len(held) <= FEW else str(rank) for rank in ranks],
            range=[-0.6, len(held) - 0.4],
            showgrid=False,
            zeroline=False,
        ),
        y=style.axis(
            "" if num_pieces == 1 else "piece of the buffer",
            tickvals=[_middle(piece, num_pieces) for piece in range(num_pieces)],
            ticktext=["whole<br>buffer"]
            if num_pieces == 1
            else [str(piece) for piece in range(num_pieces)],
            range=[0, 1],
            showgrid=False,
            zeroline=False,
        ),
        alt=alt or "What every rank holds after a step, piece by piece.",
        height=430,
        barmode="overlay",
        shapes=[line for line, _ in arrows],
        annotations=[head for _, head in arrows],
    )


def named(cell: Cell) -> str:
    """Write whose numbers are in a piece: (0, 1, 2, 5) is "0-2, 5"."""
    return ", ".join(_words(cell))


def _words(cell: Cell) -> list[str]:
    runs: list[list[int]] = []
    for rank in cell:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return [
        word
        for run in runs
        for word in ([f"{run[0]}-{run[-1]}"] if len(run) >= RUN else map(str, run))
    ]


def _narrow(cell: Cell) -> str:
    """Write whose numbers are in a piece, in lines of at most LETTERS letters."""
    lines = [""]
    for word in _words(cell):
        longer = f"{lines[-1]},{word}".lstrip(",")
        if len(longer) > LETTERS:
            lines.append(word)
        else:
            lines[-1] = longer
    return "<br>".join(lines)


def _cells(
    held: Sequence[Sequence[Cell]], finished: Sequence[Cell], moves: Sequence[Move]
) -> dict[str, Any]:
    num_pieces, few = len(held[0]), len(held) <= FEW
    places = [(rank, piece) for rank in range(len(held)) for piece in range(num_pieces)]
    cells = [held[rank][piece] for rank, piece in places]
    shares = [len(held[rank][piece]) / len(finished[piece]) for rank, piece in places]
    done = [held[rank][piece] == finished[piece] for rank, piece in places]
    colors = [FINISHED if end else _shade(x) for x, end in zip(shares, done, strict=True)]
    arrived = {(move.to, piece) for move in moves for piece in move.landing}
    new = [place in arrived for place in places]
    border = {
        "color": [ARRIVED if each else style.GREY for each in new],
        "width": [3.5 if each else 0.5 for each in new],
    }
    height = (1 - GAP) / num_pieces
    return {
        "type": "bar",
        "showlegend": False,
        "x": [rank for rank, _ in places],
        "y": [height] * len(places),
        "base": [_middle(piece, num_pieces) - height / 2 for _, piece in places],
        "width": BAR,
        "marker": {"color": colors, "line": border},
        "text": [named(cell) if few else _narrow(cell) for cell in cells],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "none",
        "textfont": {
            "size": 14 if few else 11,
            "color": ["white" if share >= DARK else "#1A2B4A" for share in shares],
        },
        "customdata": [[piece, named(held[rank][piece])] for rank, piece in places],
        "hovertemplate": "rank %{x}, piece %{customdata[0]}: %{customdata[1]}<extra></extra>",
    }


def _shade(share: float) -> str:
    """Return a colour from pale to blue, the darker the more numbers a piece holds."""
    mixed = [round(first + share * (last - first)) for first, last in zip(FIRST, LAST, strict=True)]
    return f"rgb({', '.join(map(str, mixed))})" if share else EMPTY


def _legend() -> list[go.Bar]:
    """Make empty traces for the legend, because cells have a colour each and no entry."""
    looks = {
        "numbers of some ranks (the more, the darker)": {"color": _shade(0.6)},
        "finished": {"color": FINISHED},
        "has just arrived": {"color": EMPTY, "line": {"color": ARRIVED, "width": 3.5}},
    }
    return [go.Bar(name=name, x=[None], y=[None], marker=marker) for name, marker in looks.items()]


def _middle(piece: int, num_pieces: int) -> float:
    return 1 - (piece + 0.5) / num_pieces


def _arrow(
    move: Move, moves: Sequence[Move], num_pieces: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Draw a line behind the buffers, and its head; moves of the same pieces lie side by side."""
    along = [other for other in moves if other.landing == move.landing]
    share = (along.index(move) + 0.5) / len(along)
    y = 1 - (move.landing.start + share * len(move.landing)) / num_pieces
    side = 1 if move.to > move.source else -1
    x0, x1 = move.source + side * BAR / 2, move.to - side * BAR / 2
    line = {"type": "line", "x0": x0, "x1": x1, "y0": y, "y1": y, "layer": "below"}
    look = {"arrowhead": 2, "arrowsize": 1.2, "arrowwidth": 2.5, "arrowcolor": ARRIVED, "text": ""}
    head = {"x": x1, "y": y, "ax": x1 - side * 0.1, "ay": y, "axref": "x", "ayref": "y", **look}
    return {**line, "line": {"color": ARRIVED, "width": 2.5}}, head
