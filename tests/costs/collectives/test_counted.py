"""Predicted equals counted: the bytes that real ranks send are those of the formulas."""

import sys

import pytest
import torch

from shardlab import comm, launch
from shardlab.costs import collectives
from shardlab.ranks.data_parallel import averaging
from shardlab.ranks.observe import ledger

NUMBERS, NBYTES = 1_000_000, 4_000_000
HEADERS = 0.02  # of all bytes: headers, and the barrier's own messages


def averaged(group):
    gradient = torch.full((NUMBERS,), float(group.rank()))
    with ledger.Ledger() as book:
        result = averaging.mean(gradient, group)
        comm.barrier(group)  # until then some bytes may still be on their way out
    assert torch.equal(result, torch.full((NUMBERS,), (group.size() - 1) / 2))
    return book.sent_bytes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many bytes a socket has sent")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.counted("data_parallel", "bytes that left the sockets: those predicted, and at most 2 % more")
def test_the_operating_system_counts_what_is_predicted(ranks):
    counted = launch.run(averaged, world_size=ranks)
    predicted = collectives.ring_all_reduce(NBYTES, ranks).sent
    assert max(counted) <= (1 + HEADERS) * predicted
    assert min(counted) >= predicted  # on a ring, every rank sends as much
