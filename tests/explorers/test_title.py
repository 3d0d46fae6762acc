"""The title page's picture, list and table say what the costs predict."""

import html
import re
from pathlib import Path

import pytest

from shardlab.costs import units
from shardlab.explorers import title

CUTS = title.Cuts()
ROOT = Path(__file__).parents[2]
SCENES = CUTS.scenes


def attributes(scene):
    """What title.js reads, by name."""
    opening = scene.item().partition(">")[0]
    return {name: html.unescape(text) for name, text in re.findall(r'data-(\w+)="([^"]*)"', opening)}


def test_the_model_outgrows_a_gpu_until_its_width_is_cut():
    assert [scene.step.fits for scene in SCENES] == [False, False, False, True, True, True, True]
    assert [scene.layout.ranks for scene in SCENES] == [1, 2048, 2048, 16384, 16384, 16384, 2048]


def test_every_step_trains_on_the_same_batch():
    assert {scene.step.run.tokens for scene in SCENES} == {title.BATCH}


def test_each_cut_repairs_what_the_words_say():
    alone, batch, copies, width, depth, tokens, _ = (scene.step for scene in SCENES)
    assert batch.seconds < alone.seconds / 1000
    assert batch.memory == pytest.approx(alone.memory, rel=0.001)
    assert copies.memory < batch.memory / 50
    assert max(width.parts, key=width.parts.get) == "ZeRO"
    assert depth.waiting / depth.seconds < width.waiting / width.seconds / 2
    unshared = title.predicted(title.MODEL, SCENES[4].layout, title.LONG)
    assert tokens.waiting / tokens.seconds < unshared.waiting / unshared.seconds / 2


@pytest.mark.parametrize("at", range(len(SCENES)))
def test_picture_list_and_table_have_the_numbers_of_the_step(at):
    scene, row, drawn = SCENES[at], title.rows(SCENES)[1 + at], attributes(SCENES[at])
    predicted = scene.step
    capacity = predicted.run.cluster.node.chip.memory
    assert row[:2] == [scene.cut, f"{scene.layout.ranks:,}"]
    assert row[2:4] == [units.text(predicted.memory, "B"), "yes" if predicted.fits else "no"]
    assert drawn["fits"] == f"{row[3]}: {row[2]} in {units.text(capacity, 'B')}"
    assert drawn["waits"] == row[5]
    assert float(drawn["held"]) == pytest.approx(predicted.memory / capacity, abs=1e-4)
    assert float(drawn["share"]) == pytest.approx(predicted.waiting / predicted.seconds, abs=1e-4)
    assert row[5].startswith(units.percent(predicted.waiting / predicted.seconds)) or at == 0


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.chapter)
def test_a_step_has_its_tiles_and_leads_to_its_chapter(scene):
    assert {len(scene.batch), len(scene.model)} == {64}
    assert set(scene.batch + scene.model) <= set("012")
    assert (ROOT / "book" / f"{scene.chapter}.md").exists()
    assert f'href="{scene.chapter}.html"' in scene.item()
    assert not re.search(r"[{}]", scene.item())


def test_without_javascript_all_numbers_stand_in_the_page():
    assert CUTS.table() in CUTS.html()
    assert "<details" in CUTS.html()
    assert CUTS.html().count("<li ") == len(SCENES)


def test_a_duration_is_told_in_hours_or_seconds():
    assert [title.duration(each) for each in (97_200.0, 51.5)] == ["27 hours", "51.5 s"]
