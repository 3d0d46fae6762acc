"""An explorer as HTML for a page without a kernel.

explorer.js plays back its states, which the page carries as gzipped JSON in columns.
"""

from __future__ import annotations

import base64
import gzip
import html
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer

from . import columns, view

if TYPE_CHECKING:
    from .explorer import Control

STEPS = (
    '<div class="explorer-steps"><button type="button">Back</button>'
    '<button type="button">Next</button><button type="button">Play</button></div>'
)
RESET = '<button type="button" class="explorer-reset" disabled>Reset</button>'
LETTERS = {3: 30, 2: 45}  # number of columns on a screen -> letters in one
NARROW_LETTERS = 24  # in a column of two on a phone


def block(
    title: str, controls: Sequence[Control], views: Sequence[Mapping[str, Any]], at: int = 0
) -> str:
    """Return the HTML of an explorer.

    views: a `View.plain()` for each state, the last control turning fastest.
    at: the state to start from. Its controls, sentence and table stand in the HTML itself, so
    that the page shows this state without JavaScript.
    """
    shown = views[at]
    name = slug(title)
    height = shown["figure"]["layout"]["height"]  # reserved, so that the page does not jump
    seen = (shown["figure"]["layout"].get("meta") or {}).get("alt", title)
    data = f"<summary>Data table</summary>{table(shown['table'], shown['caption'])}"
    heading = f'<h3 class="explorer-title">{html.escape(title)}</h3>{RESET}' if controls else ""
    return (
        f'<div class="explorer" role="group" aria-label="{quoted(title)}" data-explorer="{name}">'
        f"{heading}{panel(name, controls)}"
        f'<p class="explorer-sentence" aria-live="polite">{shown["sentence"]}</p>'
        f'<div class="explorer-plot" role="img" aria-label="{quoted(seen)}" '
        f'style="min-height: {height}px"></div>'
        f'<details class="explorer-data" open>{data}</details>'
        f'<script type="text/plain" class="explorer-states">{packed(views)}</script></div>'
    )


def panel(explorer: str, controls: Sequence[Control]) -> str:
    """Return the controls in a grid: two or three columns on a screen, two on a phone.

    Each label stands on one line; on a phone the last control of a row takes what is left of it.
    """
    needs = [control.letters for control in controls]
    columns = min(LETTERS, key=lambda count: len(rows(needs, count, LETTERS[count])))
    wide = itertools.chain(*rows(needs, columns, LETTERS[columns]))
    found = rows(needs, 2, NARROW_LETTERS)
    narrow = itertools.chain(*([*row[:-1], 2 - sum(row[:-1])] for row in found))
    each = "".join(
        control_html(explorer, control, f"--wide: {screen}; --narrow: {phone}")
        for control, screen, phone in zip(controls, wide, narrow, strict=True)
    )
    return f'<div class="explorer-controls" style="--columns: {columns}">{each}</div>'


def rows(needs: Sequence[int], columns: int, letters: int) -> list[list[int]]:
    """Return how many columns each control takes, row by row.

    needs: the letters of each control. letters: how many fit in one column.
    """
    found: list[list[int]] = [[]]
    for need in needs:
        span = min(columns, math.ceil(need / letters))
        if sum(found[-1]) + span > columns:
            found.append([])
        found[-1].append(span)
    return [row for row in found if row]


def control_html(explorer: str, control: Control, style: str) -> str:
    """Return a labelled native control; style: its place in the grid, for explorer.css.

    data-values holds its values as a link names them, data-texts as a reader sees them.
    """
    key = f"{explorer}.{control.name}"
    texts = [control.text(value) for value in control.values]
    at = control.values.index(control.default)
    about = f'id="{key}" data-control="{control.name}" data-at="{at}"'
    about += f' data-values="{listed(map(str, control.values))}" data-texts="{listed(texts)}"'
    label = f'<label for="{key}">{html.escape(control.label)}</label>'
    if control.kind == "choice":
        radio = f'<input type="radio" name="{key}" autocomplete="off"'
        inputs = "".join(
            f"<label>{radio}{' checked' * (n == at)}><span>{html.escape(text)}</span></label>"
            for n, text in enumerate(texts)
        )
        return (
            f'<fieldset class="explorer-control explorer-choice" style="{style}" {about}>'
            f"<legend>{html.escape(control.label)}</legend><div>{inputs}</div></fieldset>"
        )
    if control.kind == "checkbox":
        inputs = f'<input type="checkbox" {about} autocomplete="off"{" checked" if control.default else ""}>'
    elif control.kind == "select":
        options = [f"<option>{html.escape(text)}</option>" for text in texts]
        options[at] = options[at].replace("<option>", "<option selected>", 1)
        inputs = f'<select {about} autocomplete="off">{"".join(options)}</select>'
    else:
        about += f' min="0" max="{len(texts) - 1}" step="1" value="{at}"'
        about += f' aria-valuetext="{quoted(texts[at])}"'
        inputs = (
            f'<input type="range" {about} autocomplete="off">'
            f'<output for="{key}" aria-live="off">{html.escape(texts[at])}</output>'
        )
        inputs += STEPS if control.stepped else ""
    kind = "stepped" if control.stepped else control.kind
    opening = f'<div class="explorer-control explorer-{kind}" style="{style}">'
    return f"{opening}{label}{inputs}</div>"


def listed(texts: Iterable[str]) -> str:
    """Write texts as a JSON list inside an attribute."""
    return quoted(json.dumps(list(texts), ensure_ascii=False))


def table(rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Return the rows as an HTML table; the first one is its header, the first cell a row's."""
    head, *body = [[html.escape(text) for text in row] for row in rows] or [[]]
    header = "".join(f'<th scope="col">{text}</th>' for text in head)
    lines = "".join(
        f'<tr><th scope="row">{name}</th>{"".join(f"<td>{text}</td>" for text in cells)}</tr>'
        for name, *cells in body
    )
    above = f"<table><caption>{html.escape(caption)}</caption><thead><tr>{header}</tr></thead>"
    return f"{above}<tbody>{lines}</tbody></table>"


def packed(views: Sequence[Mapping[str, Any]]) -> str:
    """Return base64(gzip(json)); without gzip's time stamp, every build writes the same text."""
    text = json.dumps(
        columns.join(views), separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def unpacked(text: str, count: int) -> list[Any]:
    """Return the first `count` of the views that `packed` packed into `text`."""
    tree = json.loads(gzip.decompress(base64.b64decode(text)))
    return [columns.at(tree, index) for index in range(count)]


def slug(title: str) -> str:
    """Make a name for links from a title: lower case, words joined by hyphens."""
    return "-".join(re.findall(r"\w+", title.lower())) or "figure"


def quoted(text: str) -> str:
    """Escape `text` for a double-quoted HTML attribute."""
    return html.escape(text, quote=True)


class PageRenderer(MimetypeRenderer):
    """A renderer that shows a plain plotly figure as an explorer without controls."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        """Return what plotly hands to the notebook for one figure."""
        shown = view.View(fig_dict).plain()
        meta = shown["figure"]["layout"].get("meta")
        title = meta["alt"] if isinstance(meta, dict) and "alt" in meta else "Figure"
        return {"text/html": block(title, [], [shown])}


def show_plain_figures() -> None:
    """Show every plotly figure of this kernel as a block; the build calls this in each kernel."""
    pio.renderers["shardlab"] = PageRenderer()
    pio.renderers.default = "shardlab"
