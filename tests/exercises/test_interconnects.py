"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

from shardlab.exercises import checker

from .grading import Chapter, Graded
from .solutions import interconnects as solutions

CHAPTER = Chapter("interconnects", solutions)
mistake = CHAPTER.mistake


class TestExercises(Graded):
    chapter = CHAPTER


# ---- against what is known otherwise ---------------------------------------------------------------------------------


def test_an_h100_has_50_gigabytes_a_second_of_network():
    assert solutions.my_network_share(8, 400, 8) == 50e9


# ---- mistakes --------------------------------------------------------------------------------------------------------

ALONE, SHARED = "a GPU alone has its cards, in bytes", "GPUs share the cards of their node"
ONE_HOP, HOPS, ITSELF = (
    "one hop takes its latency and its bytes",
    "several hops are as fast as the narrowest",
    "no hop takes no time",
)


@mistake("network_share", ALONE, SHARED, at="1 rank, one GPU, one card of 8 Gb/s", says="8,000,000,000")
def takes_bits_for_bytes(num_cards, gigabits, num_gpus):
    return num_cards * gigabits * 1e9 / num_gpus


@mistake("network_share", ALONE, SHARED, at="1 rank, one GPU, one card of 8 Gb/s")
def counts_in_gibibytes(num_cards, gigabits, num_gpus):
    return num_cards * gigabits * 2**30 / 8 / num_gpus


@mistake("network_share", SHARED, at="1 rank, two GPUs, one card")
def gives_every_gpu_the_whole_node(num_cards, gigabits, num_gpus):
    return num_cards * gigabits * 1e9 / 8


@mistake("network_share", ALONE, SHARED, at="1 rank, one GPU, two cards")
def gives_every_gpu_one_card(num_cards, gigabits, num_gpus):
    return gigabits * 1e9 / 8


@mistake("network_share", ALONE, SHARED, at="1 rank, one GPU, one card of 8 Gb/s")
def adds_both_directions(num_cards, gigabits, num_gpus):
    return 2 * num_cards * gigabits * 1e9 / 8 / num_gpus


@mistake("message_seconds", HOPS, at="1 rank, two equal hops")
def stores_and_forwards(nbytes, hops):
    return sum(latency + nbytes / rate for rate, latency in hops)


@mistake("message_seconds", HOPS, at="1 rank, two equal hops")
def adds_the_latencies(nbytes, hops):
    return sum(latency for _, latency in hops) + nbytes / min(rate for rate, _ in hops) if hops else 0


@mistake("message_seconds", HOPS, at="1 rank, a narrow hop")
def takes_the_widest(nbytes, hops):
    return max(latency for _, latency in hops) + nbytes / max(rate for rate, _ in hops) if hops else 0


@mistake("message_seconds", HOPS, at="1 rank, a slow hop that is wide")
def takes_the_slowest_hop_as_a_whole(nbytes, hops):
    return max((latency + nbytes / rate for rate, latency in hops), default=0)


@mistake("message_seconds", checker.RUNS, at="1 rank, to itself", says="max(")
def expects_a_hop(nbytes, hops):
    return max(latency for _, latency in hops) + nbytes / min(rate for rate, _ in hops)
