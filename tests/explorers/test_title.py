"""The title page's picture, list and table say what the costs predict, for each model and number of GPUs."""

import html
import json
import re
from pathlib import Path

import pytest

from shardlab.costs import units
from shardlab.explorers import title

CUTS = title.Cuts()
PAGE = CUTS.html()
DRAWN = json.loads(html.unescape(re.search('data-cuts="([^"]*)"', PAGE)[1]))
ROOT = Path(__file__).parents[2]
FIRST = CUTS.cases[title.MODELS[0], title.GPUS[0]]
EVERY_CASE = pytest.mark.parametrize("case", CUTS.cases, ids=str)
EVERY_SCENE = pytest.mark.parametrize(
    ("scene", "drawn"),
    [
        pytest.param(scene, drawn, id=f"{name} on {most}, {scene.knife}")
        for ((name, most), scenes), each in zip(CUTS.cases.items(), DRAWN, strict=True)
        for scene, drawn in zip(scenes, each, strict=True)
    ],
)


@EVERY_CASE
def test_the_model_outgrows_a_gpu_until_its_width_is_cut(case):
    scenes, most = CUTS.cases[case], case[1]
    assert [scene.step.fits for scene in scenes] == [False, False, False, True, True, True, True]
    assert [scene.layout.ranks for scene in scenes] == [1, 2048, 2048, most, most, most, 2048]
    assert {scene.step.run.tokens for scene in scenes} == {title.BATCH}


@EVERY_CASE
def test_each_cut_repairs_what_the_words_say(case):
    alone, batch, copies, width, depth, tokens, _ = (scene.step for scene in CUTS.cases[case])
    assert batch.seconds < alone.seconds / 500
    assert batch.memory == pytest.approx(alone.memory, rel=0.001)
    assert copies.memory < batch.memory / 50
    assert CUTS.cases[case][3].reason == title.WAITS["ZeRO"]
    assert depth.waiting / depth.seconds < width.waiting / width.seconds / 1.9
    unshared = title.predicted(case[0], CUTS.cases[case][4].layout, title.LONG)
    assert tokens.waiting / tokens.seconds < unshared.waiting / unshared.seconds


def test_the_first_model_is_close_before_its_width_is_cut_and_the_second_is_not():
    verdicts = [scenes[2].numbers["verdict"] for scenes in CUTS.cases.values()]
    assert verdicts == ["close", "close", "too much", "too much"]


@EVERY_SCENE
def test_picture_and_table_have_the_numbers_of_the_step(scene, drawn):
    step, row = scene.step, title.row(scene)
    capacity = units.text(step.run.cluster.node.chip.memory, "B")
    held = units.text(step.memory, "B")
    assert row[:3] == (scene.cut, scene.name, f"{scene.layout.ranks:,}")
    assert row[3:5] == (held, "yes" if step.fits else "no")
    assert row in CUTS.rows()
    assert drawn["fits"].replace("\u00a0", " ") == f"{row[4]}: {held} in {capacity}"
    assert drawn["waits"] == row[6]
    assert drawn["held"] == pytest.approx(scene.held, abs=1e-4)
    assert drawn["share"] == pytest.approx(step.waiting / step.seconds, abs=1e-4)
    assert (drawn["held"] < 1) == step.fits
    assert drawn["gpus"] == scene.layout.ranks <= drawn["most"]
    assert not re.search("[{}]", drawn["words"])


@EVERY_SCENE
def test_the_block_shows_how_much_of_the_model_a_gpu_holds(scene, drawn):
    layout, block = scene.layout, drawn["block"]
    assert len(block) == title.PLATES * title.COLUMNS
    assert ("width" in drawn["cuts"]) == (layout.tp == title.COLUMNS)
    assert ("depth" in drawn["cuts"]) == (layout.pp == title.PLATES)
    if layout.zero != title.CUTS_PARAMETERS:  # a GPU has the whole of its part
        assert block.count("2") == len(block) / layout.tp / layout.pp
        assert "1" not in block
        assert drawn["copies"] * layout.tp * layout.pp == layout.ranks
    else:
        assert 0 < block.count("2") < len(block) / 2
        assert drawn["copies"] == 1
    assert scene.cut == "One GPU" or scene.knife in drawn["cuts"]


def test_without_javascript_list_and_table_stand_in_the_page_and_lead_to_the_chapters():
    assert CUTS.table() in PAGE
    assert "<details" in PAGE
    for scene in FIRST:
        assert scene.item() in PAGE
        assert scene.told(scene.words) in scene.item()
        assert (ROOT / "book" / f"{scene.chapter}.md").exists()
        assert f'href="{scene.chapter}.html"' in scene.item()
    files = Path(title.__file__).parent.glob("title.*")
    assert len(PAGE) + sum(file.stat().st_size for file in files if file.suffix != ".py") < 60_000


def test_a_duration_is_told_in_hours_or_seconds():
    assert [title.duration(each) for each in (97_200.0, 51.5)] == ["27 hours", "51.5 s"]
