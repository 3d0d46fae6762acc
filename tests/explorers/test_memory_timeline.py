"""Picture and table of a step's memory say what the costs of memory predict, with and without recomputation."""

import html
import json
import re

import pytest

from shardlab.costs import memory
from shardlab.costs.facts import hardware
from shardlab.costs.memory import overhead, timeline
from shardlab.explorers import memory_timeline

SHOWN = memory_timeline.MemoryTimeline()
BOTH = [SHOWN.keeping, SHOWN.again]
DRAWN = json.loads(html.unescape(re.search(r'data-step="([^"]*)"', SHOWN.html())[1]))
CAPACITY = hardware.chip(memory_timeline.CHIP).memory
NUM_LAYERS = SHOWN.keeping.training.spec.num_layers


def sums(step):
    """GB at each moment, as the picture adds them up."""
    return [sum(parts) / 1000 for parts in zip(*step["held"], strict=True)]


@pytest.mark.parametrize("at", [0, 1], ids=("keeping", "again"))
def test_what_is_drawn_are_the_moments_of_the_step(at):
    training, drawn = BOTH[at].training, DRAWN["steps"][at]
    moments = timeline.through_step(training)
    assert drawn["times"] == [round(moment.time, 2) for moment in moments]
    for moment, *parts in zip(moments, *drawn["held"], strict=True):
        held = {part: nbytes / 1e6 for part, nbytes in moment.held.items()}
        held["overhead"] = sum(overhead.overhead(training, sum(moment.held.values())).values()) / 1e6
        assert dict(zip(DRAWN["parts"], parts, strict=True)) == pytest.approx(held, abs=0.5)


def test_the_peak_is_the_models_and_where_only_activations_are_saved():
    for step, drawn in zip(BOTH, DRAWN["steps"], strict=True):
        most = sum(timeline.peak(timeline.through_step(step.training)).held.values())
        total = most + sum(overhead.overhead(step.training, most).values())
        assert sums(drawn)[drawn["peak"]] == max(sums(drawn)) == pytest.approx(total / 1e9, abs=0.005)
        assert f"{total / 1e9:.1f} of {CAPACITY / 1e9:.1f} GB" in drawn["verdict"]
        assert DRAWN["doing"][drawn["peak"]] == "backward of the head begins"
    keeping, again = (memory.kept(step.training)["activations"] for step in BOTH)
    drawn = [step["held"][list(DRAWN["parts"]).index("activations")][step["peak"]] for step in DRAWN["steps"]]
    assert drawn[0] - drawn[1] == pytest.approx((keeping - again) / 1e6, abs=1)


def test_recomputation_makes_the_step_fit_and_backward_longer():
    assert [max(sums(step)) <= CAPACITY / 1e9 for step in DRAWN["steps"]] == [False, True]
    assert ["not fit" in step["verdict"] for step in DRAWN["steps"]] == [True, False]
    (*_, keeping), (*_, again) = (step["times"] for step in DRAWN["steps"])
    assert again - keeping == pytest.approx(NUM_LAYERS)


def test_each_layer_runs_forward_in_turn_and_backward_in_reverse():
    numbers = memory_timeline.layers(SHOWN.keeping.moments)
    forward = [*range(1, NUM_LAYERS + 1)]
    backward = [layer for layer in reversed(forward) for _ in range(2)]
    assert [number for number in numbers if number] == forward + backward
    words = memory_timeline.doing(SHOWN.again.moments)
    assert words == DRAWN["doing"]  # the switch changes the bytes of a moment, not what is done
    assert len(set(words)) == len(words)
    last = f"backward of layer {NUM_LAYERS}"
    assert words[words.index(last) - 1] == f"{last} begins"


def test_back_and_next_stop_at_the_peak_and_at_whole_quarters_of_the_layers():
    stops = DRAWN["stops"]
    assert {0, len(DRAWN["doing"]) - 1} <= set(stops)
    assert {step["peak"] for step in DRAWN["steps"]} <= set(stops)
    assert [words for n, words in enumerate(DRAWN["doing"]) if n in stops and words.startswith("forward of layer")] == [
        f"forward of layer {layer}" for layer in (12, 24, 36, 48)
    ]


def test_the_table_has_the_numbers_of_the_picture():
    (_, *header), *rows = memory_timeline.rows(*BOTH)
    table = {name: cells for name, *cells in rows}
    for step, suffix in zip(DRAWN["steps"], ("", ", recomputing"), strict=True):
        for column, words in enumerate(header):
            at = DRAWN["doing"].index(words)
            for part, held in zip(DRAWN["parts"], step["held"], strict=True):
                shown = table.get(part + suffix, table[part])[column]
                assert float(shown) == pytest.approx(held[at] / 1000, abs=0.051)
            number, _, verdict = table[f"sum{suffix}"][column].partition(": ")
            assert float(number) == pytest.approx(sums(step)[at], abs=0.051)
            assert bool(verdict) == (sums(step)[at] > CAPACITY / 1e9)


def test_what_just_fits_is_not_too_much():
    assert memory_timeline.compared(CAPACITY) == "40.0"
    assert memory_timeline.compared(1.01 * CAPACITY) == "40.4: too much"


def test_without_javascript_all_numbers_stand_in_the_page():
    assert SHOWN.table() in SHOWN.html()
    assert "<details" in SHOWN.html()
