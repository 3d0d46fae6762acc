"""Picture and table of the race say what plans and costs predict, and nothing moves without the reader."""

import html
import json
import re
from pathlib import Path

import pytest

from shardlab.costs import collectives, units
from shardlab.exchanges import ADD
from shardlab.explorers import race

LANES = race.lanes()
FOLDER = Path(race.__file__).parent
BUFFER = race.ELEMENT * race.PARAMETERS
FORMULAS = [collectives.ALL_REDUCES[name](BUFFER, race.NUM_RANKS) for name in ("naive", "ring")]
BOTH = pytest.mark.parametrize(("lane", "formula"), [*zip(LANES, FORMULAS, strict=True)], ids=("naive", "ring"))


def drawn(lane):
    """What race.js reads of a lane."""
    found = re.findall(r'data-lane="([^"]*)"', race.Race().html())
    return json.loads(html.unescape(found[LANES.index(lane)]))


@BOTH
def test_the_clock_is_that_of_the_formula(lane, formula):
    assert lane.ends[-1] == pytest.approx(formula.seconds(race.LINK), rel=1e-6)
    assert len(lane.ends) == 1 + formula.steps
    assert drawn(lane)["ends"] == lane.ends
    assert drawn(lane)["state"][-1] == f"finished after {formula.seconds(race.LINK):.2f} s"


@BOTH
def test_the_busiest_link_carries_the_bytes_of_the_formula(lane, formula):
    assert lane.carried[0] == (0, 0)
    assert lane.carried[-1] == pytest.approx((formula.received, formula.sent), rel=1e-6)
    into, out = (units.text(nbytes, "B") for nbytes in lane.carried[-1])
    assert drawn(lane)["link"][-1] == f"{into} in, {out} out"
    assert drawn(lane)["share"] == sorted(drawn(lane)["share"])


def test_rank_0_first_only_receives():
    assert LANES[0].carried[:4] == [(BUFFER * messages, 0) for messages in range(4)]


def test_a_full_meter_is_the_busiest_of_all_links():
    assert [drawn(lane)["share"][-1] for lane in LANES] == [1, 0.5]


@pytest.mark.parametrize("lane", LANES, ids=("naive", "ring"))
def test_what_a_message_brings_is_what_the_receiver_has_more(lane):
    held, moves = drawn(lane)["held"], drawn(lane)["moves"]
    for before, after, step, planned in zip(held, held[1:], moves, lane.plan.steps, strict=False):
        expected = [list(row) for row in before]
        for (source, to, start, stop), move in zip(step, planned, strict=True):
            assert stop == start + 1  # the picture moves one tile in a message
            own = before[to][start] if move.action == ADD else 0
            expected[to][start] = own + before[source][start]
        assert after == expected
    assert {count for row in held[-1] for count in row} == {race.NUM_RANKS}


def test_all_links_of_the_ring_are_busy_and_one_pair_of_the_others():
    naive, ring = (drawn(lane)["moves"] for lane in LANES)
    assert {len(step) for step in naive} == {1}
    assert {len(step) for step in ring} == {race.NUM_RANKS}


def test_the_table_has_a_row_for_each_moment_at_which_something_arrives():
    header, *body = race.rows(LANES)
    assert header == ["clock", "Through rank 0", "its busiest link", "Around a ring", "its busiest link"]
    assert len({row[0] for row in body}) == len(body) == len(race.moments(LANES)) == 12
    assert body[0][1::2] == ["0 of 6 steps done"] * 2
    assert body[4] == ["0.32 s", LANES[0].state(1), LANES[0].link(1), LANES[1].state(4), LANES[1].link(4)]
    assert body[-1][1::2] == [lane.state(6) for lane in LANES]


def test_without_javascript_all_numbers_stand_in_the_page():
    page = race.Race().html()
    assert race.Race().table() in page
    assert "<details" in page
    assert json.loads(re.search(r'data-moments="([^"]*)"', page)[1]) == race.moments(LANES)


@pytest.mark.parametrize("own", ["title", "race", "buckets", "wires"])
def test_nothing_moves_without_the_reader(own):
    names = ("moving", own)
    script, style = ("".join((FOLDER / f"{name}.{kind}").read_text() for name in names) for kind in ("js", "css"))
    if own == "title":  # its pieces fly after a pull
        assert "if (flies && it.cuts.length && matchMedia" in script
        script = script.replace(".animate(", "")
    assert not re.search(r"setTimeout|setInterval|requestAnimationFrame|animate|fetch\(|import", script)
    assert "@keyframes" not in style
    without = re.sub(r"@media \(prefers-reduced-motion: no-preference\) \{(?:[^{}]*\{[^{}]*\})*\s*\}", "", style)
    assert "transition" in style
    assert "transition" not in without
