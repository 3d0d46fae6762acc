"""Predicted equals counted: the bytes that real ranks send are those of the formulas."""

import sys

import pytest
import torch

from shardlab import trace
from shardlab.costs import collectives
from shardlab.ranks import comm, launch
from shardlab.ranks.data_parallel import averaging
from shardlab.ranks.observe import ledger

NUMBERS, NBYTES = 1_000_000, 4_000_000
HEADERS = 0.02  # of all bytes: headers, and the barrier's own messages


def averaged(group, mean):
    gradient = torch.full((NUMBERS,), float(group.rank()))
    with ledger.Ledger() as book:
        result = mean(gradient, group)
        comm.barrier(group)  # until then some bytes may still be on their way out
    assert torch.equal(result, torch.full((NUMBERS,), (group.size() - 1) / 2))
    return book.events, book.sent_bytes


def sent(events):
    return sum(trace.wire_bytes(event) for event in events)


def received(events):
    return sum(event.nbytes for event in events if event.op == "receive")


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.counted("data_parallel", "bytes through a parameter server")
def test_the_server_carries_what_is_predicted(ranks):
    books = [events for events, _ in launch.run(averaged, averaging.mean_through_server, world_size=ranks)]
    cost = collectives.parameter_server(NBYTES, ranks)
    assert max(sent(events) for events in books) == cost.sent
    assert max(received(events) for events in books) == cost.received
    assert max(max(sent(events), received(events)) for events in books) == cost.busiest_link


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many bytes a socket has sent")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("mean", "predict"),
    [
        (averaging.mean, collectives.ring_all_reduce),
        (averaging.mean_through_server, collectives.parameter_server),
    ],
)
@pytest.mark.counted("data_parallel", "bytes that left the sockets: those predicted, and at most 2 % more")
def test_the_operating_system_counts_what_is_predicted(mean, predict, ranks):
    counted = [nbytes for _, nbytes in launch.run(averaged, mean, world_size=ranks)]
    predicted = predict(NBYTES, ranks).sent
    assert predicted <= max(counted) <= (1 + HEADERS) * predicted
    if mean is averaging.mean:  # on a ring, every rank sends as much
        assert min(counted) >= predicted
