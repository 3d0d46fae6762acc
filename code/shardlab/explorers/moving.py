"""What the pictures that only the reader moves have in common: see moving.js."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable

from IPython.display import HTML, display

from .words import NUMBER


class MovingPicture:
    """A picture with Back and Next on a page; with a kernel, its table."""

    def html(self) -> str:
        """Return the picture and its table, for a page."""
        raise NotImplementedError

    def table(self) -> str:
        """Return its numbers as HTML."""
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        display(HTML(self.html() if os.environ.get("SHARDLAB_STATIC") == "1" else self.table()))


def clock(attributes: str = 'step="1"') -> str:
    """Return the HTML of a clock, which stands right above what it moves."""
    slider = f'<input type="range" min="0" {attributes} autocomplete="off">'
    return f'<label class="moving-clock">Clock{slider}</label>'


def switch(text: str) -> str:
    """Return the HTML of a switch between two runs."""
    box = '<input type="checkbox" autocomplete="off">'
    return f'<label class="moving-switch">{box} {text}</label>'


def radios(name: str, legend: str, texts: Iterable[str]) -> str:
    """Return the HTML of buttons of which one is pressed."""
    radio = f'<input type="radio" name="{name}" autocomplete="off" value='
    words = map(html.escape, texts)
    labels = "".join(f'<label>{radio}"{text}"><span>{text}</span></label>' for text in words)
    return f'<fieldset class="moving-choice"><legend>{legend}</legend>{labels}</fieldset>'


def moving(
    name: str, title: str, picture: str, data: str, *, hands: str = "", text: str = ""
) -> str:
    """Return the HTML of a picture that the reader moves with moving.js and `name`'s own script.

    title: what a screen reader calls it. hands: its controls; what it says stands first in
    `picture`, above what moves. data: its numbers as a table, the only thing on a page without
    JavaScript beside `text`, which stands first.
    """
    steps = (
        '<p class="moving-steps"><button type="button">Back</button>'
        '<output></output><button type="button">Next</button></p>'
    )
    return (
        f'<div class="moving {name}" role="group" aria-label="{title}" '
        f'data-joint="{html.escape(NUMBER.pattern)}">'
        f'{text}<div class="moving-stage">{hands}{steps}{picture}</div>'
        '<details class="explorer-data" open>'
        f"<summary>Data table</summary>{data}</details></div>"
    )
