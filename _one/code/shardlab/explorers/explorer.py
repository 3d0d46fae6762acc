"""An explorer: sliders over a function from values to a view, in a kernel or on a page."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import HTML, display

from . import page, view

MAX_STATES = 2000  # the page holds them all
SYMBOL = 2  # letters of a unit such as GB or µs; a longer one is a word with a plural
STEP_TIME = 800  # ms between two steps that are played, as in explorer.js
EM_PER_LETTER = 0.6  # on average, in the widest font that browsers take for a notebook's controls
WHOLE_ROW = 99  # letters that no column holds: buttons need room
INPUT_WIDTH = 24  # ems of a live control beside its label


@dataclass(frozen=True, kw_only=True)
class Control:
    """One thing a reader may change.

    Numbers become a slider, strings a menu, False and True a checkbox.
    """

    name: str
    values: Sequence[Any]
    default: Any
    label: str
    unit: str = ""
    stepped: bool = False  # a slider with buttons: back, next, play

    def __post_init__(self) -> None:
        shown = f"control {self.name!r} has the values {list(self.values)}"
        different = {str(value) for value in self.values}
        if len(different) < max(2, len(self.values)):
            raise ValueError(f"{shown}; give two or more, all different")
        if len({kind_of(value) for value in self.values}) > 1:
            raise ValueError(f"{shown}; give all numbers, all strings, or False and True")
        if self.default not in self.values:
            raise ValueError(f"{shown}, but its default is {self.default!r}; take one of them")
        if self.stepped and self.kind != "slider":
            raise ValueError(f"{shown}; only numbers are steps")

    @property
    def kind(self) -> str:
        """The form of the control: "slider", "select" or "checkbox"."""
        return kind_of(self.values[0])

    def text(self, value: Any) -> str:
        """Write `value` as a reader sees it, with its unit; 1 takes the singular of a word."""
        number = f"{value:,}" if type(value) is int else str(value)
        word = len(self.unit) > SYMBOL
        unit = self.unit.removesuffix("s") if word and value == 1 else self.unit
        return f"{number} {unit}".strip()

    @property
    def letters(self) -> int:
        """Count the letters that stand on one line of the control, in the text that is longest."""
        longest = max(len(self.text(value)) for value in self.values)
        if self.stepped:
            return WHOLE_ROW
        beside = {"slider": len(self.label) + 1 + longest, "checkbox": len(self.label) + 3}
        return beside.get(self.kind, max(len(self.label), longest + 3))


def kind_of(value: Any) -> str:
    """Return the form of control that `value` belongs to: a bool is no number here."""
    if isinstance(value, bool):
        return "checkbox"
    return "select" if isinstance(value, str) else "slider"


class Explorer:
    """Sliders over `fn(**values)`, a function that returns a `view.View`.

    controls: name -> the values to choose from. labels, units: name -> text. default: name -> the
    value to start from, else the first one. steps: the name of a control that is time, which a
    reader may step through or play. Without controls it shows one figure with its sentence
    and table. Errors: ValueError for a control without a choice, an unknown name, or more than
    MAX_STATES states.
    """

    def __init__(
        self,
        fn: Callable[..., view.View],
        controls: Mapping[str, Sequence[Any]],
        *,
        title: str,
        labels: Mapping[str, str] | None = None,
        units: Mapping[str, str] | None = None,
        default: Mapping[str, Any] | None = None,
        steps: str = "",
    ) -> None:
        labels = labels or {}
        units = units or {}
        default = default or {}
        unknown = {*labels, *units, *default, *([steps] if steps else [])} - {*controls}
        if unknown:
            raise ValueError(
                f"no control is named {sorted(unknown)}; the controls are {[*controls]}"
            )
        self.fn = fn
        self.title = title
        self.name = page.slug(title)
        first = {name: next(iter(values), None) for name, values in controls.items()}
        start = {**first, **default}
        self.controls = [
            Control(
                name=name,
                values=list(values),
                default=start[name],
                label=labels.get(name, name.replace("_", " ").capitalize()),
                unit=units.get(name, ""),
                stepped=name == steps,
            )
            for name, values in controls.items()
        ]
        count = math.prod(len(control.values) for control in self.controls)
        if count > MAX_STATES:
            sizes = " x ".join(str(len(control.values)) for control in self.controls)
            raise ValueError(
                f"{sizes} = {count} states, more than {MAX_STATES}; take out controls or values"
            )

    def states(self) -> list[dict[str, Any]]:
        """List every choice of values; the last control turns fastest."""
        names = [control.name for control in self.controls]
        choices = itertools.product(*(control.values for control in self.controls))
        return [dict(zip(names, values, strict=True)) for values in choices]

    def default(self) -> dict[str, Any]:
        """Return the values to start from."""
        return {control.name: control.default for control in self.controls}

    def view(self, **values: Any) -> view.View:
        """Call the function with `values`, and check that it returns a view."""
        shown = self.fn(**values)
        if not isinstance(shown, view.View):
            raise TypeError(
                f"the function returned {type(shown)}; return View(figure, sentence, table)"
            )
        return shown

    def html(self) -> str:
        """Return the explorer for a page without a kernel; calls the function for every state."""
        states = self.states()
        views = [self.view(**values).plain() for values in states]
        return page.block(self.title, self.controls, views, states.index(self.default()))

    def widget(self) -> Any:
        """Return the explorer for a kernel: ipywidgets, with a figure that follows them."""
        import ipywidgets as widgets  # here, for the build of a page needs none

        from . import live

        inputs = {
            control.name: live_control(control, self._label_width()) for control in self.controls
        }
        sentence = widgets.HTML()
        figure = live.figure()
        seen = functools.cache(lambda *values: self.view(**dict(zip(inputs, values, strict=True))))

        def redraw(change: object = None) -> None:
            shown = seen(
                *(chosen.value for chosen in inputs.values())
            )  # `seen` keeps every view, for the way back
            sentence.value = f'<div aria-live="polite">{shown.sentence}</div>'
            figure.show(shown)

        for chosen in inputs.values():
            chosen.observe(redraw, "value")
        redraw()
        first = seen(*self.default().values())
        height = view.plain_figure(first.figure)["layout"]["height"]
        # The notebook must not jump while the figure changes.
        figure.layout.min_height = f"{height + 10}px"
        players = [
            live_player(control, inputs[control.name])
            for control in self.controls
            if control.stepped
        ]
        return widgets.VBox([widgets.VBox(list(inputs.values())), figure, sentence, *players])

    def _label_width(self) -> int:
        """Return the ems that the longest label needs: widgets cut what is longer."""
        longest = max((len(control.label) for control in self.controls), default=0)
        return math.ceil(EM_PER_LETTER * longest) + 1

    def _ipython_display_(self) -> None:
        display(HTML(self.html()) if os.environ.get("SHARDLAB_STATIC") == "1" else self.widget())


def live_player(control: Control, slider: Any) -> Any:
    """Return the ipywidget that plays the steps of `slider`."""
    import ipywidgets as widgets

    at = control.values.index(control.default)
    player = widgets.Play(value=at, min=0, max=len(control.values) - 1, interval=STEP_TIME)
    widgets.link((player, "value"), (slider, "index"))
    return player


def live_control(control: Control, label_width: int) -> Any:
    """Return the ipywidget of a control, with `label_width` ems for its label."""
    import ipywidgets as widgets

    layout = {"width": f"{label_width + INPUT_WIDTH}em", "max_width": "100%"}
    wide = {
        "description": control.label,
        "style": {"description_width": f"{label_width}em"},
        "layout": layout,
    }
    if control.kind == "checkbox":
        return widgets.Checkbox(value=control.default, **wide)
    options = [(control.text(value), value) for value in control.values]
    kind = widgets.Dropdown if control.kind == "select" else widgets.SelectionSlider
    return kind(options=options, value=control.default, **wide)
