"""A data-parallel step is the sum of its parts, and waits as long as its messages stay exposed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab import trace
from shardlab.costs import collectives, data_parallel, memory
from shardlab.costs.compute import flops
from shardlab.costs.data_parallel import DataParallelRun, step
from shardlab.costs.facts import hardware, models, recipes

RUN = DataParallelRun(
    spec=models.published("GPT-2 XL").spec,
    chip=hardware.chip("H100 SXM 80 GB"),
    link=hardware.link("PCIe 5.0 x16"),
    ranks=8,
    batch_per_rank=8,
)
runs = st.builds(
    DataParallelRun,
    spec=st.sampled_from([models.published(name).spec for name in ("GPT-2 small", "Llama 3.2 1B", "Llama 3 8B")]),
    chip=st.sampled_from(list(hardware.CHIPS.values())),
    link=st.sampled_from(list(hardware.LINKS.values())),
    ranks=st.integers(1, 300),
    batch_per_rank=st.integers(1, 64),
    sequence=st.integers(1, 1024),
    utilisation=st.floats(0.05, 1),
    bucket_bytes=st.sampled_from([25e6, 1e9, 1e12]),
    overlap=st.booleans(),
    recipe=st.sampled_from(list(recipes.RECIPES.values())),
)


def test_a_step_by_hand():
    """One bucket, no overlap: FLOPs at 40 % of 989.4e12 FLOP/s, 28 bytes a parameter at 3.35e12 bytes/s, one ring."""
    result = step(replace(RUN, bucket_bytes=1e12, overlap=False))
    count = 1_557_611_200
    assert result.forward == sum(flops.forward(RUN.spec, batch=8, sequence=1024).values()) / (0.4 * 989.4e12)
    assert result.backward == pytest.approx(2 * result.forward)
    assert result.update == pytest.approx(28 * count / 3.35e12)
    ring = 14 * 5.7e-6 + 2 * 7 / 8 * (2 * count) / (0.8 * 32e9 * 16 * 128 / 130 / 8)
    assert result.communication == result.exposed == pytest.approx(ring)
    assert result.seconds == pytest.approx(result.forward + result.backward + result.update + ring)
    assert result.tokens_per_second == pytest.approx(8 * 8 * 1024 / result.seconds)


@given(runs)
def test_the_parts_of_a_step_are_the_step(run):
    result = step(run)
    assert sum(result.parts.values()) == pytest.approx(result.seconds)
    assert 0 < result.efficiency <= 1
    assert result.exposed <= result.communication * (1 + 1e-9) or run.ranks == 1
    assert sum(message.nbytes for message in result.messages) == pytest.approx(
        run.gradient_bytes if run.ranks > 1 else 0
    )
    assert result.fits == (sum(result.memory.values()) <= run.chip.memory)


@given(runs)
def test_overlap_is_never_slower(run):
    with_overlap, without = (step(replace(run, overlap=choice)) for choice in (True, False))
    assert with_overlap.seconds <= without.seconds * (1 + 1e-9)
    assert without.exposed == pytest.approx(without.communication)


def test_accumulated_gradients_travel_once_and_hide_behind_the_last_microbatch():
    whole, pieces = step(RUN), step(replace(RUN, num_microbatches=8))
    assert pieces.communication == pytest.approx(whole.communication)
    assert pieces.compute == whole.compute
    assert pieces.exposed > whole.exposed
    assert pieces.exposed == pytest.approx(step(replace(RUN, batch_per_rank=1)).exposed)
    assert pieces.memory["activations"] == pytest.approx(whole.memory["activations"] / 8, rel=1e-5)
    events = data_parallel.events(pieces)
    assert [event.op for event in events[:5]] == ["forward", "backward"] * 2 + ["forward"]
    assert events[-1].end == pytest.approx(pieces.seconds)
    first = next(event for event in events if event.kind == "communicate")
    assert first.start >= [event for event in events if event.op == "backward"][-1].start


def test_one_rank_talks_to_nobody():
    alone = step(replace(RUN, ranks=1))
    assert (alone.communication, alone.exposed, alone.efficiency, alone.messages) == (0, 0, 1, ())


def test_a_perfect_network_costs_nothing():
    perfect = replace(RUN.link, bandwidth=1e30, latency=0.0)
    assert step(replace(RUN, link=perfect)).efficiency == pytest.approx(1)
    assert step(replace(RUN, link=perfect, overlap=False)).efficiency == pytest.approx(1)


def test_a_slow_network_costs_what_its_bytes_take():
    slow = replace(RUN.link, bandwidth=1e6, latency=0.0)
    ring = collectives.ring_all_reduce(RUN.gradient_bytes, 8).seconds(replace(slow, bandwidth=0.8e6))
    assert step(replace(RUN, link=slow)).seconds == pytest.approx(ring, rel=0.001)


def test_smaller_buckets_hide_more_until_latency_counts():
    exposed = [step(replace(RUN, bucket_bytes=nbytes)).exposed for nbytes in (1e12, 400e6, 25e6)]
    assert exposed == sorted(exposed, reverse=True)
    late = replace(RUN.link, latency=1e-3)
    assert step(replace(RUN, link=late, bucket_bytes=1e6)).exposed > step(replace(RUN, link=late)).exposed


def test_memory_does_not_fall_as_ranks_join_unless_states_are_cut():
    """Every rank holds a whole replica."""
    few, many = replace(RUN, ranks=4), replace(RUN, ranks=512)
    assert step(few).memory == step(many).memory
    totals = [memory.total(data_parallel.training(many, zero=stage)) for stage in range(4)]
    assert totals[0] == sum(step(many).memory.values())
    assert totals == sorted(totals, reverse=True)
    assert len(set(totals)) == 4


def test_bytes_of_gradients_follow_the_recipe():
    fp32 = replace(RUN, recipe=recipes.recipe("mixed, fp32 gradients"))
    assert fp32.gradient_bytes == 2 * RUN.gradient_bytes == 4 * 1_557_611_200
    assert step(fp32).communication > step(RUN).communication


def test_the_timeline_is_the_step():
    result = step(RUN)
    events = data_parallel.events(result, rank=3)
    computed = [event for event in events if event.kind == "compute"]
    assert computed[0].start == 0
    assert [event.op for event in computed] == ["forward", "backward", "update"]
    assert sum(event.seconds for event in computed) == pytest.approx(result.compute)
    assert computed[-1].end == pytest.approx(result.seconds)
    assert {event.rank for event in events} == {3}
    talked = trace.totals(events)["all_reduce"]
    assert talked["count"] == len(result.messages)
    assert talked["seconds"] == pytest.approx(result.communication)
    ring = collectives.ring_all_reduce(RUN.gradient_bytes, 8)
    assert talked["wire_bytes"] == pytest.approx(ring.sent, rel=1e-6)
    last = max(event.end for event in events if event.kind == "communicate")
    assert last == pytest.approx(result.seconds - result.update)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": 0}, "ranks=0 must be a whole number of at least 1"),
        ({"batch_per_rank": 0}, "batch_per_rank=0 must be a whole number of at least 1"),
        ({"sequence": 2048}, "use at most 1024"),
        ({"num_microbatches": 3}, "use a divisor of 8"),
        ({"utilisation": 40}, r"use 0\.4 for 40 %"),
        ({"link_utilisation": 0}, "share of the peak"),
    ],
)
def test_bad_input_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(RUN, **changes)
