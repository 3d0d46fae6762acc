"""The drawings can be read on light and dark pages, and their numbers are those that the code computes."""

from __future__ import annotations

import re
from typing import Any

import drawings

from shardlab.costs import collectives, memory
from shardlab.costs.facts import models
from shardlab.costs.planning import planner
from shardlab.costs.published import studies
from shardlab.costs.units import GB, MiB
from shardlab.figures import style
from shardlab.files import measured
from shardlab.ranks.players.numbers import numbers
from shardlab.sharding.types.bugs import BUGS
from shardlab.sharding.types.redistribution import redistribution

ALL = sorted(drawings.IMAGES.glob("*.svg"))
LIGHT, DARK = "#FFFFFF", "#121212"  # the pages
WORDS = "#767676"  # outside of the book's pages, which give words their own colour
READABLE, VISIBLE = 4.5, 3  # to 1, WCAG 2.1, 1.4.3 and 1.4.11
INSIDE = """() => [...document.querySelectorAll("text")].map((text) => {
    text.style.pointerEvents = "none";
    const { x, y, width, height } = text.getBoundingClientRect(), ink = getComputedStyle(text).fill;
    const below = document.elementsFromPoint(x + width / 2, y + height / 2).map((each) => getComputedStyle(each).fill);
    const fill = below.find((each) => each.startsWith("rgb(") && each !== "rgb(0, 0, 0)");
    return [text.textContent, ink, fill ?? ""];
})"""


def contrast(one: str, other: str) -> float:
    low, high = sorted((style.luminance(one), style.luminance(other)))
    return (high + 0.05) / (low + 0.05)


def words(name: str) -> list[str]:
    """All texts of a drawing, in its order."""
    return re.findall(r"<text[^>]*>([^<]*)", (drawings.IMAGES / f"{name}.svg").read_text())


def test_a_drawing_has_the_colours_of_the_plots_and_the_words_of_the_page() -> None:
    palette = {*style.PALETTE, "none"}
    for drawing in ALL:
        text = drawing.read_text()
        assert f'font-size="20" color="{WORDS}"' in text.split("\n")[0], drawing.name
        used = set(re.findall(r' (?:fill|stroke)="([^"]+)"', text)) - {"currentColor", "white", "black"}
        assert used <= palette, drawing.name
        assert not re.findall(r'font-size="[\d.]+"', text)[1:], drawing.name  # others in em
    assert contrast(WORDS, LIGHT) >= READABLE
    assert contrast(WORDS, DARK) >= VISIBLE


def test_words_inside_a_drawing_read_well_on_their_fill(browser: Any) -> None:
    tab = browser.new_page(viewport={"width": 700, "height": 700})
    faint, inside = [], 0
    for drawing in ALL:
        tab.set_content(drawing.read_text())
        for words_there, ink, fill in tab.evaluate(INSIDE):
            if fill:
                inside += 1
                faint += [(drawing.stem, words_there)] if contrast(*map(from_rgb, (ink, fill))) < READABLE else []
    tab.close()
    assert not faint
    assert inside > 400


def from_rgb(color: str) -> str:
    """Write "rgb(42, 109, 232)" as "#2a6de8"."""
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", color)[:3])


def test_a_name_inside_a_drawing_is_its_own_on_every_page() -> None:
    names = [name for drawing in ALL for name in re.findall(r' id="([^"]+)"', drawing.read_text())]
    assert len(names) == len({*names}) > 0


def test_the_search_for_a_trillion_parameters() -> None:
    found = planner.search(studies.STUDIES["a trillion on 3,072 A100"].question)
    lost = dict(found.reasons)
    fitting, plans = len(found.fitting), found.count
    shown = [int(number.replace(",", "")) for number in re.findall(r"[\d,]+", " ".join(words("planner_search")))]
    assert fitting in shown
    assert set(lost.values()) <= set(shown)
    degrees = [count for count in lost.values() if count < 100]
    assert shown[:3] == [shown[1] + sum(degrees), shown[1], plans - sum(degrees)]


def test_two_programs_with_one_loss_and_gradients_that_one_guesses() -> None:
    (_, x), _ = BUGS[0].inputs
    wrong, right = (numbers(BUGS[0], each).tolist() for each in (False, True))
    loss = sum(a * b for a, b in zip(x, right[0], strict=True))  # which is linear in x
    shown = words("sharding_minute")
    assert [float(each) for each in shown if each.isdigit()] == [loss] * 4
    assert shown.count("?") == sum(map(len, (*wrong, *right)))


def test_one_tensor_in_four_states_and_what_leads_from_one_to_another() -> None:
    shown = words("sharding_states")
    numbers_shown = [int(each) for each in shown if each.isdigit()]
    values, gradients = numbers_shown[:14], numbers_shown[14:]
    for held, terms in (values, 10), (gradients, 4):  # two of each of four numbers, and two of them cut
        whole = held[:2]
        assert [a + b for a, b in zip(held[terms : terms + 2], held[terms + 2 : terms + 4], strict=True)] == whole
        held[terms : terms + 4] = whole * 2
        assert held == whole * 7
    arrows = [redistribution("tp", each) for each in ("I -> R", "S(d) -> R", "P -> S(d)", "P -> I")]
    verbs = [each.verb for each in arrows] + [each.mirror.verb for each in arrows]
    drawn = [each for each in shown if each == "nothing" or "-" in each]
    assert drawn == [verb.replace("_", "-") or "nothing" for verb in verbs]


def test_states_of_llama_3_8b_by_stage_of_zero() -> None:
    count = models.num_parameters(models.published("Llama 3 8B").spec)
    held = [sum(memory.model_states(count, dp=64, zero=stage).values()) / GB for stage in range(4)]
    shown = [float(each.removesuffix(" GB")) for each in words("zero_minute") if each.endswith("GB")]
    assert shown == [round(each) for each in held]


def test_a_ring_for_each_card_and_one_ring() -> None:
    whole = collectives.ring_all_reduce(256 * MiB, 32).sent / MiB
    shown = re.findall(r"(\d+) MiB", " ".join(words("collectives_servers")))
    assert shown == [f"{whole:.0f}", f"{whole / 8:.0f}"]


def test_the_meetings_of_a_start_wait_as_torch_does() -> None:
    minutes = {stage["name"]: stage["seconds"] / 60 for stage in measured.results("starts")["stages"]}
    meetings = ("static rendezvous", "process group, gloo", "process group, NCCL", "exit barrier")
    shown = re.findall(r"(\d+) min", " ".join(words("operations_minute")))
    assert shown == [f"{minutes[name]:.0f}" for name in meetings]
