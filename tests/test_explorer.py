"""The explorer on Python's side: its controls, its states, its page, its widgets, and plain figures."""

from __future__ import annotations

import html.parser
import importlib
import json
import math
import pkgutil
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
import pytest

from shardlab import explorers
from shardlab.explorers import axes, explorer, live, page, view
from shardlab.figures import style
from shardlab.figures.table import cell
from tests.figures.drawn import alike

LINKS = ["NVLink", "PCIe <5>", "InfiniBand NDR", "100 GbE"]
CONTROLS = {"ranks": [1, 2, 4, 8], "link": LINKS, "overlap": [False, True]}


def show(ranks: int, link: str, overlap: bool) -> view.View:
    height = ranks / 3 + 100 * len(link) + 1000 * overlap
    figure = style.figure([go.Bar(x=[link], y=[height], name="time")], x="link", y="time (s)")
    return view.View(figure, f"It takes <b>{height:.1f} s</b>.", [["ranks", "time (s)"], [ranks, height]])


def make(**changes: Any) -> explorer.Explorer:
    options = {"title": "Time & link", "units": {"ranks": "GPUs"}, "default": {"ranks": 2, "overlap": True}}
    return explorer.Explorer(show, CONTROLS, **{**options, **changes})


# ---- controls


def test_numbers_strings_and_bools_become_slider_select_and_checkbox() -> None:
    assert [control.kind for control in make().controls] == ["slider", "select", "checkbox"]
    assert make().default() == {"ranks": 2, "link": "NVLink", "overlap": True}
    assert make().controls[0].text(4000) == "4,000 GPUs"


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1, 2, 4], "choice"), (["a", "b"], "choice"), (["a" * 20, "b" * 20], "select"), ([False, True], "checkbox")],
)
def test_two_or_three_short_values_become_radio_buttons(values: list[Any], kind: str) -> None:
    made = explorer.Explorer(lambda x: show(1, str(x), False), {"x": values}, title="few")
    assert made.controls[0].kind == kind
    elements = Reader(made.html()).elements
    radios = [attributes for tag, attributes in elements if attributes.get("type") == "radio"]
    assert len(radios) == (len(values) if kind == "choice" else 0)
    assert ["checked" in each for each in radios] == [True, False, False][: len(radios)]
    assert ("legend" in [tag for tag, _ in elements]) == (kind == "choice")
    live_control = made.widget().children[0].children[0]
    assert (type(live_control).__name__ == "ToggleButtons") == (kind == "choice")


@pytest.mark.parametrize(
    ("controls", "options", "message"),
    [
        ({"ranks": []}, {}, "give two or more"),
        ({"ranks": [8]}, {}, "give two or more"),
        ({"ranks": [8, 8]}, {}, "all different"),
        ({"ranks": [8, "many"]}, {}, "all numbers, all strings"),
        ({"overlap": [True, 2]}, {}, "all numbers, all strings"),
        ({"ranks": [1, 2]}, {"default": {"ranks": 3}}, "its default is 3; take one of them"),
        ({"ranks": [1, 2]}, {"units": {"rank": "GPUs"}}, r"no control is named \['rank'\]"),
        ({"ranks": [1, 2]}, {"steps": "rank"}, r"no control is named \['rank'\]"),
        ({"link": ["NVLink", "PCIe"]}, {"steps": "link"}, "only numbers are steps"),
        ({"a": range(50), "b": range(41)}, {}, "50 x 41 = 2050 states, more than 2000"),
    ],
)
def test_bad_controls_raise(controls: dict[str, Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explorer.Explorer(show, controls, title="bad", **options)


def test_two_thousand_states_are_allowed() -> None:
    assert len(explorer.Explorer(show, {"a": range(50), "b": range(40)}, title="many").states()) == 2000


def test_a_function_that_returns_a_bare_figure_is_told_so() -> None:
    with pytest.raises(TypeError, match="return View"):
        explorer.Explorer(lambda n: go.Figure(), {"n": [1, 2]}, title="bare").view(n=1)


# ---- the page


class Reader(html.parser.HTMLParser):
    """Collects what a test asks of a page: elements with their attributes, table cells, the packed states."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, Any]]] = []
        self.cells: list[str] = []
        self.states = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        last, attributes = self.elements[-1]
        if last in ("td", "th"):
            self.cells.append(data)
        if attributes.get("class") == "explorer-states":
            self.states += data


def test_the_page_holds_every_state_in_order() -> None:
    made = make()
    states, count = Reader(made.html()).states, len(made.states())
    views = page.unpacked(states, count)
    assert views == json.loads(json.dumps(made.views()))
    expected = [show(r, link, o).plain()["sentence"] for r in (1, 2, 4, 8) for link in LINKS for o in (False, True)]
    assert [each["sentence"] for each in views] == expected
    assert [*made.states()[1].values()] == [1, "NVLink", True]  # the last control turns fastest


def test_the_page_is_the_same_in_every_build() -> None:
    assert make().html() == make().html()


def test_the_page_says_the_default_state_without_a_script() -> None:
    text = make().html()
    height = 2 / 3 + 600 + 1000
    assert Reader(text).cells == ["ranks", "time (s)", "2", cell(height)]
    assert f"It takes <b>{height:.1f}\N{NO-BREAK SPACE}s</b>." in text


def test_every_control_is_native_and_labelled() -> None:
    elements = Reader(make().html()).elements
    labels = [attributes["for"] for tag, attributes in elements if tag == "label"]
    controls = {attributes["id"]: (tag, attributes) for tag, attributes in elements if "data-control" in attributes}
    assert labels == [*controls] == ["time-link.ranks", "time-link.link", "time-link.overlap"]
    slider, select, checkbox = controls.values()
    assert (slider[1]["type"], slider[1]["value"], slider[1]["aria-valuetext"]) == ("range", "1", "2 GPUs")
    assert (select[0], json.loads(select[1]["data-values"])) == ("select", CONTROLS["link"])
    assert checkbox[1]["type"] == "checkbox"
    assert "checked" in checkbox[1]


def test_only_steps_have_buttons() -> None:
    assert re.findall(r"<button[^>]*>(.*?)</button>", make().html()) == ["Reset"]
    text = make(steps="ranks").html()
    assert re.findall(r"<button[^>]*>(.*?)</button>", text) == ["Reset", "Back", "Next", "Play"]
    columns, wide = (int(re.search(rf"--{name}: (\d)", text)[1]) for name in ("columns", "wide"))
    assert columns == wide  # its row is its own


def test_three_hundred_states_of_curves_stay_small() -> None:
    def curves(a: int, b: int) -> view.View:
        x = np.linspace(0, 1, 50)
        return view.View(style.figure([go.Scatter(x=x, y=np.sin(a * x) / b, name="wave")]))

    many = explorer.Explorer(curves, {"a": range(1, 21), "b": range(1, 16)}, title="curves")
    assert len(many.html()) < 200_000


# ---- a view


def test_numbers_are_rounded_and_arrays_become_lists() -> None:
    trace = go.Scatter(x=np.array([1.0, 2.0]), y=np.array([math.pi * 1e-9, math.nan]))
    figure = view.View(go.Figure(trace)).plain()["figure"]
    assert (figure["data"][0]["x"], figure["data"][0]["y"]) == ([1, 2], [3.1416e-09, None])
    assert "template" not in figure["layout"]
    assert view.plain(go.Figure(go.Heatmap(z=np.eye(2))).to_dict()["data"][0]["z"]) == [[1, 0], [0, 1]]


def test_decoration_is_no_data() -> None:
    bars = go.Bar(orientation="h", x=[2.5], y=["a"], name="bars")
    figure = go.Figure([bars, go.Scatter(x=[0, 1], y=[3, 4], hoverinfo="skip")])
    figure.update_layout(xaxis_title="time (s)")
    assert view.View(figure).plain()["table"] == [["series", "name", "time (s)"], ["bars", "a", "2.500"]]


def test_without_a_table_the_points_are_listed() -> None:
    bars = [go.Bar(x=[3, 4], y=["a", "b"], orientation="h", name="bytes")]
    table = view.View(style.figure(bars, x="GB", y="part")).plain()["table"]
    assert table == [["series", "part", "GB"], ["bytes", "a", "3"], ["bytes", "b", "4"]]
    heat = go.Figure(go.Heatmap(x=["dp 1", "dp 2"], y=["tp 1"], z=[[1, 2]]))
    rows = [["series", "column", "row", "value"], ["", "dp 1", "tp 1", "1"], ["", "dp 2", "tp 1", "2"]]
    assert view.View(heat).plain()["table"] == rows
    bars = go.Bar(x=[2, 1], base=[0, 3], y=["rank 0", "rank 1"], orientation="h", name="sum")
    table = view.View(style.figure([bars], x="time (ms)")).plain()["table"]
    assert table[0] == ["series", "rank", "start: time (ms)", "end: time (ms)"]
    assert table[1:] == [["sum", "rank 0", "0", "2"], ["sum", "rank 1", "3", "4"]]
    many = style.figure([go.Bar(x=list(range(50)), y=[1] * 50)])
    assert len(view.View(many).plain()["table"]) == 51


def test_a_long_table_keeps_ends_and_named_points_and_says_so() -> None:
    names = ["peak" if x == 501 else "" for x in range(1000)]
    curve = go.Scatter(x=list(range(1000)), y=list(range(1000)), text=names)
    (_, *rows), caption = (view.View(go.Figure(curve)).plain()[key] for key in ("table", "caption"))
    assert {"0", "501", "999"} <= {x for _, x, _ in rows}
    assert len(rows) <= view.THINNED
    assert caption.startswith(f"{len(rows)} of 1,000 points")
    short = view.View(go.Figure(go.Scatter(x=list(range(40)), y=[1] * 40))).plain()
    assert (len(short["table"]), short["caption"]) == (41, "")


def test_a_table_has_names_where_a_figure_has_places() -> None:
    dots = go.Scatter(x=[3.0, None], y=["a", "b"], name="row")
    assert view.View(style.figure([dots], x="too long (%)")).plain()["table"] == [
        ["series", "name", "too long (%)"],
        ["row", "a", "3"],
    ]
    beside = go.Bar(x=[-0.1, 0.9], y=[5, 6], name="with")
    ticks = style.axis(tickvals=[0, 1], ticktext=["NVLink", "PCIe"])
    rows = view.View(style.figure([beside], x=ticks, y="share")).plain()["table"]
    assert rows[1:] == [["with", "NVLink", "5"], ["with", "PCIe", "6"]]
    wires = go.Scatter(x=[0, 0.3], y=[1, 2], text=["GPU 0", "GPU 1"], name="parts")
    rows = view.View(style.figure([wires], x=style.axis(visible=False))).plain()["table"]
    assert rows == [["drawn", "name"], ["parts", "GPU 0"], ["parts", "GPU 1"]]


# ---- the kernel


def drawn(box: Any) -> list[Any]:
    """The height of the bar in the live figure."""
    return [trace["y"][0] for trace in box.children[3].figure["data"]]


def test_the_live_figure_follows_its_controls() -> None:
    box = make().widget()
    inputs, buttons, sentence, figure = box.children
    (reset,) = buttons.children
    assert reset.disabled
    kinds = [type(chosen).__name__ for chosen in inputs.children]
    assert kinds == ["SelectionSlider", "Dropdown", "Checkbox"]
    assert drawn(box) == [view.rounded(2 / 3 + 600 + 1000)]
    inputs.children[0].value = 4
    inputs.children[2].value = False
    assert drawn(box) == [view.rounded(4 / 3 + 600)]
    assert "601.3\N{NO-BREAK SPACE}s" in sentence.value
    reset.click()
    assert drawn(box) == [view.rounded(2 / 3 + 600 + 1000)]
    assert reset.disabled
    assert figure.layout.min_height == "370px"  # that of figures/style.py, and a little air


def test_a_kernel_plays_steps() -> None:
    box = make(steps="ranks").widget()
    player, _ = box.children[1].children
    assert (player.value, player.max) == (1, 3)
    player.value = 2
    assert box.children[0].children[0].value == 4
    box.children[0].children[0].value = 1
    assert player.value == 0


def test_a_view_that_was_shown_is_not_computed_again() -> None:
    computed = []

    def count(n: int) -> view.View:
        computed.append(n)
        return show(n, "NVLink", False)

    box = explorer.Explorer(count, {"n": [1, 2]}, title="count").widget()
    (slider,) = box.children[0].children
    first = drawn(box)
    for n in (2, 1, 2, 1):
        slider.value = n
    assert drawn(box) == first
    assert sorted(computed) == [1, 2]


def test_what_is_concluded_stands_above_the_picture() -> None:
    text = make().html()
    parts = ["controls", "sentence", "plot", "data"]
    assert sorted(parts, key=lambda part: text.index(f'class="explorer-{part}"')) == parts


def test_the_first_live_figure_of_a_kernel_brings_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.Figure, "brought", False)
    first, second = live.figure(), live.figure()
    assert first.script.startswith(b"/**\n* plotly.js v")
    assert second.script is None


def test_a_front_end_that_knows_the_core_only_gets_a_new_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pio.renderers, "_default_name", "colab")
    monkeypatch.setattr(pio.renderers, "_default_renderers", [pio.renderers["colab"]])
    box = make().widget()
    box.children[0].children[0].value = 4
    (output,) = box.children[3].outputs
    assert str(view.rounded(4 / 3 + 600 + 1000)) in output["data"]["text/html"]


# Widths of letters in thousandths of an em, as Helvetica has them; DejaVu and Verdana need a sixth more.
NARROW, WIDE = dict.fromkeys("ijl '.,:;|", 278) | dict.fromkeys("frt()-/·", 333), dict.fromkeys("mwMWG@%=", 833)
LETTERS = NARROW | WIDE | dict.fromkeys("ABCDEHKNOPQRSUVXYZ", 722)
EXPLORERS = {
    f"{module.name}.{name}": function
    for module in pkgutil.iter_modules(explorers.__path__)
    for name, function in vars(importlib.import_module(f"{explorers.__name__}.{module.name}")).items()
    if getattr(function, "__annotations__", {}).get("return") in ("Explorer", explorer.Explorer)
}


@pytest.mark.parametrize("name", EXPLORERS)
def test_no_label_of_a_live_control_is_cut(name: str) -> None:
    inputs = EXPLORERS[name]().widget().children[0].children
    for chosen in inputs:
        needed = 7 / 6 * sum(LETTERS.get(letter, 556) for letter in chosen.description) / 1000
        assert needed <= float(chosen.style.description_width.removesuffix("em")), chosen.description
    assert len({chosen.style.description_width for chosen in inputs}) == 1, "labels end at one line"


def test_whatever_turns_or_fills_can_be_stepped_through() -> None:
    made = [make_one() for make_one in EXPLORERS.values()]
    time = [control for one in made for control in one.controls if control.name in ("step", "turn", "clock")]
    assert len(time) >= 3  # two of collectives, a ring of attention
    assert all(control.stepped for control in time)


@pytest.mark.parametrize("name", EXPLORERS)
def test_an_axis_stands_still_for_one_model_and_the_default_is_no_sliver_of_it(name: str) -> None:
    """What other controls change by orders of magnitude is drawn in shares, on a logarithmic axis, or cut."""
    made = EXPLORERS[name]()
    assert {*made.per} <= {"model"}
    default, found = made.default(), []
    changes = [{control.name: value} for control in made.controls for value in control.values]
    for change in ({}, *(change for change in changes if not {*change} & {*made.per})):
        figure = made.view(**{**default, **change}).plain()["figure"]
        linear = {axis for axis in figure["layout"] if figure["layout"][axis] and "axis" in axis}
        linear = {axis for axis in linear if figure["layout"][axis].get("type") != "log"}
        found.append({axis: max(map(abs, ends)) for axis, ends in axes.spans(figure) if axis in linear})
    for axis, end in found[0].items():
        longest = max(ends.get(axis, 0.0) for ends in found)
        assert end >= min(longest, made.most.get(axis, longest)) / 8, axis


# A control of these shows in the table only; tests of their own compare tables, too, value by value.
ONLY_IN_TABLES = {"context_parallel.length_explorer", "expert_parallel.machine_explorer"}


@pytest.mark.parametrize("name", EXPLORERS)
def test_on_a_screen_no_bar_needs_a_pattern(name: str) -> None:
    """Each colour has one meaning in a legend; test_pages.py asks it of all states and of plain figures."""
    assert alike(EXPLORERS[name]().view(**EXPLORERS[name]().default()).plain()["figure"]) == []


@pytest.mark.parametrize("name", sorted(EXPLORERS.keys() - ONLY_IN_TABLES))
def test_every_control_changes_what_the_default_says(name: str) -> None:
    """Where every value must say something else, the explorer's own tests ask for that, too."""
    made = EXPLORERS[name]()
    default = made.default()
    said = made.view(**default).sentence
    for control in made.controls:
        others = (made.view(**{**default, control.name: value}) for value in control.values)
        assert any(other.sentence != said for other in others), control.name


@pytest.mark.parametrize(("static", "kind"), [("1", "HTML"), ("", "VBox")])
def test_the_build_gets_a_page_and_a_kernel_gets_widgets(
    monkeypatch: pytest.MonkeyPatch, static: str, kind: str
) -> None:
    shown: list[Any] = []
    monkeypatch.setenv("SHARDLAB_STATIC", static)
    monkeypatch.setattr(explorer, "display", shown.append)
    make()._ipython_display_()
    assert [type(x).__name__ for x in shown] == [kind]


# ---- plain figures in the build


def test_a_plain_figure_becomes_a_block_without_controls() -> None:
    before = pio.renderers.default
    page.show_plain_figures()
    try:
        figure = style.figure([go.Bar(x=["a"], y=np.array([2.5]))], alt="One bar of 2.5.")
        text = figure._repr_mimebundle_()["text/html"]
    finally:
        pio.renderers.default = before
    assert 'aria-label="One bar of 2.5."' in text
    assert "data-control" not in text
    (shown,) = page.unpacked(Reader(text).states, 1)
    assert shown["figure"]["data"][0]["y"] == [2.5]
    assert "2.500" in Reader(text).cells


def test_a_title_becomes_a_name_for_links() -> None:
    assert page.slug("Step time: DP & ZeRO-3") == "step-time-dp-zero-3"
    assert re.fullmatch(r"[\w-]+", page.slug("한국어 제목"))
