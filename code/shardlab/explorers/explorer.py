"""An explorer: sliders over a function from values to a view, in a kernel or on a page."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from IPython.display import HTML, display

from . import page, view
from .axes import Axes

MAX_STATES = 2000  # the page holds them all
SYMBOL = 2  # letters of a unit such as GB or µs; a longer one is a word with a plural
SENTENCE = "3.5em"  # two lines
STEP_TIME = 800  # ms between two steps that are played, as in explorer.js
EM_PER_LETTER = 0.6  # on average, in the widest font that browsers take for a notebook's controls
WHOLE_ROW = 99  # letters that no column holds: buttons need room
INPUT_WIDTH = 24  # ems of a live control beside its label
FEW = 3  # values that stand side by side
ROOM = 48  # letters, in which they stand on one line
RADIO = 5  # letters that a radio button takes


@dataclass(frozen=True, kw_only=True)
class Control:
    """One thing a reader may change.

    Numbers become a slider, strings a menu, False and True a checkbox; two or three short numbers
    or strings become radio buttons.
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
        if self.stepped and kind_of(self.values[0]) != "slider":
            raise ValueError(f"{shown}; only numbers are steps")

    @property
    def kind(self) -> str:
        """The form of the control: "slider", "select", "checkbox" or "choice"."""
        kind = kind_of(self.values[0])
        few = kind != "checkbox" and not self.stepped and len(self.values) <= FEW
        return "choice" if few and self._row <= ROOM else kind

    @property
    def _row(self) -> int:
        """Count the letters of all values side by side, with their radio buttons."""
        return sum(len(self.text(value)) + RADIO for value in self.values)

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
        if self.kind == "choice":
            return max(len(self.label), self._row)
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
    and table. Numeric axes have one range in all states. per: names of controls of which each value
    has ranges of its own, because it changes numbers by orders of magnitude. most: axis of the
    layout -> the highest number to show, where longer bars need no more than a mark. Errors:
    ValueError for a control without a choice, an unknown name, or more than MAX_STATES states.
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
        per: Sequence[str] = (),
        most: Mapping[str, float] | None = None,
    ) -> None:
        labels = labels or {}
        units = units or {}
        default = default or {}
        unknown = {*labels, *units, *default, *([steps] if steps else []), *per} - {*controls}
        if unknown:
            raise ValueError(
                f"no control is named {sorted(unknown)}; the controls are {[*controls]}"
            )
        self.fn = fn
        self.per = per
        self.most = most or {}
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
        at = self.states().index(self.default())
        return page.block(self.title, self.controls, self.views(), at)

    def views(self) -> list[dict[str, Any]]:
        """Return a plain view of each state, with axes that stand still."""
        states = self.states()
        views = [self.view(**values).plain() for values in states]
        axes = self.axes()
        for step in (Axes.see, Axes.hold):
            for values, shown in zip(states, views, strict=True):
                step(axes[self.scale(values)], shown["figure"])
        return views

    def axes(self) -> defaultdict[tuple[Any, ...], Axes]:
        """Return ranges that have seen nothing yet, for each `scale`."""
        return defaultdict(lambda: Axes(self.most))

    def scale(self, values: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the values of the controls on which ranges depend."""
        return tuple(values[name] for name in self.per)

    def widget(self) -> Any:
        """Return the explorer for a kernel: ipywidgets, with a figure that follows them."""
        import ipywidgets as widgets  # here, for the build of a page needs none

        from . import live

        inputs = {
            control.name: live_control(control, self._label_width()) for control in self.controls
        }
        sentence = widgets.HTML(layout={"min_height": SENTENCE})
        figure = live.figure()
        axes = self.axes()  # they only widen: to see all states first would take a kernel minutes

        @functools.cache  # for the way back
        def seen(*values: Any) -> dict[str, Any]:
            return self.view(**dict(zip(inputs, values, strict=True))).plain()

        def redraw(change: object = None) -> dict[str, Any]:
            values = {name: chosen.value for name, chosen in inputs.items()}
            shown = copy.deepcopy(seen(*values.values()))
            sentence.value = f'<div aria-live="polite">{shown["sentence"]}</div>'
            held = axes[self.scale(values)]
            held.see(shown["figure"])
            held.hold(shown["figure"])
            figure.show(shown["figure"])
            reset.disabled = values == self.default()
            return shown

        def restore(button: object) -> None:
            for control in self.controls:
                inputs[control.name].value = control.default

        reset = widgets.Button(description="Reset")
        reset.on_click(restore)
        for chosen in inputs.values():
            chosen.observe(redraw, "value")
        # The notebook must not jump while the figure changes.
        figure.layout.min_height = f"{redraw()['figure']['layout']['height'] + 10}px"
        players = [
            live_player(control, inputs[control.name])
            for control in self.controls
            if control.stepped
        ]
        buttons = widgets.HBox([*players, reset] if self.controls else [])
        return widgets.VBox([widgets.VBox(list(inputs.values())), buttons, sentence, figure])

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
    wide: dict[str, Any] = {
        "description": control.label,
        "style": {"description_width": f"{label_width}em"},
        "layout": layout,
    }
    if control.kind == "checkbox":
        return widgets.Checkbox(value=control.default, **wide)
    options = [(control.text(value), value) for value in control.values]
    if control.kind == "choice":
        wide["style"]["button_width"] = "auto"
        return widgets.ToggleButtons(options=options, value=control.default, **wide)
    kind = widgets.Dropdown if control.kind == "select" else widgets.SelectionSlider
    return kind(options=options, value=control.default, **wide)
