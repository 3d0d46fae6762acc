"""The least invasive change that fits is found, and does as much work."""

from dataclasses import replace

import pytest

from shardlab.costs import memory
from shardlab.costs.facts import models
from shardlab.costs.planning import remedies
from shardlab.costs.programs import NEMO_2024
from shardlab.costs.training import Training
from shardlab.model.experts import Experts
from shardlab.sharding.layout import Layout

GB = 1e9
XL = Training(spec=models.published("GPT-2 XL").spec, microbatch=8, attention="stored")
LLAMA = Training(spec=models.published("Llama 3 8B").spec, sequence=2048)
# An eighth of Mixtral 8x7B's layers.
EIGHT = Experts(num_experts=8, per_token=2, expert_size=14_336)
MIXTURE = replace(LLAMA, spec=replace(LLAMA.spec, num_layers=4, ffn_size=None, experts=EIGHT))


def test_what_fits_needs_no_change():
    way = remedies.smallest(XL, 1000 * GB)
    assert way == remedies.Remedy(training=XL, changes=(), nbytes=memory.total(XL))
    held = memory.per_rank(XL)
    words = f"{held['overhead'] / GB:.2f} GB of overhead with a margin of 5 % included"
    assert remedies.verdict(XL, 1000 * GB) == f"fits: {round(memory.total(XL) / GB, 1)} GB of 1 TB, {words}"


def test_a_verdict_follows_the_margin():
    bare, safer = (replace(XL, program=replace(NEMO_2024, margin=margin)) for margin in (0.0, 0.2))
    assert memory.total(safer) - memory.total(XL) == pytest.approx(0.15 * memory.total(bare), rel=0.02)
    assert "with a margin of 20 % included" in remedies.verdict(safer, 1000 * GB)
    assert "of overhead with a margin of 20 % in 24 GB" in remedies.verdict(safer, 24 * GB)


@pytest.mark.parametrize(
    ("training", "capacity", "changes"),
    [
        (XL, 60, ("FlashAttention",)),
        (replace(XL, attention="flash"), 50, ("4 sequences at a time",)),
        (replace(LLAMA, layout=Layout(dp=8)), 80, ("ZeRO-1 over 8 ranks",)),
        (replace(LLAMA, layout=Layout(dp=8)), 40, ("ZeRO-3 over 8 ranks",)),
        (replace(LLAMA, layout=Layout(tp=4)), 39, ("sequence parallelism",)),
        (replace(XL, microbatch=1, attention="flash"), 28, ("full recomputation",)),
        (LLAMA, 100, ("Adam in 8 bits",)),
        (LLAMA, 80, ("tp=2",)),
        (replace(XL, layout=Layout(dp=2), microbatch=1), 8, ("dp=8", "ZeRO-3 over 8 ranks", "full recomputation")),
    ],
    ids=str,
)
def test_the_least_invasive_change_is_found(training, capacity, changes):
    way = remedies.smallest(training, capacity * GB)
    assert way is not None
    assert way.changes == changes
    assert memory.total(training) > capacity * GB >= way.nbytes == memory.total(way.training)
    words = remedies.verdict(training, capacity * GB)
    assert all(change in words for change in changes)
    assert f"{changes[-1]} would fit: " in words


@pytest.mark.parametrize("name", ["GPT-2 XL", "Llama 3 8B", "Llama 3 70B", "GPT-3 175B", "Llama 3 405B"])
@pytest.mark.parametrize("capacity", [24, 80])
def test_every_way_fits_and_does_as_much_work(name, capacity):
    """The same model, sequence, and at least as many sequences in a step."""
    training = Training(spec=models.published(name).spec, microbatch=4, sequence=1024, attention="stored")
    way = remedies.smallest(training, capacity * GB)
    assert way is not None
    assert memory.total(way.training) == way.nbytes <= capacity * GB
    changed = way.training
    assert (changed.spec, changed.sequence) == (training.spec, training.sequence)
    assert changed.microbatch * changed.num_microbatches >= 4
    assert len(way.changes) == len(set(way.changes))
    if changed.layout.pp > 1:
        assert changed.num_microbatches >= changed.layout.pp


def test_more_ranks_come_last_and_are_few():
    """Half the ranks hold at least half of 16 bytes for each parameter, which is too much already."""
    way = remedies.smallest(replace(LLAMA, spec=models.published("Llama 3 70B").spec), 80 * GB)
    assert way is not None
    ranks = way.training.layout.ranks
    assert 16 * 70.6 / ranks < 80 < 16 * 70.6 / (ranks / 2) + 1


def test_some_things_never_fit():
    assert remedies.verdict(replace(XL, microbatch=1), 0.02 * GB).endswith("no change that was tried helps")


def test_the_sentence_names_the_stage_that_is_full():
    training = replace(LLAMA, layout=Layout(pp=2), num_microbatches=8)
    words = remedies.verdict(training, 40 * GB)
    assert words.startswith("does not fit: ")
    assert f" in 40 GB (stage {memory.worst_stage(training)}, the fullest); " in words
    assert " of 400 GB (stage 0, the fullest), " in remedies.verdict(training, 400 * GB)


@pytest.mark.parametrize("name", ["GPT-2 small", "Llama 3 8B", "GPT-3 13B", "a mixture"])
@pytest.mark.parametrize("layout", [Layout(), Layout(dp=2), Layout(tp=2, pp=2)], ids=str)
def test_no_way_is_passed_over_as_hopeless(name, layout):
    spec = MIXTURE.spec if name == "a mixture" else models.published(name).spec
    training = Training(spec=spec, layout=layout, microbatch=2, sequence=1024, attention="stored")
    every = remedies._changes(training, lambda _: True)
    changes, changed = next(every)
    for share in (0.9, 0.5, 0.3, 0.2, 0.1):
        capacity = share * memory.total(training)
        while changes is not None and memory.total(changed) > capacity:
            changes, changed = next(every, (None, None))
        found = remedies.smallest(training, capacity)
        assert changes == (found and found.changes)


@pytest.mark.parametrize(
    ("layout", "capacity", "changes"),
    [
        (Layout(dp=8, zero=3), 31, ("ep=2",)),
        (Layout(dp=8, zero=3), 28, ("ep=8",)),
        (Layout(dp=8, zero=3, ep=2), 30, ("ep=4",)),
        (Layout(dp=2), 79, ("ZeRO-1 over 2 ranks",)),
        (Layout(dp=2), 75.5, ("ep=2",)),
        (Layout(dp=2), 70, ("ZeRO-1 over 2 ranks", "ep=2")),
    ],
    ids=str,
)
def test_experts_are_dealt_to_ranks_of_dp(layout, capacity, changes):
    way = remedies.smallest(replace(MIXTURE, layout=layout), capacity * GB)
    assert way is not None
    assert way.changes == changes
    assert memory.total(way.training) == way.nbytes <= capacity * GB


def test_whole_experts_are_dealt_to_no_more_ranks_than_there_are_experts():
    whole = {"sequence_parallel": True, "whole_experts": True}
    for layout, more in [
        (Layout(tp=2, **whole), ["tp=4", "tp=8"]),
        (Layout(dp=2, ep=2, tp=2, **whole), ["tp=4"]),
        (Layout(dp=4, ep=4, tp=2), ["tp=4", "tp=8"]),
    ]:
        options = dict(remedies._tensor(replace(MIXTURE, layout=layout)))
        assert list(options) == more
        assert all(each.layout.whole_experts == layout.whole_experts for each in options.values())
    many = replace(MIXTURE, layout=Layout(dp=4, tp=4, **whole))
    assert [words for words, _ in remedies._experts(many)] == ["ep=2"]


def test_only_a_long_text_is_shared_between_ranks():
    """Of a text of 65,536 tokens a second rank takes half; of one of 8192 it would take what is too short to share."""
    spec = replace(models.published("Llama 3 8B").spec, context_length=65_536)
    states = replace(LLAMA.recipe, parameters=1, gradients=1, optimizer=0)
    for length, change in ((65_536, "cp=2"), (8192, "tp=2")):
        long = Training(spec=spec, sequence=length, recipe=states, recomputation="full")
        way = remedies.smallest(long, 0.9 * memory.total(long))
        assert way is not None
        assert change in way.changes
