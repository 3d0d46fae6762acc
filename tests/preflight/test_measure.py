"""Clocks are compared within their error bar, every link is measured, and a checksum is exact."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from shardlab import comm, launch
from shardlab.preflight import measure
from shardlab.preflight.roll import Roll

CPU = torch.device("cpu")


@pytest.fixture
def pair(monkeypatch):
    """Two ends of one store in this process."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    yield [Roll(rank, 2, 10.0) for rank in range(2)]
    del server


def test_a_clock_that_is_ahead_is_measured_to_its_error_bar(pair, monkeypatch):
    asked, told = pair
    other = threading.Thread(target=measure.tell_clock, args=(told, 10.0))

    def clock():
        return time.time() + 5.0 * (threading.current_thread() is other)

    monkeypatch.setattr(measure, "time", SimpleNamespace(time=clock))
    other.start()
    ahead, error = measure.clocks(asked, [1], 10.0)[1]
    other.join()
    assert 0 < error < 1
    assert ahead == pytest.approx(5.0, abs=error)


def test_clocks_are_waited_for_once(pair):
    """The first that does not answer ends the questions, however many hosts there are."""
    began = time.monotonic()
    assert measure.clocks(pair[0], [1] * 100, 0.1) == {}
    assert time.monotonic() - began < 5


def rates(group, wrong):
    """The rate at which a rank receives from the one before it, whose numbers may be wrong."""
    size, rank = group.size(), group.rank()
    if wrong:
        honest = comm.exchange
        comm.exchange = lambda x, *args: honest(x, *args) + (rank == 1)
    return measure.rate(group, (rank + 1) % size, (rank - 1) % size)


def test_the_rate_of_a_link_is_measured_where_it_arrives():
    assert all(1e5 < each < 1e12 for each in launch.run(rates, False, world_size=3))


def test_a_message_that_arrives_with_other_numbers_is_refused():
    with pytest.raises(launch.RankError, match="rank 0 sent other numbers than arrived at 1"):
        launch.run(rates, True, world_size=2)


def test_the_checksum_does_not_depend_on_the_order_of_sums(monkeypatch):
    """Also with matrices that are multiplied in pieces, last piece first."""
    usual = measure.checksum(CPU)
    honest = torch.Tensor.__matmul__

    def in_pieces(a, b):
        half = len(b) // 2
        return honest(a[:, half:], b[half:]) + honest(a[:, :half], b[:half])

    monkeypatch.setattr(torch.Tensor, "__matmul__", in_pieces)
    assert measure.checksum(CPU) == usual
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: honest(a, b) * (1 + 2**-52))
    assert measure.checksum(CPU) != usual


def test_a_measurement_says_what_it_does_and_why_it_ended(pair):
    mine = measure.Measurement()
    broken = SimpleNamespace(group=lambda *_: (_ for _ in ()).throw(RuntimeError("no route to host\nat c10d")))
    mine.run(broken, "gloo", None, 1.0)
    assert mine.posted["doing"] == "waits for the others to connect"
    assert (mine.posted["error"], mine.posted["over"]) == ("no route to host", False)
