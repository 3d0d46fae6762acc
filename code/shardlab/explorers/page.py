"""An explorer as HTML for a page without a kernel: explorer.js plays back its states, gzipped JSON in columns."""

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
    """The HTML of an explorer.

    views: a `View.plain()` for each state, the last control turning fastest; at: the state to start from.
    Controls, sentence and table stand in the HTML itself: without JavaScript the page still says that state.
    """
    shown, name = views[at], slug(title)
    height = shown["figure"]["layout"].get(
        "height", view.HEIGHT
    )  # reserved, so that the page does not jump
    panel = "".join(control_html(name, control) for control in controls)
    heading = f'<p class="explorer-title">{html.escape(title)}</p>' if controls else ""
    return (
        f'<div class="explorer" role="group" aria-label="{quoted(title)}" data-explorer="{name}">'
        f'{heading}<div class="explorer-controls">{panel}</div>'
        f'<p class="explorer-sentence" aria-live="polite">{shown["sentence"]}</p>'
        f'<div class="explorer-plot" role="img" style="min-height: {height}px"></div>'
        f'<details class="explorer-data" open><summary>Data table</summary>{table(shown["table"])}</details>'
        f'<script type="text/plain" class="explorer-states">{packed(views)}</script></div>'
    )


def control_html(explorer: str, control: Control) -> str:
    """One labelled native control; data-values: as a link names them, data-texts: as a reader does."""
    key, texts = f"{explorer}.{control.name}", [control.text(value) for value in control.values]
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
        about += f' min="0" max="{len(texts) - 1}" step="1" value="{at}" aria-valuetext="{quoted(texts[at])}"'
        inputs = (
            f'<input type="range" {about}><output for="{key}">{html.escape(texts[at])}</output>'
        )
    return f'<div class="explorer-control explorer-{control.kind}">{label}{inputs}</div>'


def listed(texts: Iterable[str]) -> str:
    """Texts as a JSON list inside an attribute."""
    return quoted(json.dumps(list(texts), ensure_ascii=False))


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows as an HTML table, the first one as its header."""
    head, *body = [[html.escape(text) for text in row] for row in rows] or [[]]
    header = "".join(f'<th scope="col">{text}</th>' for text in head)
    lines = "".join(f"<tr>{''.join(f'<td>{text}</td>' for text in row)}</tr>" for row in body)
    return f"<table><thead><tr>{header}</tr></thead><tbody>{lines}</tbody></table>"


def packed(views: Sequence[Mapping[str, Any]]) -> str:
    """base64(gzip(json)): the same text in every build, for gzip's own time stamp is left out."""
    text = json.dumps(
        columns.join(views), separators=(",", ":"), ensure_ascii=False, allow_nan=False
    )
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def unpacked(text: str, count: int) -> list[Any]:
    """The first views of those that `packed` packed."""
    tree = json.loads(gzip.decompress(base64.b64decode(text)))
    return [columns.at(tree, index) for index in range(count)]


def slug(title: str) -> str:
    """A title as a name for links: lower case, words joined by hyphens."""
    return "-".join(re.findall(r"\w+", title.lower())) or "figure"


def quoted(text: str) -> str:
    """`text` inside a double-quoted HTML attribute."""
    return html.escape(text, quote=True)


class PageRenderer(MimetypeRenderer):
    """Shows a plain plotly figure as an explorer without controls."""

    def to_mimebundle(self, fig_dict: dict[str, Any]) -> dict[str, str]:
        """What plotly hands to the notebook for one figure."""
        shown = view.View(fig_dict).plain()
        meta = shown["figure"]["layout"].get("meta")
        title = meta["alt"] if isinstance(meta, dict) and "alt" in meta else "Figure"
        return {"text/html": block(title, [], [shown])}


def show_plain_figures() -> None:
    """Make every plotly figure of this kernel a block for a page; the build calls it in each kernel."""
    pio.renderers["shardlab"] = PageRenderer()
    pio.renderers.default = "shardlab"
