"""Bytes on hops are those that a plan's messages bring there, counted by hand."""

from collections import Counter

import pytest

from shardlab import exchanges
from shardlab.costs.facts import nodes
from shardlab.costs.traces import crossings, writing


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("name", exchanges.ALL_REDUCES)
def test_each_move_of_a_plan_loads_every_hop_of_its_path(name, ranks):
    plan, cluster = exchanges.ALL_REDUCES[name](ranks), nodes.cluster("DGX-1V")
    piece = 40  # bytes: ten numbers
    events = writing.of_plan(plan, piece * plan.num_pieces)
    by_hand = Counter()
    for move in (move for step in plan.steps for move in step):
        for hop in cluster.path(move.source, move.to):
            by_hand[hop] += piece * len(move.pieces)
    assert crossings.bytes_on(events, cluster) == by_hand


def test_a_ring_of_torch_is_laid_as_nccl_lays_it():
    """Between two nodes each card carries an eighth of twice 15/16 of the buffer."""
    writers = [writing.Writer(rank) for rank in range(16)]
    for writer in writers:
        writer.wait([writer.collective("all_reduce", 16_000, range(16))])
    events = [event for writer in writers for event in writer.events]
    carried = crossings.bytes_on(events, nodes.cluster("DGX H100", 2))
    cards = [nbytes for hop, nbytes in carried.items() if hop.kind == "network"]
    assert cards == pytest.approx([2 * 15 / 16 * 16_000 / 8] * len(cards))
