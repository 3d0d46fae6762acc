"""Tiles, gaps, piles, threads and table say what schedules and costs say, for every walk."""

import html
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from shardlab import schedules
from shardlab.costs import units
from shardlab.costs.pipeline import bubble, timeline
from shardlab.explorers import pipeline
from shardlab.explorers.pipeline import PARTS, PIECE, TICK, WORK

PICTURE = pipeline.Tiles()
DATA = json.loads(html.unescape(re.search(r'data-pipeline="([^"]*)"', PICTURE.html())[1]))
BOTH = list(zip(PICTURE.walks, DATA["walks"], strict=True))
EVERY_WALK = pytest.mark.parametrize(("walk", "drawn"), BOTH, ids=[f"{w.name}, {w.latency}" for w, _ in BOTH])
SCHEDULES = {
    name: schedules.make(name, 4, 8, 2 if name == "interleaved" else None) for name in pipeline.SHOWN
}


def tiles(drawn):
    """(lane, start, microbatch, part, kind, units of the action that it begins) of each tile."""
    for n, (start, lead) in enumerate(zip(drawn["starts"], drawn["leads"], strict=True)):
        microbatch, part = divmod(n // len(WORK), PARTS)
        yield drawn["lanes"][part], start, microbatch, part, WORK[n % len(WORK)], PIECE * int(lead)


def lane_of(drawn, lane):
    return sorted(tile[1:] for tile in tiles(drawn) if tile[0] == lane)


@EVERY_WALK
def test_read_from_left_to_right_a_lane_is_the_stages_order(walk, drawn):
    chunked, split = "chunked" in drawn["look"], "split" in drawn["look"]
    for lane, order in enumerate(SCHEDULES[walk.name].orders):
        found = []
        for _, microbatch, part, kind, length in lane_of(drawn, lane):
            if length:
                chunk = ".1" if chunked and part >= PARTS / 2 else ""  # what pipeline.js notches
                found.append(f"{'B' if kind == 'I' and not split else kind}{microbatch}{chunk}")
        assert found == list(map(str, order))


@EVERY_WALK
def test_tiles_and_gaps_fill_the_time_and_gaps_are_the_bubble(walk, drawn):
    end = max(drawn["starts"]) + PIECE
    for lane in range(pipeline.STAGES):
        gaps = [(start, stop) for stage, start, stop in drawn["gaps"] if stage == lane]
        covered = sorted([*gaps, *((start, start + PIECE) for start, *_ in lane_of(drawn, lane))])
        assert [0, *(stop for _, stop in covered)] == [*(start for start, _ in covered), end]
        waiting = sum(stop - start for start, stop in gaps)
        said = re.search(r"waits ([\d.]+) of ([\d.]+) ticks \((\d+) %\)", drawn["state"])
        assert [float(said[1]), float(said[2])] == [waiting / TICK, end / TICK]
        assert float(said[3]) == pytest.approx(100 * waiting / end, abs=0.5)
        takes = dict.fromkeys("FIW", TICK // SCHEDULES[walk.name].num_chunks)
        if walk.name == "ZB-V":
            assert walk.latency or all(start == 0 or stop == end for start, stop in gaps)
        elif not walk.latency:
            assert waiting == bubble.waiting(walk.name, 4, 8, takes)


@EVERY_WALK
def test_work_waits_for_what_it_needs(walk, drawn):
    at = {tile[2:5]: (tile[0], tile[1]) for tile in tiles(drawn)}
    for (microbatch, part, kind), (lane, start) in at.items():
        before = {"F": (part - 1, "F"), "I": (part + 1, "I"), "W": (part, "I")}[kind]
        home, needed = at.get((microbatch, *before), (lane, -PIECE))
        assert start >= needed + PIECE + (walk.latency if home != lane else 0)
        assert kind == "F" or start >= at[microbatch, part, "F"][1] + PIECE


@EVERY_WALK
def test_a_thread_passes_the_tiles_of_its_microbatch_and_carries_its_messages(walk, drawn):
    for microbatch, thread in enumerate(drawn["threads"]):
        own = {(lane, start) for lane, start, mine, *_ in tiles(drawn) if mine == microbatch}
        stops = [(thread[0][0], thread[0][1]), *((lane, start) for _, _, lane, start in thread)]
        assert all(stop in own for stop in stops[1:])
        assert all(lane == after for (_, _, lane, _), (after, *_) in pairwise(thread))
        assert all(start - end >= walk.latency * (lane != to) for lane, end, to, start in thread)
        sent = sum(lane != to for lane, _, to, _ in thread)
        assert sent == 2 * SCHEDULES[walk.name].num_crossings
        assert drawn["followed"][microbatch].endswith(f": {sent} messages.")
        span = min(start for _, start in own), max(start for _, start in own) + PIECE
        assert "from tick {:g} to {:g}:".format(*(time / TICK for time in span)) in drawn["followed"][microbatch]


@EVERY_WALK
def test_a_pile_has_what_began_forward_and_did_not_end_backward(walk, drawn):
    wide = 1 if "chunked" in drawn["look"] else 2
    lives = {}
    for lane, start, microbatch, part, *_ in tiles(drawn):
        lives.setdefault((lane, microbatch, part // wide), []).append(start)
    for time in range(DATA["last"] + 1):
        for lane, steps in enumerate(drawn["held"]):
            held = [amount for at, amount in steps if at <= time]
            alive = [key for key, life in lives.items() if min(life) <= time < max(life) + PIECE]
            assert (held or [0])[-1] == wide * sum(key[0] == lane for key in alive)
    fullest = max(timeline.play(SCHEDULES[walk.name]).peaks()) * wide / 2
    assert f"the fullest holds {fullest:g} of 8 microbatches." in drawn["state"]
    assert DATA["most"] == [8] * pipeline.STAGES  # GPipe's


def test_without_javascript_the_table_has_every_order_and_number():
    page = PICTURE.html()
    assert PICTURE.table() in page
    for name, schedule in SCHEDULES.items():
        at_once, slow = (re.search(r"waits (.*) \(", drawn["state"])[1] for walk, drawn in BOTH if walk.name == name)
        peaks = timeline.play(schedule).peaks(activation=1 / schedule.num_chunks)
        for stage, (order, peak) in enumerate(zip(schedule.orders, peaks, strict=True)):
            cells = [str(stage), " ".join(map(str, order)), at_once, slow, f"{peak:.3g}"]
            assert f'<th scope="row">{name}</th>' + "".join(f"<td>{cell}</td>" for cell in cells) in page
    files = Path(pipeline.__file__).parent.glob("pipeline.*")
    assert len(page) + sum(file.stat().st_size for file in files if file.suffix != ".py") < 60_000


def test_the_chart_draws_every_action():
    run = timeline.play(SCHEDULES["interleaved"])
    bars = [bar for bar in pipeline.chart(run, alt="").data if bar.type == "bar"]
    assert sum(len(bar.x) for bar in bars) == sum(map(len, run.schedule.orders))


@pytest.mark.parametrize("state", pipeline.degrees().states(), ids=str)
def test_the_degrees_have_the_bubble_of_the_formula(state):
    view = pipeline.degrees().view(**state)
    p, m = state["stages"], state["microbatches"]
    if state["schedule"] in ("GPipe", "1F1B"):
        assert f"<b>{units.percent((p - 1) / (m + p - 1))} of all time is bubble</b>" in view.sentence
    held = {"GPipe": m, "1F1B": min(p, m)}.get(state["schedule"])
    assert held is None or f"of {held} of {m} microbatches" in view.sentence
