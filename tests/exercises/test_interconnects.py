"""Starters fail, solutions pass, and every plausible mistake fails for its own reason, and for no other."""


from shardlab import exchanges
from shardlab.costs.facts import nodes
from shardlab.costs.traces import programs
from shardlab.costs.traces.replay import replay
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


def test_the_solution_on_two_levels_is_what_a_replay_takes():
    """Message by message over the wires of 2 x DGX H100; the latencies of 16 steps are what the formula leaves out."""
    cluster, nbytes = nodes.cluster("DGX H100", 2), 2**30
    played = replay(programs.of_plan(exchanges.hierarchical_all_reduce(16, 8), nbytes), cluster, link_utilisation=1.0)
    rates = nodes.rates_of_a_gpu(cluster.node)
    formula = solutions.my_two_levels(nbytes, 2, 8, rates["NVLink"], rates["network"])
    assert formula < played.seconds < formula + 16 * 14e-6


# ---- mistakes --------------------------------------------------------------------------------------------------------

ALONE, SHARED = "a GPU alone has its cards, in bytes", "GPUs share the cards of their node"
ONE_HOP, HOPS, ITSELF = (
    "one hop takes its latency and its bytes",
    "several hops are as fast as the narrowest",
    "no hop takes no time",
)
INSIDE, FLAT, ACROSS = (
    "one node uses no network",
    "nodes of one GPU are one ring",
    "across the nodes goes a share of the buffer",
)
OVERFULL, FAIR = "no link is overfull", "no message could get more fairly"


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


@mistake("two_levels", ACROSS, at="1 rank, 2 nodes of 2")
def sends_everything_across(nbytes, num_nodes, gpus, inside, across):
    return 2 * (gpus - 1) / gpus * nbytes / inside + 2 * (num_nodes - 1) / num_nodes * nbytes / across


@mistake("two_levels", INSIDE, ACROSS, at="1 rank, one node of 4")
def forgets_to_gather(nbytes, num_nodes, gpus, inside, across):
    return (gpus - 1) / gpus * nbytes / inside + 2 * (num_nodes - 1) / num_nodes * nbytes / gpus / across


@mistake("two_levels", INSIDE, FLAT, ACROSS, at="1 rank, one node of 4")
def sends_whole_buffers(nbytes, num_nodes, gpus, inside, across):
    return 2 * nbytes / inside + 2 * nbytes / gpus / across


@mistake("two_levels", FLAT, ACROSS, at="1 rank, 4 nodes of one")
def only_scatters_across(nbytes, num_nodes, gpus, inside, across):
    return 2 * (gpus - 1) / gpus * nbytes / inside + (num_nodes - 1) / num_nodes * nbytes / gpus / across


@mistake("fair_rates", FAIR, at="1 rank, a message that cannot use its share", says="[3, 1]")
def shares_each_link_equally(capacities, paths):
    users = {link: sum(link in path for path in paths) for link in capacities}
    return [min(capacities[link] / users[link] for link in path) for path in paths]


@mistake("fair_rates", OVERFULL, FAIR, at="1 rank, two on one link", says="at most 6 on a")
def shares_nothing(capacities, paths):
    return [min(capacities[link] for link in path) for path in paths]


@mistake("fair_rates", FAIR, at="1 rank, two on one link", says="[6, 0]")
def serves_the_first_first(capacities, paths):
    left, rates = dict(capacities), []
    for path in paths:
        rates.append(min(left[link] for link in path))
        for link in path:
            left[link] -= rates[-1]
    return rates


@mistake("fair_rates", FAIR, at="1 rank, one message", says="None")
def returns_nothing(capacities, paths):
    solutions.my_fair_rates(capacities, paths)
