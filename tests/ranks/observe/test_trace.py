"""A ledger records a trace that can be replayed: computing, communication and waits of every rank."""

import pytest
import torch
from torch import nn

from shardlab import comm, exchanges, launch
from shardlab.costs import collectives
from shardlab.costs.compute import flops
from shardlab.costs.facts import hardware, network
from shardlab.costs.traces import matching, writing
from shardlab.costs.traces.replay import replay
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import collectives as ours
from shardlab.ranks import data_parallel, transformer
from shardlab.ranks.observe import ledger

SPEC = TransformerSpec(vocab_size=64, context_length=16, hidden_size=32, num_layers=2, num_heads=2)
LINK, CHIP = hardware.link("NVLink 4"), hardware.chip("H100 SXM 80 GB")
NBYTES = 4 * 120_000


def steps(events):
    return [(event.kind, event.op) for event in events]


def ring(x, group):
    """Run a ring all-reduce made of messages, in the plainest way."""
    rank, size = group.rank(), group.size()
    pieces = list(x.clone().chunk(size))
    for step in range(2 * (size - 1)):
        out, into = (rank - step) % size, (rank - step - 1) % size
        arrived = comm.exchange(pieces[out], group, to=(rank + 1) % size, source=(rank - 1) % size)
        pieces[into] = pieces[into] + arrived if step < size - 1 else arrived
    return torch.cat(pieces)


def doubling(x, group):
    distance = 1
    while distance < group.size():
        partner = group.rank() ^ distance
        x = x + comm.exchange(x, group, to=partner, source=partner)
        distance *= 2
    return x


def naive(x, group):
    """Send every rank's tensor to rank 0, one after the other, and the sum back to every rank."""
    if group.rank():
        comm.send(x, group, to=0)
        return comm.receive(x, group, source=0)
    for source in range(1, group.size()):
        x = x + comm.receive(x, group, source=source)
    for to in range(1, group.size()):
        comm.send(x, group, to=to)
    return x


BY_MESSAGES = {
    "ring": (ring, lambda n: (2 * (n - 1), 2 * (n - 1) / n)),
    "doubling": (doubling, lambda n: (n.bit_length() - 1, n.bit_length() - 1)),
    "naive": (naive, lambda n: (2 * (n - 1), 2 * (n - 1))),
}


def record_all(group):
    """Record everything that these tests need in one run: name -> what this rank recorded."""
    torch.manual_seed(group.rank())
    recorded = {}
    for name, (algorithm, _) in BY_MESSAGES.items():
        with ledger.Ledger() as book:
            algorithm(torch.ones(NBYTES // 4), group)
        recorded[name] = book.trace
    for name, plan in exchanges.ALL_REDUCES.items():
        with ledger.Ledger() as book:
            ours.all_reduce(torch.ones(NBYTES // 4), group, plan, check=False)
        recorded[f"our {name}"] = book.trace
    for name, record in RECORDINGS.items():
        recorded[name] = record(group)
    return recorded


def wrapped(kind, group):
    model = transformer.Transformer(SPEC)
    if kind == "ours":
        return data_parallel.DataParallel(model, group, bucket_bytes=20_000)
    views = kind == "views"
    return nn.parallel.DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=0.02, gradient_as_bucket_view=views
    )


def data_parallel_step(kind, group):
    """Record the third training step, because torch's DDP rebuilds its buckets in the second."""
    model, tokens = wrapped(kind, group), torch.randint(64, (2, 17))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with ledger.Ledger() as book:
            with book.span("forward"):
                loss = model(tokens[:, :-1], tokens[:, 1:])
            with book.span("backward"):
                loss.backward()
            with book.span("update"):
                optimizer.step()
    return book.trace, {event.op: event.flops for event in book.events if event.kind == "compute"}


def overlapped(group):
    x, y = torch.ones(8), torch.ones(64, 64)
    with ledger.Ledger() as book:
        with book.span("before"):
            y @ y
        work = torch.distributed.all_reduce(x, group=group, async_op=True)
        view = x[:4]  # looking at a buffer's address is not using it
        with book.span("meanwhile"):
            y @ y @ y
        work.wait()
        view + 1
        y @ y
    return book.trace


def halves(group, in_words):
    """Two messages fill the halves of one buffer; a use of the first implies nothing about the second."""
    whole, other = torch.zeros(8), 1 - group.rank()
    with ledger.Ledger() as book:
        works = [torch.distributed.irecv(half, other, group=group, tag=tag) for tag, half in enumerate(whole.split(4))]
        for tag in range(2):
            torch.distributed.isend(torch.ones(4), other, group=group, tag=tag)
        works[0].wait()
        whole[:4] + 1
        whole[4:] + 1
        if in_words:
            torch.ones(4, 4) @ torch.ones(4, 4)
            works[1].wait()
    if not in_words:
        works[1].wait()
    return book.trace


def from_anyone(group):
    x = torch.ones(4)
    with ledger.Ledger() as book:
        if group.rank():
            torch.distributed.recv(x)
        else:
            comm.send(x, group, to=1)
    return book.trace


def fully_sharded(group):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    model = nn.Sequential(*(fully_shard(nn.Linear(16, 16), mesh=mesh) for _ in range(2)))
    fully_shard(model, mesh=mesh)
    with ledger.Ledger() as book:
        model(torch.ones(4, 16)).sum().backward()
    return book.trace


RECORDINGS = {
    "ours": lambda group: data_parallel_step("ours", group),
    "torch's": lambda group: data_parallel_step("torch's", group),
    "views": lambda group: data_parallel_step("views", group),
    "overlapped": overlapped,
    "fully sharded": fully_sharded,
}


@pytest.fixture(scope="module")
def four():
    return launch.run(record_all, world_size=4)


@pytest.fixture(scope="module")
def two():
    return launch.run(
        lambda group: {
            "halves": halves(group, in_words=False),
            "in words": halves(group, in_words=True),
            "from anyone": from_anyone(group),
        },
        world_size=2,
    )


def merged(recorded, name):
    parts = [each[name] for each in recorded]
    return [event for part in parts for event in (part[0] if isinstance(part, tuple) else part)]


@pytest.mark.parametrize("name", BY_MESSAGES)
@pytest.mark.counted("replay", "seconds of recorded messages, replayed on a uniform network")
def test_recorded_messages_replay_in_the_time_of_the_formula(four, name):
    """They agree to 1e-9 on a uniform network: the speed of this machine plays no part."""
    num_steps, carried = BY_MESSAGES[name][1](4)
    played = replay(merged(four, name), network.uniform(4, LINK, CHIP), link_utilisation=1.0)
    expected = num_steps * LINK.latency + carried * NBYTES / LINK.bandwidth
    assert played.seconds == pytest.approx(expected, rel=1e-9, abs=0)


TEXTBOOK = {  # steps, and buffers that follow one another, on 4 ranks: Thakur et al. 2005, doi:10.1177/1094342005051521
    "ring": (6, 1.5),
    "recursive doubling": (2, 2),
    "halving-doubling": (4, 1.5),
}


@pytest.mark.parametrize("name", TEXTBOOK)
@pytest.mark.counted("replay", "seconds of our recorded all-reduces, replayed, by the textbook")
def test_our_collectives_replay_in_the_time_of_the_textbook(four, name):
    """The record of a plan, with receives that start early, takes as long as the plan itself."""
    num_steps, carried = TEXTBOOK[name]
    cluster, recorded = network.uniform(4, LINK, CHIP), merged(four, f"our {name}")
    expected = num_steps * LINK.latency + carried * NBYTES / LINK.bandwidth
    assert replay(recorded, cluster, link_utilisation=1.0).seconds == pytest.approx(expected, rel=1e-9, abs=0)
    planned = replay(writing.of_plan(exchanges.ALL_REDUCES[name](4), NBYTES), cluster, link_utilisation=1.0)
    assert planned.seconds == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize("name", ["ours", "torch's", "views"])
@pytest.mark.counted("compute", "FLOPs of a training step on ranks, by the ledger")
def test_a_training_step_counts_the_flops_that_are_predicted(four, name):
    """Forward is exact; backward recomputes the scores of attention, as flash attention does."""
    predicted = flops.training_step(SPEC, batch=2, sequence=16)
    for trace, spans in (each[name] for each in four):
        assert spans["forward"] == sum(predicted["forward"].values())
        again = predicted["forward"]["scores"] / 2  # queries by keys, of the two products
        assert spans["backward"] == sum(predicted["backward"].values()) + again
        assert spans["update"] == 0
        for span in ("forward", "backward"):
            assert sum(event.flops for event in trace if event.op == span) == spans[span]


@pytest.mark.parametrize("name", ["ours", "torch's", "views"])
def test_buckets_leave_during_backward_and_are_waited_for_after_it(four, name):
    for trace, _ in (each[name] for each in four):
        reduced = [index for index, event in enumerate(trace) if event.op == "all_reduce"]
        computed = [index for index, event in enumerate(trace) if event.op == "backward" and event.flops]
        numbers = {trace[index].number for index in reduced}
        waited = [index for index, event in enumerate(trace) if event.kind == "idle" and event.number in numbers]
        assert len(reduced) == len(waited) > 2
        assert reduced[0] < computed[-1] < waited[0]
        assert max(reduced) < min(waited)


@pytest.mark.parametrize("name", ["ours", "torch's", "views"])
@pytest.mark.counted("data_parallel", "seconds that a replayed step shows of its averaging")
def test_a_replayed_step_hides_what_the_formula_hides(four, name):
    """With a slow chip and a fast link, only what is sent after the last computing takes extra time."""
    trace = merged(four, name)
    cluster = network.uniform(4, LINK, hardware.chip("V100 SXM2 32 GB"))
    speed = 1e-6 * cluster.node.chip.peak_flops
    played = replay(trace, cluster, rate=speed, link_utilisation=1.0)
    computing = sum(event.flops for event in trace if event.rank == 0) / speed
    mine = [event for event in trace if event.rank == 0]
    end = max(index for index, event in enumerate(mine) if event.flops)
    left = [collectives.ring_all_reduce(e.nbytes, 4).seconds(LINK) for e in mine[end:] if e.op == "all_reduce"]
    assert left
    assert played.seconds - computing == pytest.approx(sum(left))


def test_an_operation_is_issued_here_and_waited_for_there(four):
    trace = four[0]["overlapped"]
    assert steps(trace) == [
        ("compute", "before"), ("communicate", "all_reduce"), ("compute", "meanwhile"), ("idle", "waiting"),
        ("compute", "compute"),
    ]  # fmt: skip
    assert [event.flops for event in trace] == [2 * 64**3, 0, 4 * 64**3, 0, 2 * 64**3]
    assert trace[3].number == trace[1].number
    times = [time for event in trace if event.kind != "communicate" for time in (event.start, event.end)]
    assert times == sorted(times)


def test_using_a_part_of_a_buffer_waits_for_that_part_alone(two):
    """The message with tag 0 has an explicit wait; that with tag 1 is waited for by a use of its half."""
    trace = two[0]["halves"]
    received = {event.tag: event.number for event in trace if event.op == "receive"}
    assert [event.number for event in trace if event.kind == "idle"] == [received[0], received[1]]
    assert [event.peer for event in trace if event.kind == "communicate"] == [1] * 4


def test_words_count_where_there_are_any(two):
    """A receive may start early and its buffer be used meanwhile; an explicit wait is the one that counts."""
    trace = two[0]["in words"]
    received = {event.tag: event.number for event in trace if event.op == "receive"}
    assert [(event.op, event.number) for event in trace[4:]] == [
        ("waiting", received[0]), ("compute", None), ("waiting", received[1]),
    ]  # fmt: skip


def test_who_sent_is_known_when_it_has_arrived(two):
    (sent, _), (received, _) = (each["from anyone"] for each in two)
    assert (sent.peer, received.peer, received.op) == (1, 0, "receive")
    assert len(matching.meetings(merged(two, "from anyone"))) == 1


def test_fully_sharded_modules_can_be_replayed(four):
    """Parameters are gathered and waited for before they are used, so the replay overlaps nothing."""
    trace = merged(four, "fully sharded")
    mine = [event for event in trace if event.rank == 0]
    for op in ("all_gather", "reduce_scatter"):
        numbers = [event.number for event in mine if event.op == op]
        assert numbers
        assert set(numbers) <= {event.number for event in mine if event.kind == "idle"}
    first = next(index for index, event in enumerate(mine) if event.flops)
    assert ("idle", "waiting") in steps(mine[:first])
    played = replay(trace, network.uniform(4, LINK, CHIP))
    assert played.seconds > 0
    assert sum(event.flops for event in mine) == 4 * 3 * 2 * 16 * 16 * 2 - 2 * 4 * 16 * 16  # no gradient of the input
