"""Picture and table of the buckets say what the costs of data parallelism predict."""

import html
import json
import re
from itertools import pairwise

import pytest

from shardlab.costs import step, units
from shardlab.costs.data_parallel import overlap
from shardlab.explorers import buckets

SHOWN = buckets.Buckets()
SENDINGS = [SHOWN.late, SHOWN.hidden]
DRAWN = json.loads(html.unescape(re.search(r'data-sendings="([^"]*)"', SHOWN.html())[1]))
LATE, HIDDEN = DRAWN["sent"]
END = sum(DRAWN["layers"])


def test_the_layers_take_the_whole_backward():
    assert pytest.approx(overlap.backward_seconds(SHOWN.hidden.run)) == END
    assert len(DRAWN["layers"]) == SHOWN.hidden.run.training.spec.num_layers + 2  # head, embeddings


def test_a_bucket_leaves_when_it_is_ready_or_after_backward():
    assert len(DRAWN["ready"]) == len(LATE) == len(HIDDEN) == buckets.NUM_BUCKETS
    assert DRAWN["ready"] == sorted(DRAWN["ready"])
    assert all(start >= ready for (start, _), ready in zip(HIDDEN, DRAWN["ready"], strict=True))
    assert HIDDEN[0][0] == DRAWN["ready"][0] < END
    assert LATE[0][0] == pytest.approx(END)


def test_the_network_sends_one_bucket_after_the_other_and_as_fast_in_both_ways():
    for sent in (LATE, HIDDEN):
        assert all(after >= end for (_, end), (after, _) in pairwise(sent))
    lengths = [end - start for start, end in LATE]
    assert [end - start for start, end in HIDDEN] == pytest.approx(lengths)


def test_what_is_saved_is_what_the_step_gets_shorter():
    late, hidden = (step.step(each.run) for each in SENDINGS)
    saved = late.seconds - hidden.seconds
    assert LATE[-1][1] - HIDDEN[-1][1] == pytest.approx(saved)
    assert DRAWN["saved"] == units.text(saved, "s")


@pytest.mark.parametrize("at", [0, 1], ids=("late", "hidden"))
def test_in_the_end_the_state_says_how_long_a_gpu_waits(at):
    taken, states, sent = step.step(SENDINGS[at].run), DRAWN["states"][at], DRAWN["sent"][at]
    assert sent[-1][1] - END == pytest.approx(taken.waiting, rel=1e-6)
    assert len(states) == buckets.NUM_BUCKETS + 1
    assert states[-1].startswith(f"all averaged {units.text(sent[-1][1], 's')} after")
    assert states[-1].endswith(f"a GPU waits {units.text(taken.waiting, 's')}")


def test_the_table_has_the_times_of_the_picture():
    _, *body, waits = buckets.rows(*SENDINGS)
    for row, ready, late, hidden in zip(body, DRAWN["ready"], LATE, HIDDEN, strict=True):
        assert row[1:] == [units.text(second, "s") for second in (ready, *late, *hidden)]
    assert [waits[3], waits[5]] == [each.waits for each in SENDINGS]


def test_without_javascript_all_numbers_stand_in_the_page():
    assert SHOWN.table() in SHOWN.html()
    assert "<details" in SHOWN.html()
