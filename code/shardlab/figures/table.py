"""Tables of numbers, for pages and notebooks alike."""

import html
import math
from collections.abc import Sequence
from typing import Any

from IPython.display import HTML

SMALL = -3  # powers of ten below which a number is written as 1.234e-05


def table(rows: Sequence[Sequence[Any]], caption: str = "") -> HTML:
    """Show rows of cells as a table, the first row as its header; a cell may be HTML itself."""
    header, *body = rows
    lines = [f"<caption>{html.escape(caption)}</caption>" if caption else ""]
    lines += [
        "<thead><tr>",
        *(f'<th scope="col">{html.escape(str(name))}</th>' for name in header),
        "</tr></thead>",
    ]
    lines += ["<tbody>", *("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in body), "</tbody>"]
    return HTML('<table class="table numbers">' + "".join(lines) + "</table>")


def cell(x: Any) -> str:
    """Write a cell: whole numbers in full, others with four digits, commas between thousands."""
    if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
        return "" if x is None else str(x)
    if x == int(x):
        return f"{int(x):,}"
    size = math.floor(math.log10(abs(x)))
    return f"{x:.3e}" if size < SMALL else f"{x:,.{max(0, 3 - size)}f}"


def breakable(text: str) -> str:
    """Escape `text` for HTML, and let long names break where one of their words ends."""
    return html.escape(text).replace("_", "_<wbr>").replace("::", "<wbr>::")


def _cell(x: Any) -> str:
    style = (
        "text-align: right; white-space: nowrap"
        if isinstance(x, int | float)
        else "text-align: left"
    )
    text = x.data if isinstance(x, HTML) else breakable(cell(x))
    return f'<td style="{style}">{text}</td>'
