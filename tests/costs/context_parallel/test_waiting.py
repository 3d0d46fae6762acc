"""What context parallelism adds to a step: laws of the ring, and the sums of `ways` where nothing is hidden."""

import dataclasses

import pytest

from shardlab.costs import context_parallel as costs
from shardlab.costs.facts import hardware, models
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

SIZES = costs.SplitAttention(length=65_536, ranks=8, heads=32, kv_heads=8, head_size=128)
LINK = dataclasses.replace(hardware.link("InfiniBand NDR"), latency=0.0).reached


def of_ranks(n):
    return dataclasses.replace(SIZES, ranks=n)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("step", ["forward", "backward"])
def test_the_steps_of_a_ring_carry_what_it_sends_in_as_many_turns_as_ranks(ranks, step):
    sends = list(costs.ring_steps(of_ranks(ranks), backward=step == "backward"))
    assert sum(nbytes for nbytes, _ in sends) == costs.sent_bytes(of_ranks(ranks), "ring")[step]
    assert sum(hidden for _, hidden in sends) == ranks
    assert [nbytes for nbytes, hidden in sends if not hidden] == [2 * SIZES.block * 8 / ranks] * (
        step == "backward" and ranks > 1
    )


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_with_no_attention_to_hide_behind_a_rank_waits_for_every_byte(ranks):
    a = of_ranks(ranks)
    sent = costs.sent_bytes(a, "ring")
    waited = costs.exposed_seconds(a, "ring", LINK, forward=0.0, backward=0.0, again=True)
    assert waited == pytest.approx((2 * sent["forward"] + sent["backward"]) / LINK.bandwidth)


def test_long_attention_hides_all_but_the_way_home_of_the_last_gradient():
    home = 2 * SIZES.block / LINK.bandwidth
    assert costs.exposed_seconds(SIZES, "ring", LINK, forward=100.0, backward=250.0) == home
    assert costs.exposed_seconds(of_ranks(1), "ring", LINK, forward=1.0, backward=1.0) == 0


@pytest.mark.parametrize("link", [LINK, hardware.link("NVLink 4").reached], ids=["no latency", "NVLink 4"])
def test_from_hiding_tokens_on_forward_waits_for_nothing(link):
    """The inequality of the chapter, and a ring whose sends are timed one by one, turn over at the same length."""
    spec = dataclasses.replace(models.published("Llama 3 8B").spec, context_length=2**20)
    run = Training(spec=spec, layout=Layout(cp=8), sequence=65_536)
    rate = 495e12
    sends = {"bandwidth": link.bandwidth, "latency": link.latency}
    tokens = costs.hiding_tokens(costs.of(run), rate=rate, causal=True, **sends)
    without = 2 * 8 / 32 * rate / link.bandwidth
    assert tokens == pytest.approx(without) if not link.latency else tokens > 1.2 * without
    for share, waits in ((1.01, False), (0.99, True)):
        a = dataclasses.replace(costs.of(run), length=round(8 * share * tokens))
        computing = 4 * a.heads * a.head_size * a.length**2 / 2 / 8 / rate
        waited = costs.exposed_seconds(a, "ring", link, forward=computing, backward=100.0)
        assert (waited > link.latency + 2 * a.block / link.bandwidth) == waits


def test_gathered_keys_are_waited_for_whole_and_gathered_again_in_backward():
    sent = costs.sent_bytes(SIZES, "gathered")
    for again in (False, True):
        waited = costs.exposed_seconds(SIZES, "gathered", LINK, forward=9.0, backward=9.0, again=again)
        expected = (2 + again) * sent["forward"] + sent["backward"]
        assert waited == pytest.approx(expected / LINK.bandwidth)


@pytest.mark.parametrize("strategy", costs.PROGRAMS)
def test_a_layer_at_work_holds_the_blocks_of_other_ranks(strategy):
    spec = models.published("Llama 3 8B").spec
    run = Training(spec=spec, layout=Layout(cp=4, tp=2), sequence=4096, microbatch=2)
    held = costs.at_work(run, strategy)
    blocks = {"ring": 2, "gathered": 4}[strategy]  # in use and in flight; or every rank's
    assert held == blocks * 2 * (2 * 4 * 128 * 2 * 1024)
    alone = dataclasses.replace(run, layout=Layout(tp=2))
    assert costs.at_work(alone, strategy) == 0


def test_a_way_that_no_step_is_predicted_for_is_refused():
    with pytest.raises(ValueError, match="no step is predicted for 'ulysses'; use ring, gathered"):
        costs.exposed_seconds(SIZES, "ulysses", LINK, forward=0.0, backward=0.0)
