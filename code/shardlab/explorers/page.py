"""An explorer as HTML for a page without a kernel.

explorer.js plays back its states, which the page carries as gzipped JSON in columns.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import plotly.io as pio
from plotly.io.base_renderers import MimetypeRenderer

from . import columns, view

if TYPE_CHECKING:
    from .explorer import Control


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
    data = f"<summary>Data table</summary>{table(shown['table'])}"
    panel = "".join(control_html(name, control) for control in controls)
    heading = f'<p class="explorer-title">{html.escape(title)}</p>' if controls else ""
    return (
        f'<div class="explorer" role="group" aria-label="{quoted(title)}" data-explorer="{name}">'
        f'{heading}<div class="explorer-controls">{panel}</div>'
        f'<p class="explorer-sentence" aria-live="polite">{shown["sentence"]}</p>'
        f'<div class="explorer-plot" role="img" style="min-height: {height}px"></div>'
        f'<details class="explorer-data" open>{data}</details>'
        f'<script type="text/plain" class="explorer-states">{packed(views)}</script></div>'
    )


def control_html(explorer: str, control: Control) -> str:
    """Return a labelled native control.

    data-values holds its values as a link names them, data-texts as a reader sees them.
    """
    key = f"{explorer}.{control.name}"
    texts = [control.text(value) for value in control.values]
    at = control.values.index(control.default)
    about = f'id="{key}" data-control="{control.name}" autocomplete="off" data-at="{at}"'
    about += f' data-values="{listed(map(str, control.values))}" data-texts="{listed(texts)}"'
    label = f'<label for="{key}">{html.escape(control.label)}</label>'
    if control.kind == "checkbox":
        inputs = f'<input type="checkbox" {about}{" checked" if control.default else ""}>'
    elif control.kind == "select":
        options = [f"<option>{html.escape(text)}</option>" for text in texts]
        options[at] = options[at].replace("<option>", "<option selected>", 1)
        inputs = f"<select {about}>{''.join(options)}</select>"
    else:
        about += f' min="0" max="{len(texts) - 1}" step="1" value="{at}"'
        about += f' aria-valuetext="{quoted(texts[at])}"'
        inputs = (
            f'<input type="range" {about}><output for="{key}">{html.escape(texts[at])}</output>'
        )
    return f'<div class="explorer-control explorer-{control.kind}">{label}{inputs}</div>'


def listed(texts: Iterable[str]) -> str:
    """Write texts as a JSON list inside an attribute."""
    return quoted(json.dumps(list(texts), ensure_ascii=False))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as an HTML table, the first one as its header."""
    head, *body = [[html.escape(text) for text in row] for row in rows] or [[]]
    header = "".join(f'<th scope="col">{text}</th>' for text in head)
    lines = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in body)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{lines}</tbody></table>"


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
