"""Ranks that wait for each other, or for ever, are reported where they wait; a straggler is not."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading

import cloudpickle
import pytest
import torch
import torch.distributed as dist

from shardlab import comm
from shardlab.launch import RankError, contracts, run, state, watch
from tests.launch import programs
from tests.launch.failing import LIGHT, PROMPTLY, failure
from tests.patience import PATIENCE

pytestmark = pytest.mark.slow

for module in (sys.modules[__name__], programs):
    cloudpickle.register_pickle_by_value(module)  # so that no rank need import pytest


@pytest.fixture
def unchecked(monkeypatch):
    """Compare nothing before it is sent, as under torchrun."""
    monkeypatch.setenv(contracts.FOLDER, "")


# ---- ranks that wait ------------------------------------------------------------------------------------------------


def test_a_receive_without_a_send():
    def wait_for_ever(group):
        if group.rank() > 0:
            comm.receive(torch.ones(1), group, source=0)

    told = failure(wait_for_ever)
    assert told.startswith("Deadlock")
    assert "rank 0 had finished" in told
    assert "ranks 1, 2 and 3 waited at" in told
    assert "comm.receive(torch.ones(1), group, source=0)" in told


def test_two_ranks_that_both_send_first(impatient):
    def cross(group):
        peer = 1 - group.rank()
        comm.send(torch.ones(1 << 22), group, to=peer)
        return comm.receive(torch.ones(1 << 22), group, source=peer)

    told = failure(cross, world_size=2)
    assert "comm.send(" in told
    assert told.endswith("\n  rank 0 waited for rank 1\n  rank 1 waited for rank 0")


def test_a_deadlock_of_groups_names_the_group_of_each_rank(impatient):
    """At one line for all: rows before columns on ranks 0 and 3, columns before rows on 1 and 2."""

    def two_orders(group):
        rows, columns = comm.split(group, 2), comm.across(group, 2)
        for each in (rows, columns) if group.rank() in (0, 3) else (columns, rows):
            comm.all_reduce(torch.ones(1), each)

    told = failure(two_orders)
    assert told.count("waited at") == 1
    assert told.splitlines()[-4:] == [
        "  rank 0 waited in the group of ranks 0 and 1",
        "  rank 1 waited in the group of ranks 1 and 3",
        "  rank 2 waited in the group of ranks 0 and 2",
        "  rank 3 waited in the group of ranks 2 and 3",
    ]


@pytest.mark.parametrize("program", programs.ENDING, ids=lambda program: program.__name__)
def test_a_program_that_ends_by_itself_is_never_stopped(program, monkeypatch):
    monkeypatch.setattr(watch, "TICK", 0.05)
    run(program, world_size=2, timeout=PROMPTLY)


@pytest.mark.parametrize("program", programs.STUCK, ids=lambda program: program.__name__)
def test_a_program_that_never_ends_is_a_deadlock(program, monkeypatch):
    monkeypatch.setattr(watch, "TICK", 0.05)
    with pytest.raises(RankError, match=r"^Deadlock: .*\n(.|\n)*waited at"):
        run(program, world_size=2, timeout=4 * PROMPTLY)


def test_a_main_thread_that_ran_has_moved():
    """However little: other processes of a busy machine may have left it next to no time."""
    look = state.Signs(moves=5, moved=7, used=1.0, clock=10.0)
    assert look._replace(used=1.001, clock=10.5).unmoved_since(look)
    assert not look._replace(moves=6, used=1.001, clock=10.5).unmoved_since(look)
    assert not look._replace(moved=8, used=1.001, clock=10.5).unmoved_since(look)
    assert not look._replace(used=1.4, clock=10.5).unmoved_since(look)


SLOW_LINK = "ip link set lo up && tc qdisc add dev lo root tbf rate 30mbit burst 128kb latency 400ms"
LONG_MESSAGE = """
import torch
from shardlab import comm
from shardlab.launch import run, watch
watch.TICK = 0.2
run(lambda group: comm.all_reduce(torch.ones(1 << 21), group), world_size=2)
"""


def test_a_long_message_over_a_slow_link_is_not_a_deadlock():
    network = ["unshare", "--map-root-user", "--net", "sh", "-c"]
    if not shutil.which("unshare") or subprocess.run([*network, SLOW_LINK], check=False).returncode:
        pytest.skip("no slow link can be made here")
    command = [*network, f'{SLOW_LINK} && exec "$0" -c "$1"', sys.executable, LIGHT + LONG_MESSAGE]
    assert not subprocess.run(command, check=False, timeout=PATIENCE).returncode


def test_a_straggler_is_not_a_deadlock(impatient):
    def slow(group):
        if group.rank() == 0:
            threading.Event().wait(1.5)
        comm.barrier(group)
        return group.rank()

    assert run(slow, world_size=3) == [0, 1, 2]


def test_a_rank_that_computes_for_ever_meets_the_time_limit():
    def spin(group):
        while True:
            pass

    told = failure(spin, world_size=1, timeout=1)
    assert "No result after 1 s" in told
    assert "rank 0 waited at" in told


def test_a_rank_that_answers_no_question(monkeypatch):
    """A call into C never yields the interpreter; unread questions would fill the channel and block the launcher."""
    monkeypatch.setattr(watch, "TICK", 0.001)
    monkeypatch.setattr(watch, "PATIENCE", 0.5)
    told = failure(lambda group: ctypes.PyDLL(None).sleep(60), world_size=2, timeout=1.5)
    assert "No result after 1.5 s" in told
    assert "ranks 0 and 1 did not answer" in told


def test_torch_waits_longer_than_the_run():
    """By itself torch gives up after half an hour, also in a run that was given hours."""

    def limit(group):
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()

    assert run(limit, world_size=1, timeout=7200)[0] > 7200


def test_no_deadlock_is_seen_where_threads_cannot_be(monkeypatch):
    def hidden(*_):
        raise FileNotFoundError

    monkeypatch.setattr(os, "listdir", hidden)
    assert state.signs(finished=False) is None


# ---- collectives that do not match, found by the flight recorder -----------------------------------------------------


def test_ranks_call_different_collectives(impatient, unchecked):
    def differ(group):
        if group.rank() == 0:
            comm.all_reduce(torch.ones(4), group)
        else:
            comm.broadcast(torch.ones(4), group)

    told = failure(differ)
    assert "disagree about collective number 1" in told
    assert "rank 0: all_reduce(Float[4])" in told
    assert "comm.all_reduce(torch.ones(4), group)" in told
    assert "ranks 1, 2 and 3: broadcast(Float[4])" in told


def test_different_collectives_that_happen_to_finish_are_reported_too(unchecked):
    """Two all-reduces in crossed order mix their tensors silently: right shapes, wrong sums."""

    def crossed(group):
        gradient, loss = torch.ones(4), torch.zeros(2, 2)
        for each in (gradient, loss) if group.rank() == 0 else (loss, gradient):
            comm.all_reduce(each, group)
        return "no rank noticed"

    told = failure(crossed, world_size=2)
    assert "rank 0: all_reduce(Float[4])" in told
    assert "rank 1: all_reduce(Float[2, 2])" in told


def test_ranks_that_disagree_on_length(impatient, unchecked):
    told = failure(lambda group: comm.all_reduce(torch.ones(group.rank() + 1), group), world_size=2)
    assert "Float[1]" in told
    assert "Float[2]" in told


def test_unequal_shares_are_not_a_mismatch():
    def gather(group):
        sizes = [1, 2]
        mine, all_of_them = torch.ones(sizes[group.rank()]), torch.empty(sum(sizes))
        dist.all_to_all_single(
            torch.empty(2 * sizes[group.rank()]), torch.ones(3), [sizes[group.rank()]] * 2, sizes, group=group
        )
        return mine.sum().item() + all_of_them.numel()

    assert run(gather, world_size=2) == [4.0, 5.0]
