"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import numpy as np

from shardlab.exercises import checker

from .grading import Chapter, Graded, Mistake
from .solutions import interconnects as solutions

CHAPTER = Chapter("interconnects", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


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


CHAPTER.changes({
    "takes bits for bytes": Mistake("network_share", {ALONE, SHARED},
        at="1 rank, one GPU, one card of 8 Gb/s", says="8,000,000,000",
        old=" / 8", new=""),
    "counts in gibibytes": Mistake("network_share", {ALONE, SHARED}, at="1 rank, one GPU, one card of 8 Gb/s",
        old="1e9", new="2**30"),
    "gives every gpu the whole node": Mistake("network_share", {SHARED}, at="1 rank, two GPUs, one card",
        old=" / num_gpus", new=""),
    "gives every gpu one card": Mistake("network_share", {ALONE, SHARED}, at="1 rank, one GPU, two cards",
        old="num_cards * gigabits * 1e9 / 8 / num_gpus", new="gigabits * 1e9 / 8"),
    "adds both directions": Mistake("network_share", {ALONE, SHARED}, at="1 rank, one GPU, one card of 8 Gb/s",
        old="num_cards *", new="2 * num_cards *"),
    "stores and forwards": Mistake("message_seconds", {HOPS}, at="1 rank, two equal hops",
        old="max(latencies) + nbytes / min(rates)", new="sum(latency + nbytes / rate for rate, latency in hops)"),
    "adds the latencies": Mistake("message_seconds", {HOPS}, at="1 rank, two equal hops",
        old="max(latencies)", new="sum(latencies)"),
    "takes the widest": Mistake("message_seconds", {HOPS}, at="1 rank, a narrow hop",
        old="min(rates)", new="max(rates)"),
    "takes the slowest hop as a whole": Mistake("message_seconds", {HOPS}, at="1 rank, a slow hop that is wide",
        old="max(latencies) + nbytes / min(rates)", new="max(latency + nbytes / rate for rate, latency in hops)"),
})


@mistake("message_seconds", checker.RUNS, at="1 rank, to itself", says="max(")
def expects_a_hop(nbytes, hops):
    return max(latency for _, latency in hops) + nbytes / min(rate for rate, _ in hops)


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("message_seconds")
def makes_a_matrix_of_hops(nbytes, hops):
    table = np.array(hops or [(np.inf, 0)])
    return table[:, 1:].max(axis=0) + nbytes / table[:, :1].min(axis=0)
