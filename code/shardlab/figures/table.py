"""Tables of numbers, for pages and notebooks alike."""

import html
import math
import re
from collections.abc import Sequence
from typing import Any

from IPython.display import HTML

NUMBER = re.compile(r"(?P<whole>[-+\N{MINUS SIGN}]?[\d,]+)(\.(?P<fraction>\d+))?(?P<unit>( ?%)?)")
UNIT = re.compile(r", (?=\S{1,8}$)")  # the gap before a short last word: "step, s"
SMALL, LARGE = -3, 15  # powers of ten outside which a number is written as 1.234e-05


def table(rows: Sequence[Sequence[Any]], caption: str = "") -> HTML:
    """Show rows of cells as a table, the first row as its header; a cell may be HTML itself.

    A column of numbers ends at the right, its decimal points below each other. Its numbers have
    three digits, or four where three would write different ones alike.
    """
    header, *body = rows
    digits = [_digits([row[at] for row in body if at < len(row)]) for at in range(len(header))]
    texts = [[_text(*each) for each in zip(row, digits, strict=False)] for row in body]
    looks = [_look([row[at] for row in texts if at < len(row)]) for at in range(len(header))]
    lines = [f"<caption>{html.escape(caption)}</caption>" if caption else ""]
    names = zip(header, looks, strict=True)
    lines += ["<thead><tr>", *(_head(name, look is not None) for name, look in names)]
    lines += ["</tr></thead><tbody>"]
    for row, written in zip(body, texts, strict=True):
        cells = zip(row, written, looks, strict=False)
        lines.append("<tr>" + "".join(_cell(*each) for each in cells) + "</tr>")
    return HTML('<table class="table numbers">' + "".join([*lines, "</tbody></table>"]))


def cell(x: Any, digits: int = 4) -> str:
    """Write a cell: whole numbers in full up to LARGE, others with these digits."""
    if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
        return "" if x is None else str(x)
    if x < 0:
        return f"\N{MINUS SIGN}{cell(-x, digits)}"
    size = math.floor(math.log10(x)) if x else 0
    if not SMALL <= size < LARGE:
        return f"{x:.{digits - 1}e}"
    if x == int(x):
        return f"{int(x):,}"
    return f"{x:,.{max(0, digits - 1 - size)}f}"


def breakable(text: str) -> str:
    """Escape `text` for HTML, and let long names break where one of their words ends."""
    return html.escape(text).replace("_", "_<wbr>").replace("::", "<wbr>::")


def _text(x: Any, digits: int) -> str:
    return x.data if isinstance(x, HTML) else cell(x, digits)


def _digits(column: Sequence[Any]) -> int:
    """Return the fewest digits that tell the numbers of a column apart, of three and four."""
    return max((3, 4), key=lambda digits: len({_text(x, digits) for x in column}))


def _look(column: Sequence[str]) -> int | None:
    """Return the most digits behind a point in a column, None if fewer than half are numbers."""
    found = [match for text in column if (match := NUMBER.fullmatch(text))]
    if 2 * len(found) < max(1, sum(map(bool, column))):
        return None
    return max((len(match["fraction"] or "") for match in found), default=0)


def _head(name: Any, right: bool) -> str:
    style = ' style="text-align: right"' if right else ""
    text = UNIT.sub(",\N{NO-BREAK SPACE}", str(name))
    return f'<th scope="col"{style}>{html.escape(text)}</th>'


def _cell(x: Any, text: str, most: int | None) -> str:
    """Write a cell; a number with fewer digits than `most` is followed by digits not shown."""
    shown = text if isinstance(x, HTML) else breakable(text)
    if most is None:
        return f'<td style="text-align: left">{shown}</td>'
    if match := NUMBER.fullmatch(text):
        fraction = match["fraction"] or ""
        missing = ("" if fraction or not most else ".") + "0" * (most - len(fraction))
        hidden = f'<span style="visibility: hidden">{missing}</span>' if missing else ""
        unit = match["unit"].replace(" ", "\N{NO-BREAK SPACE}")
        shown = f"{match['whole']}{'.' * bool(fraction)}{fraction}{hidden}{unit}"
    return f'<td style="text-align: right">{shown}</td>'
