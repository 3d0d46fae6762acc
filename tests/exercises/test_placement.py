"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""

import numpy as np

from shardlab import exchanges
from shardlab.costs.facts import nodes
from shardlab.costs.traces import writing
from shardlab.costs.traces.replay import replay

from .grading import Chapter, Graded, Mistake
from .solutions import placement as solutions

CHAPTER = Chapter("placement", solutions)
mistake, right = CHAPTER.mistake, CHAPTER.right


class TestExercises(Graded):
    chapter = CHAPTER


# ---- against what is known otherwise ---------------------------------------------------------------------------------


def test_the_solution_on_two_levels_is_what_a_replay_takes():
    """Message by message over the wires of 2 × DGX H100; the latencies of 16 steps are what the formula leaves out."""
    cluster, nbytes = nodes.cluster("DGX H100", 2), 2**30
    played = replay(writing.of_plan(exchanges.hierarchical_all_reduce(16, 8), nbytes), cluster, link_utilisation=1.0)
    rates = nodes.rates_of_a_gpu(cluster.node)
    formula = solutions.my_two_levels(nbytes, 2, 8, rates["NVLink"], rates["network"])
    assert formula < played.seconds < formula + 16 * 14e-6


# ---- mistakes --------------------------------------------------------------------------------------------------------

INSIDE, FLAT, ACROSS = (
    "one node uses no network",
    "nodes of one GPU are one ring",
    "across the nodes goes a share of the buffer",
)


CHAPTER.changes({
    "sends everything across": Mistake("two_levels", {ACROSS}, at="1 rank, 2 nodes of 2",
        old="nbytes / gpus\n", new="nbytes\n"),
    "forgets to gather": Mistake("two_levels", {INSIDE, ACROSS}, at="1 rank, one node of 4",
        old="across + one_way", new="across"),
    "only scatters across": Mistake("two_levels", {FLAT, ACROSS}, at="1 rank, 4 nodes of one",
        old="2 * (num_nodes - 1)", new="(num_nodes - 1)"),
})


@mistake("two_levels", INSIDE, FLAT, ACROSS, at="1 rank, one node of 4")
def sends_whole_buffers(nbytes, num_nodes, gpus, inside, across):
    return 2 * nbytes / inside + 2 * nbytes / gpus / across


# ---- answers that are right, and not near the solution ---------------------------------------------------------------


@right("two_levels")
def in_fp32(nbytes, num_nodes, gpus, inside, across):
    share = np.float32(nbytes) / np.float32(gpus)
    ring = np.float32(2 * (num_nodes - 1) / num_nodes)
    return share * (np.float32(2 * (gpus - 1)) / np.float32(inside) + ring / np.float32(across))
