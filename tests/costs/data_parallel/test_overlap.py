"""Buckets and messages are those counted by hand, lose no byte, and end when the step says so."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import trace
from shardlab.costs import collectives, step
from shardlab.costs.data_parallel import overlap, scaling
from shardlab.costs.data_parallel.overlap import ModelPart
from shardlab.costs.facts import hardware, models, network, nodes, recipes
from shardlab.costs.programs import BOOK
from shardlab.costs.step import Run
from shardlab.costs.training import Training
from shardlab.costs.units import MiB
from shardlab.sharding.layout import Layout

PARTS = [
    ModelPart(parameters=10, seconds=1),
    ModelPart(parameters=30, seconds=3),
    ModelPart(parameters=20, seconds=0),
]
NAMES = ["GPT-2 small", "Llama 3 8B", "Llama 3.2 1B"]


def run(model="GPT-2 XL", link="PCIe 5.0 x16", ranks=8, bucket_bytes=25 * MiB, recipe=recipes.MIXED.name, **more):
    training = Training(
        spec=models.published(model).spec,
        layout=Layout(dp=ranks),
        recipe=recipes.recipe(recipe),
        sequence=512,
        program=replace(BOOK, bucket_bytes=bucket_bytes),
        **more,
    )
    cluster = network.uniform(max(2, ranks), hardware.link(link), hardware.chip("H100 SXM 80 GB"))
    return Run(training=training, cluster=cluster)


runs = st.builds(
    run,
    model=st.sampled_from(NAMES),
    link=st.sampled_from(list(hardware.LINKS)),
    ranks=st.integers(1, 20),
    bucket_bytes=st.sampled_from([25e6, 1e9, 1e12]),
    recipe=st.sampled_from(list(recipes.RECIPES)),
    microbatch=st.integers(1, 8),
    num_microbatches=st.integers(1, 3),
)


def test_buckets_by_hand():
    """60 gradients in three buckets: 20, 20 more, and the last 20 with the end of backward."""
    assert overlap.fill_buckets(PARTS, 3) == [1 + 3 * 10 / 30, 4, 4]


def test_messages_by_hand():
    """An all-reduce of 2.5 bytes takes 2.5 seconds; backward ends while the second bucket travels."""
    sent = overlap.send([2, 4, 4], 2.5, 2.5)
    assert [(m.ready, m.start, m.end) for m in sent] == [(2, 2, 4.5), (4, 4.5, 7), (4, 7, 9.5)]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 9)), min_size=1, max_size=6).filter(
        lambda parts: any(seconds for _, seconds in parts)
    ),
    st.integers(1, 40),
)
def test_a_bucket_is_ready_when_a_count_says_so(shapes, buckets):
    """The reference: hand out each gradient's share of the seconds one by one."""
    parts = [ModelPart(parameters=buckets * size, seconds=seconds) for size, seconds in shapes]
    flat = [part.seconds / part.parameters for part in parts for _ in range(part.parameters)]
    size = len(flat) // buckets
    counted = [sum(flat[: (i + 1) * size]) for i in range(buckets)]
    assert overlap.fill_buckets(parts, buckets) == pytest.approx(counted)


@given(runs)
def test_the_last_message_ends_when_the_step_says_so(one):
    """The step's closed form looks at a handful of messages; here are all of them."""
    sent, taken = overlap.messages(one), step.step(one)
    backward = overlap.backward_seconds(one)
    waited = max(0.0, sent[-1].end - backward) if sent else 0.0
    assert taken.waiting == pytest.approx(waited, abs=1e-12)
    assert all(m.start >= m.ready for m in sent)
    assert all(first.end <= second.start for first, second in pairwise(sent))
    held = models.num_parameters(one.training.spec) * one.training.recipe.gradients
    assert sum(m.nbytes for m in sent) == pytest.approx(held if sent else 0)


@pytest.mark.parametrize("change", [{"collectives": "switch"}, {"between_nodes": 0.4}, {"bucket_bytes": None}], ids=str)
def test_messages_travel_as_the_program_decides(change):
    """By the adding switch of a node, at the share of the cards that it reaches, in as many pieces as a step sends."""
    cluster = nodes.cluster("DGX H100", 1 if "collectives" in change else 2)
    late = scaling.without_overlap(run(ranks=cluster.gpus))
    asked = replace(late, cluster=cluster)
    changed = asked.by(replace(late.training.program, **change))
    for each in (asked, changed):
        assert step.step(each).waiting == pytest.approx(overlap.busy_seconds(each))
    assert abs(overlap.busy_seconds(changed) / overlap.busy_seconds(asked) - 1) > 0.1


@given(runs)
def test_overlap_is_never_slower(one):
    late = scaling.without_overlap(one)
    assert step.step(late).waiting == pytest.approx(overlap.busy_seconds(late))
    assert step.step(one).seconds <= step.step(late).seconds * (1 + 1e-9)


def test_accumulated_gradients_travel_once_and_hide_behind_the_last_microbatch():
    whole, pieces = (run(microbatch=8 // m, num_microbatches=m, link="100 GbE") for m in (1, 8))
    assert step.step(pieces).waiting > step.step(whole).waiting
    events = overlap.events(pieces)
    assert [event.op for event in events[:5]] == ["forward", "backward"] * 2 + ["forward"]
    first = next(event for event in events if event.kind == "communicate")
    assert first.start >= [event for event in events if event.op == "backward"][-1].start


def test_smaller_buckets_hide_more_until_latency_counts():
    waits = [step.step(run(bucket_bytes=nbytes, microbatch=16)).waiting for nbytes in (1e12, 400e6, 25e6)]
    assert waits == sorted(waits, reverse=True)
    assert step.step(run(bucket_bytes=1e5, microbatch=16)).waiting > 3 * waits[-1]


def test_the_timeline_is_the_step():
    one = run()
    events, taken = overlap.events(one, rank=3), step.step(one)
    computed = [event for event in events if event.kind == "compute"]
    assert computed[0].start == 0
    assert [event.op for event in computed] == ["forward", "backward", "update"]
    assert sum(event.seconds for event in computed) == pytest.approx(taken.computing)
    assert computed[-1].end == pytest.approx(taken.seconds)
    assert {event.rank for event in events} == {3}
    sent = trace.totals(events)["all_reduce"]
    ring = collectives.ring_all_reduce(2 * models.num_parameters(one.training.spec), 8)
    assert sent["wire_bytes"] == pytest.approx(ring.sent, rel=1e-6)
    last = max(event.end for event in events if event.kind == "communicate")
    assert last == pytest.approx(computed[-1].start)


@pytest.mark.parametrize(("tied", "name"), [(True, "Llama 3.2 1B"), (False, "Llama 3 8B")])
def test_a_tied_head_is_ready_last(tied, name):
    """Its gradient is complete when the embedding's is; an untied head's comes first."""
    spec = models.published(name).spec
    head, *layers, last = overlap.backward_parts(run(name))
    words = spec.vocab_size * spec.hidden_size
    assert head.parameters == spec.hidden_size + (not tied) * words
    assert (last.parameters, last.seconds) == (words, 0)
    assert head.seconds > 0
    assert len(layers) == spec.num_layers


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="buckets=0 must be a whole number of at least 1"):
        overlap.fill_buckets(PARTS, 0)
    with pytest.raises(ValueError, match="must have parameters, and seconds in backward"):
        overlap.fill_buckets([ModelPart(parameters=3, seconds=0.0)], 1)
