"""A hand-over takes what its ranks hold and want, and no published one is faster than the bound."""

import pytest

from shardlab.costs.facts import hardware, mixtures, models
from shardlab.costs.generation.hand_over import HandOver
from shardlab.costs.memory import loading, shards
from shardlab.costs.published.engines import HAND_OVERS
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

# Small: a rank has its norms beside its pieces, and they are 160 of 34,464 numbers.
TOY = TransformerSpec(
    vocab_size=24, context_length=18, hidden_size=32, num_layers=2, num_heads=4, style="llama"
)


def carried(whole, cut, copies, trainers):
    """Play a hand-over in equal pieces; return the bytes through the busiest card, by one at a time."""
    sent, received = [0] * trainers, [0] * cut * copies
    for rank in range(cut * copies):
        for _ in range(whole // cut):
            received[rank] += 1
            sent[sent.index(min(sent))] += 1
    return max(sent + received)


@pytest.mark.parametrize(("cut", "copies", "trainers"), [(2, 1, 4), (4, 1, 2), (2, 3, 4), (1, 2, 4), (4, 2, 8)])
@pytest.mark.counted("trainer_generator", "bytes through the busiest card, in pieces and gathered")
def test_the_busiest_card_carries_what_a_rank_holds_or_its_share_of_what_is_sent(cut, copies, trainers):
    pieces = HandOver(whole=240, cut=cut, copies=copies, trainers=trainers)
    assert pieces.busiest == carried(240, cut, copies, trainers)
    assert pieces.arrives == 240 / cut
    gathered = HandOver(whole=240, cut=cut, copies=copies, trainers=trainers, way="gathered")
    assert gathered.busiest == gathered.arrives == 240


@pytest.mark.parametrize(("dp", "tp"), [(1, 2), (2, 1), (2, 2)])
def test_what_arrives_is_each_copy_once_but_for_what_tensor_parallelism_leaves_whole(dp, tp):
    numbers = sum(models.parameters(TOY).values())
    norms = models.parameters(TOY)["norms"]
    arriving = sum(each.total for each in loading.reading(TOY, Layout(dp=dp, tp=tp), width=1))
    assert (numbers, norms) == (34_464, 160)
    assert arriving == dp * (numbers + (tp - 1) * norms)
    assert HandOver(whole=numbers, cut=tp, copies=dp).arrives * dp * tp == pytest.approx(arriving, rel=0.005)


def test_a_rank_of_a_trillion_weights_receives_32_gigabytes():
    spec = mixtures.published("Kimi K2").spec
    whole = sum(models.parameters(spec).values())
    card = hardware.link("InfiniBand NDR")
    gathered = HandOver(whole=whole, cut=32, copies=4, trainers=256, way="gathered")
    assert gathered.seconds(card) == pytest.approx(20.5, rel=0.01)
    arrives = HandOver(whole=whole, cut=32, copies=4, trainers=256).arrives
    assert arrives == pytest.approx(32.1e9, rel=0.01)
    held = sum(shards.parameters(spec, Layout(tp=32)).values())
    assert held / arrives == pytest.approx(1.033, abs=0.001)  # latent attention's narrow layers lie whole on each


def test_buckets_make_as_many_messages_as_were_published():
    """About 120 of 512 MiB: slime, https://hebiao064.github.io/rl-weight-sync. Not every bucket is full."""
    whole = 2 * sum(models.parameters(mixtures.published("Qwen3-30B-A3B").spec).values())
    handed = HandOver(whole=whole, cut=8, way="gathered", bucket=512 * 2**20)
    assert handed.messages == pytest.approx(120, rel=0.06)
    slow = hardware.link("InfiniBand NDR")
    once = HandOver(whole=whole, cut=8, way="gathered").seconds(slow)
    assert handed.seconds(slow) - once == pytest.approx((handed.messages - 1) * slow.latency)


def test_doors_share_what_is_gathered():
    whole = HandOver(whole=8e9, cut=8, way="gathered")
    assert HandOver(whole=8e9, cut=8, way="gathered", doors=4).busiest == whole.busiest / 4


def test_no_published_hand_over_beats_the_bound_and_its_ways_are_in_order():
    slower = {(each.name, each.hand_over.way): each.seconds / each.bound for each in HAND_OVERS}
    broadcast, pieces = [[x for (_, of), x in slower.items() if of == way] for way in ("gathered", "pieces")]
    assert [round(of(broadcast), 1) for of in (min, max)] == [1.1, 2.6]
    assert [round(of(pieces)) for of in (min, max)] == [2, 18]
    reached = {each.name: each.reached / 1e9 for each in HAND_OVERS if each.hand_over.way == "pieces"}
    straight = {name: rate for name, rate in reached.items() if "from shard to shard" in name}
    first_gathered = [reached[name] for name in reached if name not in straight]
    assert round(straight.pop("Qwen3-30B-A3B fp8 from shard to shard TP2 DP8")) == 4
    assert [round(of(straight.values())) for of in (min, max)] == [9, 22]
    assert [round(of(first_gathered)) for of in (min, max)] == [3, 10]


def test_from_a_hundred_billion_weights_on_the_bound_ranks_the_ways():
    both = [(a, b) for a in HAND_OVERS for b in HAND_OVERS if a.name == b.name and a.hand_over.way > b.hand_over.way]
    sooner = {a.name: a.seconds < b.seconds for a, b in both if a.hand_over.whole > 200e9}
    assert [*sooner.values()] == [True] * 4
    assert not all(a.seconds < b.seconds for a, b in both)


def test_an_unknown_way_is_refused():
    with pytest.raises(ValueError, match="unknown way='by mail'; known: gathered, pieces"):
        HandOver(whole=1, cut=1, way="by mail")
