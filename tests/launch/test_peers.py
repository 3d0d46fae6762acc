"""A rank that lost a peer is told from one that failed by itself, by what it waited for, and never by words."""

import ctypes
import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shardlab import comm
from shardlab.launch import peers, run, watch
from shardlab.launch.report import Outcome, report
from shardlab.launch.state import Failure, Raised
from tests.launch.failing import PROMPTLY, failure, rank_of

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest


@pytest.fixture
def patient(monkeypatch):
    """Give all ranks enough time to report; the wait ends when they have."""
    monkeypatch.setattr(watch, "GRACE", PROMPTLY / 2)


def receive(group):
    comm.receive(torch.ones(1), group, source=0)


# ---- victims --------------------------------------------------------------------------------------------------------


def wrapped(group):
    try:
        receive(group)
    except RuntimeError as error:
        raise ValueError("training failed") from error


def replaced(group):
    try:
        receive(group)
    except RuntimeError:
        raise KeyError("training failed")  # noqa: B904


def hidden(group):
    try:
        receive(group)
    except RuntimeError:
        raise OSError("training failed") from None


def wrapped_twice(group):
    try:
        hidden(group)
    except OSError as error:
        raise ValueError("no model") from error


def started(group):
    for wait in comm.start_messages([], [(torch.ones(1), 0)], group):
        wait()


def in_another_language(group):
    """As if gloo itself said it so."""
    wait = dist.Work.wait.__wrapped__

    def translated(work):
        with suppress(RuntimeError):
            wait(work)
        raise RuntimeError("연결이 끊어졌습니다")

    dist.Work.wait = peers.waiting(translated)
    dist.recv(torch.ones(1), src=0)


def sent_too_late(group):
    """A message to a rank that is known to be dead fails when it starts."""
    with suppress(RuntimeError):
        receive(group)
    group.send([torch.ones(1)], 0, 0)


VICTIMS = (wrapped, replaced, hidden, wrapped_twice, started, in_another_language, sent_too_late)


def test_a_rank_that_lost_a_peer_is_not_to_blame_whatever_it_makes_of_the_error(patient):
    def work(group):
        comm.barrier(group)
        if group.rank() == 0:
            os._exit(5)
        VICTIMS[group.rank() - 1](group)

    told = failure(work, world_size=1 + len(VICTIMS))
    assert told == "rank 0 died: exit code 5\nranks 1, 2, 3, 4, 5, 6 and 7 then lost the connection to a peer."


@pytest.mark.parametrize("when", ["before DDP", "in forward", "in backward"])
def test_nor_is_one_whose_peer_torch_lost_by_itself(when, patient):
    """DDP communicates in C++."""

    def train(group):
        if when == "before DDP" and group.rank() == 0:
            os._exit(5)
        model = DistributedDataParallel(torch.nn.Linear(2, 2), process_group=group)
        for step in range(4):
            if when == "in forward" and group.rank() == 0 and step == 2:
                os._exit(5)
            loss = model(torch.ones(1, 2)).sum()
            if when == "in backward" and group.rank() == 0 and step == 2:
                os._exit(5)
            loss.backward()

    told = failure(train, world_size=2)
    assert told == "rank 0 died: exit code 5\nrank 1 then lost the connection to a peer."


# ---- culprits -------------------------------------------------------------------------------------------------------


def test_a_rank_that_fails_inside_a_communication_by_itself_is_a_culprit(patient):
    """Though a peer of it has died."""

    def work(group):
        comm.barrier(group)
        if group.rank() == 0:
            os._exit(5)
        if group.rank() == 1:
            dist.all_reduce(torch.eye(3).to_sparse_csr(), group=group)
        if group.rank() == 2:
            comm.send(torch.ones(1), group, to=9)
        if group.rank() == 3:
            group.send([torch.ones(3, 4).t()], 4, 0)  # not contiguous, and rank 4 lives
        if group.rank() == 5:
            receive(group)

    told = failure(work, world_size=6)
    assert told.startswith("rank 0 died: exit code 5\nrank 1 raised")
    assert "rank 2 raised" in told
    assert "rank 3 raised" in told
    assert "rank 5 then lost the connection to a peer.\nrank 4 had finished" in told


def test_a_rank_that_gives_up_in_another_group_is_a_culprit(patient):
    """Rank 0 dies, and rank 1 loses it. Rank 2 waits for rank 3 alone, and not for long."""

    def work(group):
        pair = comm.split(group, 2)
        comm.barrier(group)
        if group.rank() == 0:
            os._exit(5)
        if group.rank() < 3:
            dist.monitored_barrier(pair, timeout=timedelta(seconds=0.2))

    told = failure(work, world_size=4)
    assert told.startswith("rank 0 died: exit code 5\nrank 2 raised")
    assert told.endswith("rank 1 then lost the connection to a peer.\nrank 3 had finished")


def test_an_error_that_mentions_a_connection_is_not_a_lost_connection(patient):
    """Whatever its text and its type."""

    def work(group):
        if group.rank() == 0:
            Path("/no/such/folder/Connections.csv").read_text()
        if group.rank() == 1:
            raise RuntimeError("Connection closed by peer")
        raise ValueError("no batch")

    told = failure(work, world_size=3)
    assert "rank 0 raised" in told
    assert "rank 1 raised" in told
    assert "rank 2 raised" in told
    assert "Connections.csv'" in told
    assert "then lost the connection" not in told


def test_a_rank_that_gives_up_is_reported_and_those_it_leaves_are_not(patient):
    """Rank 0 asks all ranks to report in time, and says who did not."""

    def roll_call(group):
        comm.barrier(group)
        if group.rank() != 1:
            dist.monitored_barrier(group, timeout=timedelta(seconds=0.2))

    told = failure(roll_call)
    assert told.startswith("rank 0 raised")
    assert "Rank 1 failed to pass monitoredBarrier" in told
    assert told.endswith("ranks 2 and 3 then lost the connection to a peer.\nrank 1 had finished")


def test_ranks_that_wait_at_the_time_limit_are_not_blamed(monkeypatch):
    """Ranks 1 and 2 cannot answer; nobody gives up while the launcher waits for their answer."""
    monkeypatch.setattr(watch, "PATIENCE", 2.0)
    run(rank_of, world_size=3)  # so that the time limit is not spent on torch's import

    def work(group):
        if group.rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        if group.rank() == 2:
            ctypes.PyDLL(None).sleep(60)  # holds the interpreter
        comm.barrier(group)

    told = failure(work, world_size=3, timeout=1.5)
    assert told.startswith("No result after 1.5 s.\nranks 1 and 2 did not answer")
    assert "rank 0 waited at" in told
    assert "raised" not in told


# ---- who is blamed, by what is known --------------------------------------------------------------------------------


def lost(*awaited, in_torch=False):
    return Failure([Raised([], "RuntimeError: no")], {*awaited}, in_torch)


OWN = lost()
BLAMED = {  # what is known: ranks that failed, and exit codes of those that died -> who is reported, as what
    "both lost each other": ({0: lost(1), 1: lost(0)}, {}, ["ranks 0 and 1 raised"]),
    "one failed and left its group": ({0: OWN, 1: lost(0, 1)}, {}, ["rank 0 raised", "rank 1 then"]),
    "torch failed, and nobody died": ({0: OWN, 1: lost(in_torch=True)}, {}, ["ranks 0 and 1 raised"]),
    "torch failed, and one died": ({1: lost(in_torch=True)}, {0: 5}, ["rank 0 died", "rank 1 then"]),
    "only another one died": ({1: lost(1, 2)}, {0: 5}, ["rank 0 died", "rank 1 raised"]),
    "one gave up": ({0: lost(1, 2), 2: lost(0)}, {}, ["rank 0 raised", "rank 2 then"]),
    "two gave up": ({0: lost(0, 1, 2), 2: lost(0, 1, 2)}, {}, ["ranks 0 and 2 raised"]),
}


@pytest.mark.parametrize(("failed", "died", "told"), BLAMED.values(), ids=BLAMED)
def test_who_is_to_blame(failed, died, told):
    lines = [line for line in report(Outcome(failed=failed, died=died)).splitlines() if line.startswith("rank")]
    assert len(lines) == len(told)
    assert all(line.startswith(words) for line, words in zip(lines, told, strict=True))
