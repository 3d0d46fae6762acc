"""The figure of an explorer in a live notebook, in two forms with one method: `show(view)`.

A new output with plotly's MIME type takes JupyterLab about half a second: its renderer draws a figure three times and
makes a PNG of it. `Figure` draws into the figure that is there, in a twentieth of that. It is an anywidget, so it works
wherever plotly's own FigureWidget does; `Output` is for front ends that know the core of ipywidgets only.
"""

from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import plotly
import plotly.graph_objects as go
import plotly.io as pio
import traitlets

from . import view

PLOTLY = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
ONLY_CORE = ("colab", "kaggle")  # renderers that plotly chooses where widgets of others need a permission


class Figure(anywidget.AnyWidget):
    """A figure that is redrawn in place; the first one of a page asks for plotly.js."""

    _esm = Path(__file__).with_name("live.js")
    figure = traitlets.Dict().tag(sync=True)  # data and layout, as plotly.js takes them

    def __init__(self) -> None:
        super().__init__()
        self.on_msg(self._answer)

    def show(self, shown: view.View) -> None:
        """Draw the figure of a view."""
        self.figure = view.plain_figure(shown.figure)

    def _answer(self, _: Any, content: Any, __: Any) -> None:
        if content == "plotly.js":
            self.send(content, buffers=[PLOTLY.read_bytes()])


class Output(ipywidgets.Output):
    """A figure that is a new output each time."""

    def show(self, shown: view.View) -> None:
        """Replace the output: one message, for clearing first and drawing then would flicker."""
        bundle = dict(go.Figure(shown.figure)._repr_mimebundle_())
        self.outputs = ({"output_type": "display_data", "metadata": {}, "data": bundle},)


def figure() -> Figure | Output:
    """The form that this notebook can show."""
    return Output() if pio.renderers.default in ONLY_CORE else Figure()
