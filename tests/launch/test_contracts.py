"""Ranks that are about to send what does not fit are stopped before they do, each with its line."""

import sys

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from shardlab import comm
from shardlab.launch import contracts, run
from tests.launch.failing import failure

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest


def a_longer_receive(group):
    if group.rank() == 0:
        comm.send(torch.ones(3), group, to=1)
    else:
        comm.receive(torch.ones(5), group, source=0)


def a_shorter_receive(group):
    if group.rank() == 0:
        comm.send(torch.ones(5), group, to=1)
    else:
        comm.receive(torch.ones(3), group, source=0)


def a_receive_of_another_dtype(group):
    if group.rank() == 0:
        comm.send(torch.ones(3, dtype=torch.int64), group, to=1)
    else:
        comm.receive(torch.ones(3), group, source=0)


def an_exchange_of_unlike_tensors(group):
    other = 1 - group.rank()
    comm.exchange(torch.ones(2), group, to=other, source=other)
    comm.exchange(torch.ones(2 + group.rank()), group, to=other, source=other)


def messages_that_were_started(group):
    other = 1 - group.rank()
    for wait in comm.start([(torch.ones(4), other)], [(torch.ones(4 + group.rank()), other)], group):
        wait()


def another_operation(group):
    comm.all_reduce(torch.ones(3), group, "sum" if group.rank() else "max")


def another_source(group):
    comm.broadcast(torch.ones(3), group, source=group.rank())


def another_collective(group):
    (comm.all_gather if group.rank() else comm.all_reduce)(torch.ones(3), group)


def another_shape(group):
    comm.barrier(group)
    comm.start_all_reduce(torch.ones(3 + group.rank()), group)()


def torchs_own_verbs(group):
    (dist.barrier if group.rank() else dist.all_reduce)(*([] if group.rank() else [torch.ones(3)]))


def another_dtype(group):
    comm.all_to_all(torch.ones(2, dtype=torch.float64 if group.rank() else torch.float32), group)


SAID = {
    a_longer_receive: ("message from rank 0 to rank 1 number 1", "3 numbers of float32", "5 numbers of float32"),
    a_shorter_receive: ("message from rank 0 to rank 1 number 1", "5 numbers of float32", "3 numbers of float32"),
    a_receive_of_another_dtype: ("from rank 0 to rank 1 number 1", "3 numbers of int64", "3 numbers of float32"),
    an_exchange_of_unlike_tensors: ("number 2", "2 numbers of float32", "3 numbers of float32"),
    messages_that_were_started: ("number 1", "4 numbers of float32", "5 numbers of float32"),
    another_operation: ("collective number 1", "rank 0: all_reduce (max)", "rank 1: all_reduce (sum) of float32[3]"),
    another_source: ("collective number 1", "rank 0: broadcast from rank 0", "rank 1: broadcast from rank 1"),
    another_collective: ("collective number 1", "all_reduce (sum) of float32[3]", "all_gather of float32[6]"),
    another_shape: ("collective number 2", "float32[3]", "float32[4]"),
    torchs_own_verbs: ("collective number 1", "rank 0: all_reduce (sum)", "rank 1: barrier"),
    another_dtype: ("collective number 1", "all_to_all of float32,", "all_to_all of float64,"),
}


@pytest.mark.parametrize("program", SAID, ids=lambda program: program.__name__)
def test_what_does_not_fit_is_said_before_it_is_sent(program):
    told = failure(program, world_size=2)
    assert "ValueError: the ranks disagree about" in told
    for words in SAID[program]:
        assert words in told


def test_both_lines_are_named():
    told = failure(a_longer_receive, world_size=2)
    first = a_longer_receive.__code__.co_firstlineno
    assert f'rank 0: 3 numbers of float32, File "{__file__}", line {first + 2}' in told
    assert f'rank 1: 5 numbers of float32, File "{__file__}", line {first + 4}' in told


def test_the_users_line_is_named_where_new_tensors_have_a_device():
    """As under torchrun: torch's own lines then stand between comm's and the user's."""

    def on_a_device(group):
        with torch.device("cpu"):
            comm.all_reduce(torch.ones(3 + group.rank()), group)

    line = on_a_device.__code__.co_firstlineno + 2
    assert failure(on_a_device, world_size=2).count(f'of float32[3], File "{__file__}", line {line}') == 1


@pytest.mark.parametrize("to", [-1, 2, 9])
def test_a_rank_that_the_group_does_not_have(to):
    x = torch.ones(1)
    verbs = (
        lambda group: comm.send(x, group, to=to),
        lambda group: comm.receive(x, group, source=to),
        lambda group: comm.exchange(x, group, to=to, source=0),
        lambda group: comm.exchange(x, group, to=0, source=to),
        lambda group: comm.start([(x, to)], [], group),
        lambda group: comm.broadcast(x, group, source=to),
        lambda group: comm.subgroup(group, [0, to]),
    )

    def all_of_them(group):
        said = []
        for verb in verbs:
            with pytest.raises(ValueError, match=f"there is no rank {to} in a group of 2 ranks"):
                verb(group)
            said.append(verb)
        return len(said)

    assert run(all_of_them, world_size=2) == [7, 7]


def test_nothing_is_compared_where_it_is_forbidden(monkeypatch):
    """As under torchrun: the bits of two numbers are read as one."""
    monkeypatch.setenv(contracts.FOLDER, "")

    def misread(group):
        if group.rank() == 0:
            return comm.send(torch.ones(1, dtype=torch.float64), group, to=1)
        return comm.receive(torch.ones(2), group, source=0).tolist()

    assert run(misread, world_size=2) == [None, [0.0, 1.875]]


def test_half_of_a_call_is_not_read():
    call = contracts._call(7, "all_reduce")
    assert contracts._text(call, 7).startswith('all_reduce\nFile "')
    assert contracts._text(call, 8) == ""
    assert contracts._text(call[:20] + bytes(len(call) - 20), 7) == ""


def test_a_receive_from_anybody_takes_what_comes_first():
    """Its group's messages have no numbers that two ranks could compare."""

    def gather(group):
        if group.rank() == 0:
            received = torch.zeros(3)
            for _ in range(2):
                dist.recv(received, group=group)
            comm.barrier(group)  # whoever comes first, it is no message of five numbers
            return comm.receive(torch.zeros(5), group, source=1).sum().item()
        comm.send(torch.ones(3), group, to=0)
        comm.barrier(group)
        if group.rank() == 1:
            comm.send(torch.ones(5), group, to=0)
        return None

    assert run(gather, world_size=3)[0] == 5
