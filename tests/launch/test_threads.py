"""Ranks that are threads of one process: they compute and send what processes do, and fail with the same words."""

import contextlib
import os
import random
import re
import signal
import sys
import threading
import time

import cloudpickle
import numpy
import pytest
import torch
import torch.distributed as dist
from torch import nn

from shardlab import comm
from shardlab.launch import RankError, run, watch
from shardlab.ranks.observe.ledger import Ledger

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

KINDS = ("processes", "threads")


def both(function, *args, world_size, **options):
    """What ranks of either kind return."""
    return [run(function, *args, world_size=world_size, ranks=kind, **options) for kind in KINDS]


def failure(function, *args, ranks="threads", **options):
    with pytest.raises(RankError) as caught:
        run(function, *args, ranks=ranks, **options)
    return str(caught.value)


# ---- what they compute -----------------------------------------------------------------------------------------------


def of_rank(group, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(group.rank()), dtype=torch.float64)


def verbs(group):
    """Every verb, in a world and in parts of it."""
    n, rank, found = group.size(), group.rank(), {}
    for name, part in {"world": group, "split": comm.split(group, 2 - n % 2), "across": comm.across(group, 1)}.items():
        x = of_rank(part, 2 * part.size(), 3)
        for op in ("sum", "max", "min", "product"):
            found[name, op] = comm.all_reduce(x, part, op)
        found[name, "gather"] = comm.all_gather(x, part)
        found[name, "scatter"] = comm.reduce_scatter(x, part)
        found[name, "transpose"] = comm.all_to_all(x, part)
        found[name, "broadcast"] = comm.broadcast(x, part, part.size() - 1)
        comm.barrier(part)
        for verb in (comm.start_all_reduce, comm.start_reduce_scatter):
            buffer = x.clone()
            found[name, verb.__name__] = verb(buffer, part)(), buffer
        into = x.new_empty(part.size() * len(x), 3)
        comm.start_all_gather(x, into, part)()
        found[name, "start_all_gather"] = into
    rows = [rank + other for other in range(n)]
    found["uneven"] = comm.all_to_all(torch.full((sum(rows), 2), float(rank)), group, rows, rows)
    found["ring"] = comm.exchange(of_rank(group, 4), group, (rank + 1) % n, (rank - 1) % n)
    if n > 1 and rank == 0:
        comm.send(of_rank(group, 3), group, 1)
    elif rank == 1:
        found["message"] = comm.receive(of_rank(group, 3), group, 0)
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_verb_does_what_it_does_on_processes(world_size):
    for processes, threads in zip(*both(verbs, world_size=world_size), strict=True):
        assert processes.keys() == threads.keys()
        for name in processes:
            torch.testing.assert_close(threads[name], processes[name], rtol=0, atol=1e-12, msg=str(name))


def operations_of_torch(group):
    """Those that `comm` does without."""
    n, rank = group.size(), group.rank()
    x = of_rank(group, 3)
    root, listed, taken = x.clone(), [torch.empty_like(x) for _ in range(n)], torch.empty_like(x)
    dist.reduce(root, 1, group=group)
    dist.all_gather(listed, x, group=group)
    dist.reduce_scatter(taken, [x * other for other in range(n)], group=group)
    at_root = [torch.empty_like(x) for _ in range(n)]
    dist.gather(x, at_root if rank == 0 else None, group=group, group_dst=0)
    given = torch.empty_like(x)
    dist.scatter(given, at_root if rank == 0 else None, group=group, group_src=0)
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank}, group=group)
    return (root if rank == 1 else None), listed, taken, (at_root if rank == 0 else None), given, objects


def test_other_operations_of_torch_do_what_they_do_on_processes():
    processes, threads = both(operations_of_torch, world_size=3)
    for one, other in zip(processes, threads, strict=True):
        torch.testing.assert_close(one[:5], other[:5], rtol=0, atol=1e-12)
        assert one[5] == other[5] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def counted(group):
    with Ledger() as ledger, ledger.span("step"):
        x = torch.ones(8, 8) @ torch.ones(8, 8)
        comm.all_reduce(x, group)
        comm.start_all_reduce(x, comm.split(group, 2))()
        comm.exchange(x, group, (group.rank() + 1) % 4, (group.rank() - 1) % 4)
    told = [(each.kind, each.op, each.group, each.nbytes, each.flops, each.peer) for each in ledger.events]
    return told, [(each.kind, each.op, each.nbytes) for each in ledger.trace if each.kind != "compute"]


def test_a_ledger_records_what_it_records_on_processes():
    processes, threads = both(counted, world_size=4)
    assert processes == threads
    assert [op for _, op, *_ in threads[0][0]] == ["step", "all_reduce", "all_reduce", "receive", "send"]


def test_hundreds_of_ranks_have_their_part_each():
    def total(group):
        return comm.all_reduce(torch.tensor(group.rank()), group).item(), comm.split(group, 8).rank()

    assert run(total, world_size=256, ranks="threads") == [(255 * 128, rank % 8) for rank in range(256)]


# ---- what is a rank's own --------------------------------------------------------------------------------------------


def numbers(group):
    """One of each generator that a process has."""
    return torch.rand(1).item(), numpy.random.rand(), random.random()  # noqa: NPY002


def own(group):
    """A rank's random numbers, dtype, grad mode and environment outlive the turns of other ranks."""
    rank = group.rank()
    torch.manual_seed(rank)
    numpy.random.seed(rank)  # noqa: NPY002 (the state that readers' code may use)
    random.seed(rank)
    torch.set_default_dtype(torch.float64 if rank else torch.float32)
    torch.set_grad_enabled(bool(rank))
    found = []
    for _ in range(3):
        comm.barrier(group)
        drawn = numbers(group)
        found.append((drawn, torch.get_default_dtype(), torch.is_grad_enabled(), os.environ["RANK"]))
    return found


def test_what_is_a_ranks_own_is_as_on_processes():
    processes, threads = both(own, world_size=3)
    assert processes == threads


def test_ranks_draw_different_numbers_unless_they_are_seeded():
    drawn = [number for rank in run(numbers, world_size=4, ranks="threads") for number in rank]
    assert len(set(drawn)) == 12


def test_arguments_and_results_are_copies():
    mine = torch.zeros(2)

    def change(group, x):
        x += group.rank() + 1
        return x

    assert [x.tolist() for x in run(change, mine, world_size=3, ranks="threads")] == [[1, 1], [2, 2], [3, 3]]
    assert mine.tolist() == [0, 0]


def test_the_order_in_which_ranks_run_is_always_the_same():
    def order(group):
        lines = []
        for step in range(3):
            lines.append((step, time.monotonic()))
            comm.barrier(group)
        return lines

    def told():
        by_rank = run(order, world_size=5, ranks="threads")
        return [rank for _, rank in sorted((when, rank) for rank, lines in enumerate(by_rank) for _, when in lines)]

    assert told() == told()


@pytest.mark.parametrize("ordered", [True, False])
def test_what_they_print_bears_their_number(capfd, ordered):
    def speak(group):
        print("first", end=" of ")
        print(group.rank())
        comm.barrier(group)
        print("second")
        print("no end", end="")

    run(speak, world_size=2, ranks="threads", ordered=ordered)
    lines = capfd.readouterr().out.splitlines()
    by_rank = [[f"[rank {n}] first of {n}", f"[rank {n}] second", f"[rank {n}] no end"] for n in (0, 1)]
    in_order = [line for rank in by_rank for line in rank]
    assert sorted(lines) == sorted(in_order)
    if ordered:
        assert lines == in_order
    else:
        assert lines[:2] == [by_rank[0][0], by_rank[1][0]]


# ---- how they fail ---------------------------------------------------------------------------------------------------


def one_stays_away(group):
    if group.rank() != 1:
        comm.all_reduce(torch.ones(1), group)


def waits_for_a_neighbour(group):
    comm.receive(torch.ones(1), group, (group.rank() + 1) % 3)


def sizes_differ(group):
    comm.all_reduce(torch.ones(1 + (group.rank() == 2)), group)


def verbs_differ(group):
    with_all = comm.all_reduce if group.rank() else comm.all_gather
    with_all(torch.ones(2), group)


def raises(group):
    if group.rank() == 1:
        raise KeyError("oh")
    comm.barrier(group)


def swallows(group):
    with contextlib.suppress(ValueError):
        sizes_differ(group)


PROGRAMS = (one_stays_away, waits_for_a_neighbour, sizes_differ, verbs_differ, raises, swallows)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_the_report_is_the_one_of_processes(program):
    processes, threads = (failure(program, ranks=kind, world_size=3) for kind in KINDS)
    first = re.compile(r"^(ranks? [\d, and]+ raised|Deadlock)", re.MULTILINE)
    assert bool(first.match(threads)), threads
    if "Deadlock" in processes:
        assert processes.partition("\n")[2] == threads.partition("\n")[2]
    for line in ("ValueError", "KeyError", "collective number 1", "  rank 2: "):
        assert (line in processes) == (line in threads), threads
    place = re.compile(r"line \d+, in " + program.__name__)
    assert set(place.findall(processes)) == set(place.findall(threads))


def test_a_deadlock_is_seen_at_once():
    began = time.monotonic()
    told = failure(waits_for_a_neighbour, world_size=3)
    assert told.startswith("Deadlock: every rank that has not finished waits for another one.")
    assert "rank 0 waited for rank 1" in told
    assert time.monotonic() - began < watch.TICK * watch.QUIET_TICKS


def test_a_run_ends_after_its_time():
    def for_ever(group):
        while group.rank() == 1:
            pass
        comm.barrier(group)

    told = failure(for_ever, world_size=2, timeout=1.5)
    assert told.startswith("No result after 1.5 s.")
    assert "in for_ever" in told


def test_ctrl_c_tells_where_each_rank_was_and_what_it_had_printed(terminal, capfd):
    def work(group, launcher):
        print("so far")
        comm.barrier(group)
        if group.rank() == 0:
            os.kill(launcher, signal.SIGINT)
            time.sleep(60)
        comm.barrier(group)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(work, os.getpid(), world_size=3, ordered=True, ranks="threads")
    assert re.search(r"rank 0: .*time.sleep\(60\)\n  rank 1: .*barrier.*\n  rank 2: .*barrier", str(caught.value))
    assert capfd.readouterr().out == "".join(f"[rank {n}] so far\n" for n in range(3))


def test_the_end_of_their_process_is_told():
    told = failure(lambda group: os._exit(3), world_size=2)
    assert "process of all ranks" in told
    assert "exit code 3" in told


class Forgetful:
    def __reduce__(self):
        raise TypeError("never")


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda group: nn.parallel.DistributedDataParallel(nn.Linear(2, 2)), "DDP, FSDP and DTensor"),
        (lambda group: dist.recv(torch.ones(1)), 'have no recv_any_source_; leave out ranks="threads"'),
        (lambda group: Forgetful(), "returned a Forgetful, which cannot be sent back"),
        (lambda group: run(raises, ranks="threads"), "this is a rank"),
    ],
)
def test_what_they_cannot_do_is_said(program, reason):
    assert reason in failure(program, world_size=2)


def test_a_thread_that_a_rank_has_started_may_not_communicate():
    def elsewhere(group):
        errors = []

        def talk():
            try:
                comm.barrier(group)
            except Exception as error:
                errors.append(str(error))

        thread = threading.Thread(target=talk)
        thread.start()
        thread.join()
        return errors

    (told,) = run(elsewhere, world_size=1, ranks="threads")[0]
    assert "the ranks themselves communicate" in told


def test_an_unknown_kind_and_too_many_ranks_are_refused():
    with pytest.raises(ValueError, match="ranks='fibres' must be one of 'processes', 'threads'"):
        run(raises, ranks="fibres")
    with pytest.raises(ValueError, match=r'at most 64 ranks that are processes .* ranks="threads", up to 1024'):
        run(raises, world_size=65)
    with pytest.raises(ValueError, match="at most 1024 ranks that are threads"):
        run(raises, world_size=1025, ranks="threads")
