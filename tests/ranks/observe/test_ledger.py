"""The ledger sees every operation, with the bytes that the operating system also saw."""

import gc
import operator
import os
import sys
import time
import weakref
from unittest import mock

import pytest
import torch

from shardlab import comm, trace
from shardlab.launch import run
from shardlab.ranks.observe import ledger

NUM = 120_000  # elements; splits over 1 to 4 ranks
NBYTES = 4 * NUM


def record(body, world_size):
    """Return the events of `body(x, group)` and the bytes counted by the operating system, for every rank."""

    def call(group):
        x = torch.ones(NUM)
        comm.barrier(group)  # connections are made before the ledger opens
        with ledger.Ledger() as book:
            body(x, group)
            comm.barrier(group)  # the last byte has left when every rank has come here
        return [event for event in book.events if event.op != "barrier"], book.sent_bytes

    return run(call, world_size=world_size)


VERBS = {
    "all_reduce": (comm.all_reduce, lambda n: NBYTES, lambda n: 2 * (n - 1) * NBYTES),
    "broadcast": (comm.broadcast, lambda n: NBYTES, lambda n: (n - 1) * NBYTES),
    "all_gather": (comm.all_gather, lambda n: n * NBYTES, lambda n: n * (n - 1) * NBYTES),
    "reduce_scatter": (comm.reduce_scatter, lambda n: NBYTES, lambda n: (n - 1) * NBYTES),
}


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.counted("collectives", "bytes on the wire of torch's collectives, by the ledger")
def test_payload_and_wire_bytes_of_a_collective(verb, world_size):
    function, payload, on_all_wires = VERBS[verb]
    recorded = record(function, world_size)
    events = [event for mine, _ in recorded for event in mine]
    assert [event.op for event in events] == [verb] * world_size
    assert [event.rank for event in events] == list(range(world_size))
    assert {event.nbytes for event in events} == {payload(world_size)}
    assert {event.group for event in events} == {tuple(range(world_size))}
    assert sum(map(trace.wire_bytes, events)) == pytest.approx(on_all_wires(world_size))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many bytes a socket has sent")
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("verb", ["all_reduce", "broadcast", "all_gather"])
@pytest.mark.counted("collectives", "bytes that left the sockets: those predicted, and at most 2 % more")
def test_the_operating_system_saw_the_same_bytes(verb, world_size):
    """gloo adds small headers, so a few hundredths more may leave the sockets, never less."""
    recorded = record(VERBS[verb][0], world_size)
    on_sockets = sum(sent for _, sent in recorded)
    predicted = VERBS[verb][2](world_size)
    assert predicted <= on_sockets <= 1.02 * predicted


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many bytes a socket has sent")
def test_gloo_reduce_scatter_sends_as_much_as_an_all_reduce():
    """In torch 2.13 it is one inside, with twice the bytes it needs. If this fails, torch has improved."""
    on_sockets = sum(sent for _, sent in record(comm.reduce_scatter, 4))
    assert on_sockets == pytest.approx(VERBS["all_reduce"][2](4), rel=0.02)


def test_point_to_point():
    def body(x, group):
        if group.rank() == 0:
            comm.send(x, group, to=1)
        else:
            comm.receive(x, group, source=0)

    (sender, sent), (receiver, _) = record(body, 2)
    assert [(event.op, event.nbytes, trace.wire_bytes(event)) for event in sender] == [("send", NBYTES, NBYTES)]
    assert [(event.op, event.nbytes, trace.wire_bytes(event)) for event in receiver] == [("receive", NBYTES, 0)]
    assert sent is None or NBYTES <= sent <= 1.02 * NBYTES


def test_an_operation_lasts_until_it_is_done_not_until_it_is_issued():
    def late(group):
        x = torch.ones(4)
        comm.barrier(group)
        with ledger.Ledger() as book:
            if group.rank() == 1:
                time.sleep(0.5)
            wait = comm.start_all_reduce(x, group)
            with book.span("meanwhile"):
                pass
            wait()
            if group.rank() == 0:
                comm.receive(x, group, source=1)
            else:
                time.sleep(0.5)
                comm.send(x, group, to=0)
        return {event.op: event for event in book.events}

    early, _ = run(late, world_size=2)
    assert early["all_reduce"].seconds > 0.4
    assert early["receive"].seconds > 0.4
    assert early["meanwhile"].end < early["all_reduce"].end
    assert early["meanwhile"].kind == "compute"


def test_torchs_own_engine_is_seen():
    """DDP broadcasts its parameters when it wraps, and all-reduces one bucket in its C++ code."""

    def wrap(group):
        with ledger.Ledger() as book:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(30, 10), process_group=group)
            model(torch.ones(2, 30)).sum().backward()
        return trace.totals(book.events)

    for totals in run(wrap, world_size=2):
        assert totals["all_reduce"]["count"] == 1
        assert totals["all_reduce"]["nbytes"] == 4 * (30 * 10 + 10)
        assert totals["broadcast"]["nbytes"] >= 4 * (30 * 10 + 10)


def test_a_closed_ledger_intercepts_nothing():
    def quiet(group):
        import torch.distributed as dist

        before = dist.Work.wait
        with ledger.Ledger() as book:
            comm.all_reduce(torch.ones(2), group)
        comm.all_reduce(torch.ones(2), group)
        return len(book.events), dist.Work.wait is before

    assert run(quiet, world_size=2) == [(1, True)] * 2


def test_groups_are_told_apart():
    def pairs(group):
        import torch.distributed as dist

        halves = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        with ledger.Ledger() as book:
            comm.all_reduce(torch.ones(2), halves[group.rank() % 2])
        return book.events[0].group

    assert run(pairs, world_size=4) == [(0, 2), (1, 3), (0, 2), (1, 3)]


# ---- functional collectives, as DTensor and compiled programs use them -----------------------------------------------


_functional = operator.attrgetter("ops._c10d_functional")  # of torch; cloudpickle would pickle a plain `torch.ops`


def issue(name, x, group):
    """Call the operation `name` of torch's functional collectives on `x`; return its result or results."""
    call, size, told = getattr(_functional(torch), name), group.size(), group.group_name
    many = [x, x.clone()] if "coalesced" in name else x
    if "all_reduce" in name:
        return call(many, "sum", told)
    if "all_gather" in name:
        return call(many, size, told)
    if "reduce_scatter" in name:
        return call(many, "sum", size, told)
    if "all_to_all" in name:
        return call(x, [len(x) // size] * size, [len(x) // size] * size, told)
    return call(x, 0, told)


FUNCTIONAL = {  # name -> verb, payload as a multiple of x, for 2 ranks
    "all_reduce": ("all_reduce", 1),
    "all_reduce_": ("all_reduce", 1),
    "all_reduce_coalesced": ("all_reduce", 2),
    "all_reduce_coalesced_": ("all_reduce", 2),
    "broadcast": ("broadcast", 1),
    "broadcast_": ("broadcast", 1),
    "all_gather_into_tensor": ("all_gather", 2),
    "all_gather_into_tensor_coalesced": ("all_gather", 4),
    "reduce_scatter_tensor": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 2),
    "all_to_all_single": ("all_to_all", 1),
}


def test_functional_collectives_end_when_waited_for():
    def all_of_them(group):
        seen = {}
        for name in FUNCTIONAL:
            with ledger.Ledger() as book:
                results = issue(name, torch.ones(8), group)
                with book.span("meanwhile"):
                    pass
                for result in results if isinstance(results, list) else [results]:
                    _functional(torch).wait_tensor(result)
                with book.span("later"):
                    pass
            seen[name] = book.events
        return seen

    for seen in run(all_of_them, world_size=2):
        for name, (verb, times) in FUNCTIONAL.items():
            event, meanwhile, later = seen[name]
            assert (event.kind, event.op, event.group, event.nbytes) == ("communicate", verb, (0, 1), times * 32), name
            assert meanwhile.end < event.end < later.start, name


def test_dtensors_and_fully_sharded_modules_are_seen():
    """[4, 4] @ [4, 4] split along the summed dimension is a partial sum on each rank: one all-reduce of 64 bytes."""

    def both(group):
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor

        mesh = DeviceMesh.from_group(group, "cpu")
        a, b = (distribute_tensor(torch.ones(4, 4), mesh, [Shard(dim)]) for dim in (1, 0))
        with ledger.Ledger() as asked:
            (a @ b).full_tensor().sum()
        with ledger.Ledger() as implied:
            (a @ b).relu().to_local().sum()
        model = fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
        with ledger.Ledger() as sharded:
            model(torch.ones(2, 4)).sum().backward()
        return [[(e.op, e.group, e.nbytes) for e in book.events] for book in (asked, implied, sharded)]

    for asked, implied, sharded in run(both, world_size=2):
        assert asked == implied == [("all_reduce", (0, 1), 64)]
        assert sharded == [("all_gather", (0, 1), 80), ("reduce_scatter", (0, 1), 80)]


# ---- what is odd, and what must not stay behind ------------------------------------------------------------------


def test_an_unknown_operation_is_recorded_under_its_own_name():
    def call(group):
        with mock.patch.dict(ledger._VERBS, clear=True), ledger.Ledger() as book:
            comm.all_reduce(torch.ones(2), group)
        return [(event.op, event.nbytes) for event in book.events]

    assert run(call, world_size=2) == [[("allreduce_", 8)]] * 2


def test_what_has_not_ended_ends_with_the_ledger_and_leaves_nothing_behind():
    """Rank 1 takes part only when rank 0 has closed its ledger."""

    def call(group):
        import torch.distributed as dist

        x, functional = torch.ones(4), _functional(torch)
        if group.rank() == 1:
            comm.receive(x, group, source=0)
            comm.all_reduce(x, group)
            functional.wait_tensor(functional.all_reduce(x, "sum", group.group_name))
            return comm.send(x, group, to=0)
        original = dist.Work.wait
        with ledger.Ledger() as book:
            works = [dist.all_reduce(x.clone(), group=group, async_op=True), dist.irecv(x.clone(), 1, group=group)]
            promise = functional.all_reduce(x, "sum", group.group_name)
        closed = book.events
        assert dist.Work.wait is original
        comm.send(x, group, to=1)
        functional.wait_tensor(promise)
        for work in works:
            work.wait()
        assert book.events == closed
        assert [event.op for event in closed] == ["all_reduce", "receive", "all_reduce"]
        gone = weakref.ref(book)
        del book
        gc.collect()
        assert gone() is None

    run(call, world_size=2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells how many bytes a socket has sent")
def test_ledgers_leave_no_file_open():
    def call(group):
        counts = []
        for _ in range(3):
            with ledger.Ledger() as book:
                pass
            counts.append(len(os.listdir("/proc/self/fd")))
        return book.sent_bytes, counts

    for sent, counts in run(call, world_size=2):
        assert sent == 0
        assert len(set(counts)) == 1
