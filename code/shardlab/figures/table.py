"""Tables of numbers, for pages and notebooks alike."""

import html
import math
from collections.abc import Sequence
from typing import Any

from IPython.display import HTML

SMALL = -3  # powers of ten below which a number is written as 1.234e-05


def table(rows: Sequence[Sequence[Any]], caption: str = "") -> HTML:
    """Rows of cells as a table; the first row is the header, numbers stand at the right. A cell may be HTML itself."""
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
    """A cell's text: a number with four significant digits and commas between thousands, whole if it is whole."""
    if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
        return "" if x is None else str(x)
    if x == int(x):
        return f"{int(x):,}"
    size = math.floor(math.log10(abs(x)))
    return f"{x:.3e}" if size < SMALL else f"{x:,.{max(0, 3 - size)}f}"


def breakable(text: str) -> str:
    """Text as HTML in which a long name may break where one of its words ends."""
    return html.escape(text).replace("_", "_<wbr>").replace("::", "<wbr>::")


def _cell(x: Any) -> str:
    style = (
        "text-align: right; white-space: nowrap"
        if isinstance(x, int | float)
        else "text-align: left"
    )
    text = x.data if isinstance(x, HTML) else breakable(cell(x))
    return f'<td style="{style}">{text}</td>'
