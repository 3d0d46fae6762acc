"""Predicted equals counted: the bytes that real ranks send are those of the formulas."""

import pytest
import torch

from shardlab import trace
from shardlab.costs import collectives
from shardlab.ranks import averaging, launch, ledger

NUMBERS, NBYTES = 1000, 4000


def averaged(group, mean):
    gradient = torch.full((NUMBERS,), float(group.rank()))
    with ledger.Ledger() as book:
        result = mean(gradient, group)
    assert torch.equal(result, torch.full((NUMBERS,), (group.size() - 1) / 2))
    return book.events


def sent(events):
    return sum(trace.wire_bytes(event) for event in events)


def received(events):
    return sum(event.nbytes for event in events if event.op == "receive")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_server_carries_what_is_predicted(ranks):
    books = launch.run(averaged, averaging.mean_through_server, world_size=ranks)
    cost = collectives.parameter_server(NBYTES, ranks)
    assert max(sent(events) for events in books) == cost.sent
    assert max(received(events) for events in books) == cost.received
    assert max(max(sent(events), received(events)) for events in books) == cost.busiest_link


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_ring_carries_what_is_predicted(ranks):
    books = launch.run(averaged, averaging.mean, world_size=ranks)
    for events in books:
        assert sent(events) == pytest.approx(collectives.ring_all_reduce(NBYTES, ranks).sent)
