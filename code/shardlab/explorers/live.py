"""The figure of an explorer in a live notebook, in two forms with one method: `show(figure)`.

A new output with plotly's MIME type takes JupyterLab about half a second: its renderer draws a
figure three times and makes a PNG of it. `Figure` draws into the figure that is there, in a
twentieth of that. It is an anywidget, so it works wherever plotly's own FigureWidget does; `Output`
is for front ends that know the core of ipywidgets only.
"""

from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import plotly
import plotly.graph_objects as go
import plotly.io as pio
import traitlets

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
ONLY_CORE = ("colab", "kaggle")  # front ends where custom widgets need a permission


class Figure(anywidget.AnyWidget):
    """A figure that is redrawn in place; the first of a kernel brings plotly.js for all others."""

    _esm = Path(__file__).with_name("live.js")
    script = traitlets.Bytes(None, allow_none=True).tag(sync=True)
    figure = traitlets.Dict().tag(sync=True)  # data and layout, as plotly.js takes them
    brought = False

    def __init__(self) -> None:
        super().__init__(script=None if Figure.brought else PLOTLY.read_bytes())
        Figure.brought = True

    def show(self, shown: dict[str, Any]) -> None:
        """Draw a plain figure."""
        self.figure = shown


class Output(ipywidgets.Output):
    """A figure that becomes a new output each time it changes."""

    def show(self, shown: dict[str, Any]) -> None:
        """Replace the output in one message; clearing it first would flicker."""
        bundle = dict(go.Figure(shown)._repr_mimebundle_())
        self.outputs = ({"output_type": "display_data", "metadata": {}, "data": bundle},)


def figure() -> Figure | Output:
    """Return the form of figure that this notebook can show."""
    return Output() if pio.renderers.default in ONLY_CORE else Figure()
