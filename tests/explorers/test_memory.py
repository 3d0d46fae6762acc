"""The explorers of memory: figure, table and sentence agree on what is held and on whether it fits."""

import pytest

from shardlab.costs.facts import hardware, models
from shardlab.costs.memory import timeline
from shardlab.costs.training import Training
from shardlab.explorers import memory as explorers
from tests.explorers.views import number

DEVICE, CLUSTER = explorers.one_device(), explorers.cluster()
SOME = DEVICE.states()[::29]  # prime steps: every value of every control occurs
SOME_CLUSTERS = CLUSTER.states()[::31]


@pytest.mark.parametrize(("explorer", "some"), [(DEVICE, SOME), (CLUSTER, SOME_CLUSTERS)], ids=["device", "cluster"])
def test_some_states_try_every_value(explorer, some):
    for control in explorer.controls:
        assert {state[control.name] for state in some} == set(control.values)


def parts_of(view):
    """Label of a column -> part -> bytes, as the table says."""
    (_, *labels), *rows = view.table
    columns = {label: {row[0]: number(row[1 + i]) for row in rows} for i, label in enumerate(labels)}
    for parts in columns.values():
        assert sum(parts.values()) == pytest.approx(2 * parts["sum"], rel=0.02)
    return columns


def drawn(view):
    """Label of a bar -> GB, as the figure has it."""
    heights = {}
    for bar in view.figure.data:
        if bar.type == "bar":
            labels, values = (bar.y, bar.x) if bar.orientation == "h" else (bar.x, bar.y)
            for label, value in zip(labels, values, strict=True):
                heights[label] = heights.get(label, 0) + value
    return heights


@pytest.mark.parametrize("state", SOME, ids=str)
def test_one_device_agrees_with_itself(state):
    view = DEVICE.view(**state)
    longer = state["sequence"] > models.published(state["model"]).spec.context_length
    assert ("with the 1,024 tokens that it reads at most" in view.sentence) == longer
    columns, capacity = parts_of(view), hardware.chip(state["chip"]).memory
    fits = drawn(view)["as it is"] * 1e9 <= capacity
    assert ("<b>fits</b>" in view.sentence, "<b>does not fit</b>" in view.sentence) == (fits, not fits)
    assert list(columns) == ["as it is"] + ["after the change"] * (not fits)
    if not fits:
        assert drawn(view)["after the change"] * 1e9 <= capacity
        assert " would fit: " in view.sentence
    assert [*drawn(view)] == ["as it is", "after the change"], "the second row stays, empty or not"
    for label, gigabytes in drawn(view).items():
        told = columns[label]["sum"] if label in columns else 0
        assert gigabytes * 1e9 == pytest.approx(told, rel=0.006)


@pytest.mark.parametrize("state", SOME_CLUSTERS, ids=str)
def test_a_cluster_agrees_with_itself(state):
    view = CLUSTER.view(**state)
    if state["model"] == "GPT-2 XL" and state["tp"] > 1:
        assert "<b>Impossible</b>: 25 heads" in view.sentence
        assert "use tp = 1, 5, 25" in view.sentence
        return
    heights = drawn(view)
    assert list(heights) == [str(stage) for stage in range(state["pp"])]
    assert ("<b>fits</b>" in view.sentence) == (max(heights.values()) <= 80)
    gpus = state["tp"] * state["pp"] * state["dp"]
    assert f"{state['model']} on {gpus:,} GPU" in view.sentence
    columns = parts_of(view)
    assert heights["0"] * 1e9 == pytest.approx(columns["stage 0"]["sum"], rel=0.006)


def test_the_chapters_story():
    """GPT-2 XL: too much for a 4090 with all scores; 16 sequences too much for an H100, until fewer go at a time."""
    small = DEVICE.view(**{**DEVICE.default(), "chip": "RTX 4090 24 GB", "microbatch": 1})
    assert "<b>does not fit</b>: 24.9 GB of states" in small.sentence
    large = DEVICE.view(**DEVICE.default())
    assert "FlashAttention" in large.sentence


@pytest.mark.parametrize("model", ["GPT-2 small", "Llama 3.2 1B"])
def test_one_device_holds_the_peak_of_the_curve(model):
    """Bars and verdict are those of a step of two microbatches, moment by moment."""
    chosen = {"model": model, "microbatch": 1, "sequence": 1024, "kept": "everything, all scores too"}
    step = Training(spec=models.published(model).spec, num_microbatches=2, sequence=1024, attention="stored")
    held = timeline.peak(timeline.through_step(step)).held
    shown = parts_of(DEVICE.view(**{**DEVICE.default(), **chosen}))["as it is"]
    assert shown["sum"] - shown["overhead"] == pytest.approx(sum(held.values()), rel=0.006)


def test_states_do_not_fall_as_replicas_join_unless_they_are_cut():
    default = {**CLUSTER.default(), "zero": 0}
    columns = [parts_of(CLUSTER.view(**{**default, "dp": dp}))["stage 0"] for dp in (1, 8, 64)]
    assert len({parts["optimizer"] for parts in columns}) == 1
    cut = [parts_of(CLUSTER.view(**{**default, "zero": 1, "dp": dp}))["stage 0"]["optimizer"] for dp in (1, 8, 64)]
    assert cut[0] == pytest.approx(8 * cut[1], rel=0.01)
    assert cut[1] == pytest.approx(8 * cut[2], rel=0.01)
