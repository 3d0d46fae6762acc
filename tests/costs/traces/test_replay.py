"""A replay takes the closed form for every collective, and shares, hides and orders messages as rules say."""

import json
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab import exchanges, trace
from shardlab.costs.compute import kernels
from shardlab.costs.facts import hardware, network, nodes
from shardlab.costs.traces import writing
from shardlab.costs.traces.replay import replay
from shardlab.costs.traces.writing import Writer

LINK, CHIP = hardware.link("NVLink 4"), hardware.chip("H100 SXM 80 GB")
ALPHA, BETA = LINK.latency, LINK.bandwidth
EXACT = 1e-9


def uniform(ranks):
    return network.uniform(ranks, LINK, CHIP)


def play(*writers, on=None, **options):
    cluster = uniform(len(writers)) if on is None else on
    events = [event for writer in writers for event in writer.events]
    return replay(events, cluster, **{"link_utilisation": 1.0, "rate": CHIP.peak_flops, **options})


def ranks(count):
    return [Writer(rank) for rank in range(count)], range(count)


def seconds(flops):
    return flops / CHIP.peak_flops


# ---- equal to the closed forms on a uniform network ------------------------------------------------------------------

# Thakur, Rabenseifner and Gropp 2005, doi:10.1177/1094342005051521, without the time to add; n a power of two
TEXTBOOK = {
    "naive": lambda n, b: 2 * (n - 1) * (ALPHA + b / BETA),
    "binomial tree": lambda n, b: 2 * math.log2(n) * (ALPHA + b / BETA),
    "ring": lambda n, b: 2 * (n - 1) * ALPHA + 2 * (n - 1) / n * b / BETA,
    "recursive doubling": lambda n, b: math.log2(n) * (ALPHA + b / BETA),
    "halving-doubling": lambda n, b: 2 * math.log2(n) * ALPHA + 2 * (n - 1) / n * b / BETA,
}


@pytest.mark.parametrize("n", [2, 4, 8, 16])
@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.counted("replay", "seconds of each all-reduce, message by message, by the textbook")
def test_every_all_reduce_takes_its_textbook_time(name, n):
    for nbytes in (4 * n, 4_000_000 * n):
        played = replay(writing.of_plan(exchanges.ALL_REDUCES[name](n), nbytes), uniform(n), link_utilisation=1.0)
        hidden = TEXTBOOK[name](n, nbytes) - played.seconds  # two messages to one rank wait at the same time
        assert hidden == pytest.approx((n - 1) // 2 * ALPHA if name == "naive" else 0, abs=EXACT * played.seconds)


@pytest.mark.parametrize("n", [2, 3, 5, 9])
def test_rings_of_any_number_of_ranks(n):
    ring, part = writing.of_plan(exchanges.ring_all_reduce(n), 4000 * n), 4000
    assert replay(ring, uniform(n), link_utilisation=1.0).seconds == pytest.approx(
        2 * (n - 1) * (ALPHA + part / BETA), rel=EXACT
    )


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize(
    ("op", "steps", "carried"),
    [
        ("all_reduce", lambda n: 2 * (n - 1), lambda n: 2 * (n - 1) / n),
        ("all_gather", lambda n: n - 1, lambda n: (n - 1) / n),
        ("reduce_scatter", lambda n: n - 1, lambda n: (n - 1) / n),
        ("all_to_all", lambda n: float(n > 1), lambda n: (n - 1) / n),
        ("broadcast", lambda n: n - 1, lambda n: float(n > 1)),
        ("reduce", lambda n: n - 1, lambda n: float(n > 1)),
        ("gather", lambda n: float(n > 1), lambda n: (n - 1) / n),  # of all that the root gets
        ("scatter", lambda n: float(n > 1), lambda n: (n - 1) / n),
        ("barrier", lambda n: math.ceil(math.log2(n)), lambda n: 0.0),
    ],
)
@pytest.mark.counted("replay", "seconds of torch's collectives, replayed, by their closed form")
def test_every_collective_of_torch_takes_its_closed_form(op, steps, carried, n):
    writers, group = ranks(n)
    nbytes = 0 if op == "barrier" else 1000 * n
    for writer in writers:
        payload = nbytes // n if op in ("gather", "scatter") and writer.rank else nbytes
        writer.wait([writer.collective(op, payload, group)])
    assert play(*writers).seconds == pytest.approx(steps(n) * ALPHA + carried(n) * nbytes / BETA, rel=EXACT)


def test_a_ring_of_messages_takes_as_long_as_torchs_own():
    """Two independent ways through the code: 14 messages a rank, or one transfer on all hops."""
    n, nbytes = 8, 8_000_000
    writers, group = ranks(n)
    for writer in writers:
        writer.wait([writer.collective("all_reduce", nbytes, group)])
    ring = replay(writing.of_plan(exchanges.ring_all_reduce(n), nbytes), uniform(n), link_utilisation=1.0)
    assert play(*writers).seconds == pytest.approx(ring.seconds, rel=EXACT)
    for name, usage in play(*writers).links.items():
        assert usage.nbytes == pytest.approx(ring.links[name].nbytes, rel=EXACT)


def uneven(pieces, on=None):
    """Every rank sends pieces[its rank][r] bytes to rank r, all at once."""
    group = tuple(range(len(pieces)))
    events = [
        trace.Event(rank, "communicate", "all_to_all", group, sum(row), 0, 0, number=0, pieces=tuple(row))
        for rank, row in enumerate(pieces)
    ]
    return replay(events, uniform(len(pieces)) if on is None else on, link_utilisation=1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_equal_pieces_are_an_ordinary_all_to_all(n):
    pieces = [[1000 * (rank != to) for to in range(n)] for rank in range(n)]
    assert uneven(pieces).seconds == pytest.approx((n > 1) * ALPHA + (n - 1) * 1000 / BETA, rel=EXACT)


def test_all_wait_for_the_rank_that_receives_most():
    """As for the fullest expert: 9 MB come in at rank 2, more than any rank sends."""
    pieces = [[0, 10**6, 4 * 10**6], [10**6, 0, 5 * 10**6], [0, 10**6, 0]]
    played = uneven(pieces)
    assert played.seconds == pytest.approx(ALPHA + 9 * 10**6 / BETA, rel=EXACT)
    assert sum(usage.nbytes for name, usage in played.links.items()) > 0
    assert uneven([[0, 0], [0, 0]]).seconds == pytest.approx(ALPHA)


def test_pieces_are_one_for_each_pair():
    with pytest.raises(ValueError, match=r"must have 2 rows of 2 numbers, for each GPU what it sends to each"):
        uneven([[0, 5], [5]])


# ---- the rules, one by one -------------------------------------------------------------------------------------------


def test_computing_takes_its_flops_or_the_seconds_of_a_program():
    (writer,), _ = ranks(1)
    writer.compute(1e12, "forward")
    writer.work(0.5, "backward")
    writer.compute(0, "nothing")
    played = play(writer, rate=4e12)
    assert played.seconds == 0.25 + 0.5
    assert [(event.op, event.flops) for event in played.events] == [("forward", 10**12), ("backward", 0)]
    ordinary = replay(writer.events, uniform(1)).seconds - 0.5
    assert ordinary == pytest.approx(1e12 / kernels.ordinary_flops(CHIP))


def test_a_message_hides_behind_computing_and_a_waiting_shows_what_does_not():
    (a, b), both = ranks(2)
    sent = a.send(450_000_000, 1, both)
    a.compute(1e11, "meanwhile")
    a.wait([sent])
    b.wait([b.receive(450_000_000, 0, both)])
    played = play(a, b)
    travel = ALPHA + 450e6 / BETA
    assert played.seconds == pytest.approx(max(travel, seconds(1e11)))
    idle = {event.rank: event.seconds for event in played.events if event.kind == "idle"}
    assert idle == pytest.approx({0: travel - seconds(1e11), 1: travel})
    both_busy = [event.seconds for event in played.events if event.kind == "communicate"]
    assert both_busy == pytest.approx([travel, travel])


def test_where_the_time_of_a_rank_went():
    (a, b), both = ranks(2)
    a.compute(1e11)
    a.wait([a.send(450_000_000, 1, both)])
    b.wait([b.receive(450_000_000, 0, both)])
    played = play(a, b)
    assert played.parts(0) == pytest.approx({"computing": seconds(1e11), "waiting": ALPHA + 1e-3})
    assert played.parts(1) == pytest.approx({"computing": 0, "waiting": played.seconds})


def test_a_receive_that_is_issued_late_holds_up_its_sender():
    (a, b), both = ranks(2)
    a.wait([a.send(1000, 1, both)])
    b.compute(1e12)
    b.wait([b.receive(1000, 0, both)])
    assert play(a, b).seconds == pytest.approx(seconds(1e12) + ALPHA + 1000 / BETA)


def test_messages_between_two_ranks_follow_one_another_and_hide_each_others_latency():
    (a, b), both = ranks(2)
    a.wait([a.send(45_000_000, 1, both) for _ in range(3)])
    b.wait([b.receive(45_000_000, 0, both) for _ in range(3)])
    played = play(a, b)
    ends = [event.end for event in played.events if event.op == "send"]
    assert ends == pytest.approx([ALPHA + i * 45e6 / BETA for i in (1, 2, 3)])


def test_collectives_of_a_group_follow_one_another_latency_included():
    writers, group = ranks(2)
    for writer in writers:
        writer.wait([writer.collective("all_reduce", 45_000_000, group) for _ in range(2)])
    assert play(*writers).seconds == pytest.approx(2 * (2 * ALPHA + 45e6 / BETA))


def test_there_and_back_are_different_hops():
    (a, b), both = ranks(2)
    for writer, other in ((a, 1), (b, 0)):
        writer.wait([writer.send(45_000_000, other, both), writer.receive(45_000_000, other, both)])
    assert play(a, b).seconds == pytest.approx(ALPHA + 45e6 / BETA)


def test_a_collective_begins_with_the_last_of_its_ranks():
    writers, group = ranks(3)
    writers[1].compute(1e12)
    for writer in writers:
        writer.wait([writer.collective("all_gather", 3000, group)])
    played = play(*writers)
    assert {event.end for event in played.events if event.kind == "communicate"} == {played.seconds}
    assert played.seconds == pytest.approx(seconds(1e12) + 2 * ALPHA + 2000 / BETA)


def test_every_gather_leads_to_its_own_root():
    """The root is the rank with the largest payload: here 0, then 2."""
    writers, group = ranks(3)
    for root in (0, 2):
        for writer in writers:
            writer.wait([writer.collective("gather", 3000 if writer.rank == root else 1000, group)])
    arrived = {name: usage.nbytes for name, usage in play(*writers).links.items() if name.startswith("switch →")}
    assert arrived == pytest.approx({"switch → GPU 0": 2000, "switch → GPU 2": 2000})


def test_links_reach_a_stated_share_of_their_rate():
    writers = [writing.of_plan(exchanges.ring_all_reduce(4), 4_000_000)]
    full, most = (replay(*writers, uniform(4), link_utilisation=share).seconds for share in (1.0, 0.8))
    assert most - 6 * ALPHA == pytest.approx((full - 6 * ALPHA) / 0.8)


# ---- contention ------------------------------------------------------------------------------------------------------


def pairs_across(num_pairs, nbytes=125_000_000):
    """Ranks 0.. of the first node each send to their like in the second."""
    writers, group = ranks(16)
    for rank in range(num_pairs):
        writers[rank].wait([writers[rank].send(nbytes, rank + 8, group)])
        writers[rank + 8].wait([writers[rank + 8].receive(nbytes, rank, group)])
    return writers


@pytest.mark.parametrize("pairs", [1, 2, 8])
def test_one_card_is_shared_by_all_who_use_it(pairs):
    """125 MB over 100 Gb/s are 10 ms for one, 20 ms for two at once."""
    played = play(*pairs_across(pairs), on=nodes.cluster("PCIe box, 100 GbE", 2))
    assert played.seconds == pytest.approx(hardware.NETWORK_STEP + pairs * 10e-3)
    card = played.links["node 0: NIC 0 → network"]
    assert card.nbytes == pytest.approx(pairs * 125e6)
    assert max(rate for _, rate in card.rates) == pytest.approx(12.5e9)


def test_cards_of_their_own_are_not():
    one, eight = (play(*pairs_across(n), on=nodes.cluster("DGX H100", 2)).seconds for n in (1, 8))
    assert one == pytest.approx(eight)
    four_cards = nodes.cluster("AWS p4d.24xlarge", 2)
    one, two, eight = (play(*pairs_across(n), on=four_cards).seconds - hardware.NETWORK_STEP for n in (1, 2, 8))
    assert two == pytest.approx(2 * one)  # GPUs 0 and 1 share a card
    assert eight == pytest.approx(two)


def test_who_ends_first_leaves_its_share_to_the_others():
    """Two through one card, one with half of the bytes: it ends at 10 ms, the other at 15."""
    writers, group = ranks(16)
    for rank, nbytes in ((0, 62_500_000), (1, 125_000_000)):
        writers[rank].wait([writers[rank].send(nbytes, rank + 8, group)])
        writers[rank + 8].wait([writers[rank + 8].receive(nbytes, rank, group)])
    played = play(*writers, on=nodes.cluster("PCIe box, 100 GbE", 2))
    ends = [event.end - hardware.NETWORK_STEP for event in played.events if event.op == "send"]
    assert ends == pytest.approx([10e-3, 15e-3])
    rates = played.links["node 0: NIC 0 → network"].rates
    assert [rate for _, rate in rates] == pytest.approx([12.5e9, 0.0])


def test_two_levels_beat_a_flat_ring_across_nodes():
    """The flat ring of ranks uses 1 of 8 cards; in two levels every rank sends its eighth through its own."""
    cluster = nodes.cluster("DGX H100", 2)
    flat, levels = (
        replay(writing.of_plan(plan, 2**26), cluster)
        for plan in (exchanges.ring_all_reduce(16), exchanges.hierarchical_all_reduce(16, 8))
    )
    assert 5 < flat.seconds / levels.seconds < 8
    cards = [[name for name in played.links if name.endswith("→ network")] for played in (flat, levels)]
    assert [len(names) for names in cards] == [2, 16]


def test_tensor_parallelism_belongs_inside_a_node():
    """The same 8 ranks all-reduce on one node, or one to each of 8 nodes."""
    cluster = nodes.cluster("DGX H100", 8)
    writers, group = ranks(8)
    for writer in writers:
        writer.wait([writer.collective("all_reduce", 64_000_000, group)])
    inside, across = (play(*writers, on=cluster, placement=where).seconds for where in (range(8), range(0, 64, 8)))
    assert across / inside == pytest.approx(450 / 50, rel=0.2)


def test_a_switch_that_adds_is_asked_for():
    writers, group = ranks(8)
    for writer in writers:
        writer.wait([writer.collective("all_reduce", 800_000_000, group)])
    on = nodes.cluster("DGX H100")
    ring, added = (play(*writers, on=on, algorithm=name).seconds for name in ("ring", "switch"))
    assert ring == pytest.approx(1.75 * 0.8e9 / 450e9, rel=0.05)
    assert added == pytest.approx(9 / 8 * 0.8e9 / (0.85 * 450e9) + 25e-6, rel=EXACT)
    older = nodes.cluster("DGX A100")
    assert play(*writers, on=older, algorithm="switch").seconds == play(*writers, on=older).seconds


# ---- laws ------------------------------------------------------------------------------------------------------------

NAMES = {"DGX-1V": 1, "PCIe box, 25 GbE": 2, "AWS p4d.24xlarge": 2}
CLUSTERS = [*(nodes.cluster(name, count) for name, count in NAMES.items()), uniform(6)]
MESSAGE = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 10**7)).filter(lambda m: m[0] != m[1])
STRIDES = st.sampled_from([(0, 1, 2, 3, 4, 5), (5, 3, 1, 0, 2, 4)])


@settings(max_examples=60, deadline=None)
@given(st.lists(MESSAGE, min_size=1, max_size=12), st.integers(0, 10**7), STRIDES, st.sampled_from(CLUSTERS))
def test_no_link_carries_more_than_its_rate_allows_and_no_byte_is_lost(messages, reduced, placement, cluster):
    writers, group = ranks(6)
    issued = [[writer.collective("all_reduce", reduced, group)] for writer in writers]
    for a, b, nbytes in messages:
        issued[a].append(writers[a].send(nbytes, b, group))
        issued[b].append(writers[b].receive(nbytes, a, group))
    for writer, numbers in zip(writers, issued, strict=True):
        writer.wait(numbers)
    played = play(*writers, on=cluster, placement=placement)
    for usage in played.links.values():
        assert all(rate <= usage.hop.bandwidth * (1 + EXACT) for _, rate in usage.rates)
        assert all(before[0] <= after[0] for before, after in pairwise(usage.rates))
        assert usage.rates[-1][1] == 0
        assert usage.nbytes <= usage.hop.bandwidth * played.seconds * (1 + EXACT)
    for rank, gpu in enumerate(placement):
        sent = sum(nbytes for a, _, nbytes in messages if a == rank)
        leaving = {hop for hop in played.links if hop.split(": ")[-1].startswith(f"GPU {gpu % cluster.node.gpus} →")}
        here = {hop for hop in leaving if cluster.num_nodes == 1 or hop.startswith(f"node {cluster.node_of(gpu)}:")}
        handed_on = 2 * 5 / 6 * reduced
        assert sum(played.links[hop].nbytes for hop in here) == pytest.approx(sent + handed_on, rel=EXACT, abs=1e-3)


def test_the_same_trace_gives_the_same_bits_whatever_the_order_of_the_ranks():
    cluster = nodes.cluster("PCIe box, 100 GbE", 2)
    events = writing.of_plan(exchanges.halving_doubling_all_reduce(12), 4_000_000)
    turned = [event for rank in (7, 3, 11, 0, 5, 1, 9, 2, 10, 4, 8, 6) for event in events if event.rank == rank]
    first, second, third = (replay(given, cluster) for given in (events, events, turned))
    assert first.events == second.events
    assert first.links == second.links
    assert third.seconds == first.seconds
    assert sorted(third.events, key=lambda e: (e.rank, e.start, e.number)) == sorted(
        first.events, key=lambda e: (e.rank, e.start, e.number)
    )


# ---- what is refused, and what is shown ------------------------------------------------------------------------------


def test_ranks_need_gpus_of_their_own():
    events = writing.of_plan(exchanges.ring_all_reduce(3), 12)
    with pytest.raises(ValueError, match="a rank 2, 2 × NVLink 4 only 2 GPUs"):
        replay(events, uniform(2))
    with pytest.raises(ValueError, match="ranks 0 and 2 are both placed on GPU 1"):
        replay(events, uniform(3), placement=[1, 0, 1])
    with pytest.raises(ValueError, match="gpu=7 must be a whole number from 0 to 2"):
        replay(events, uniform(3), placement=[1, 0, 7])
    with pytest.raises(ValueError, match="names 2 GPUs, the trace has a rank 2"):
        replay(events, uniform(3), placement=[1, 0])


def test_other_nonsense_is_refused():
    writers, group = ranks(2)
    for writer in writers:
        writer.collective("teleport", 8, group)
    with pytest.raises(ValueError, match=r"unknown operation 'teleport'; use send, receive, all_reduce"):
        play(*writers)
    with pytest.raises(ValueError, match="no all-reduce is called 'star'; use one of ring, switch"):
        play(*ranks(1)[0], algorithm="star")
    with pytest.raises(ValueError, match="rate=0 must be"):
        play(*ranks(1)[0], rate=0)


def test_ranks_that_wait_for_each_other_are_told():
    (a, b), both = ranks(2)
    for writer, other in ((a, 1), (b, 0)):
        writer.wait([writer.receive(8, other, both)])
        writer.wait([writer.send(8, other, both)])
    with pytest.raises(ValueError, match="comes to a stop: line 3: rank 0 and line 7: rank 1 wait for each other"):
        play(a, b)


def test_a_trace_without_events_takes_no_time():
    played = replay([], uniform(2))
    assert (played.seconds, played.events, played.links) == (0.0, [], {})


def test_it_says_where_it_was_replayed_and_perfetto_can_read_it():
    played = replay(writing.of_plan(exchanges.ring_all_reduce(4), 4_000_000), nodes.cluster("DGX H100"))
    assert played.where == "replayed on DGX H100"
    told = json.loads(json.dumps(played.chrome()))["traceEvents"]
    processes = [each["args"]["name"] for each in told if each["name"] == "process_name"]
    assert processes == [*(f"rank {rank}, replayed on DGX H100" for rank in range(4)), "links, replayed on DGX H100"]
    curve = [each["args"]["GB/s"] for each in told if each["ph"] == "C" and each["name"] == "GPU 0 → NVSwitch"]
    assert curve == pytest.approx([360, 0] * 6)


def test_a_saved_trace_replays_to_the_same_bits(tmp_path):
    events = writing.of_plan(exchanges.hierarchical_all_reduce(6, 3), 6000)
    trace.save(events, tmp_path / "trace.json")
    read = trace.load(tmp_path / "trace.json")
    assert read == events
    assert replay(read, uniform(6)).events == replay(events, uniform(6)).events
