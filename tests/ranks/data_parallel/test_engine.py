"""Data parallelism against one process and against torch's DDP: every parameter, every step."""

import copy
import functools
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardlab.launch import run
from shardlab.ranks import agreement
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.observe import ledger
from tests.ranks.data_parallel.training import (
    STEPS,
    STRATEGIES,
    Net,
    alone,
    assert_same,
    data,
    error,
    net,
    optimizer,
    part,
    state,
    together,
)

# ---- parity with one process ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "world_size", [1, 2, 3, 4]
)  # 128 samples do not divide by 3: there the weights matter
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parity(
    "data_parallel",
    "128 samples shared by ranks are 128 on one: parameters and gradients, each step",
)
def test_ranks_equal_one_process(world_size, strategy):
    for history in run(
        lambda group: together(group, **STRATEGIES[strategy]), world_size=world_size
    ):
        assert_same(history, alone())


@pytest.mark.parametrize("samples", [5, 7, 126])
@pytest.mark.parity(
    "data_parallel", "batches that do not divide are exact with weights, and wrong without"
)
def test_ragged_batches_are_exact_with_weights_and_wrong_without(samples):
    reference = alone(samples=samples)
    for history in run(lambda group: together(group, samples)):
        assert_same(history, reference)
    for history in run(lambda group: together(group, samples, weighted=False)):
        assert not torch.allclose(history[-1][0][0], reference[-1][0][0])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parity("data_parallel", "clipping after averaging is clipping in one process")
def test_clipping_by_global_norm_after_averaging_is_right(world_size):
    reference = alone(clip=0.05)
    assert not torch.allclose(reference[0][0][1], alone()[0][0][1])  # it does clip
    clipped = functools.partial(together, clip=0.05, bucket_bytes=500)
    for history in run(clipped, world_size=world_size):
        assert_same(history, reference)


def accumulate(group, in_place):
    """Train on three microbatches per step; return history and events before the last one."""
    wrapped, history, early = DataParallel(net(group.rank()), group, bucket_bytes=500), [], []
    adam = optimizer(wrapped)
    for step in range(STEPS):
        x, y, weight = part(step, group)
        pieces = list(zip(x.split(11), y.split(11), strict=True))
        adam.zero_grad(set_to_none=not in_place)
        with ledger.Ledger() as book, wrapped.no_sync():
            for a, b in pieces[:-1]:
                (error(wrapped, a, b) * weight * len(a) / len(x)).backward()
        early += book.events
        a, b = pieces[-1]
        (error(wrapped, a, b) * weight * len(a) / len(x)).backward()
        adam.step()
        history.append(state(wrapped))
    return history, early


@pytest.mark.parametrize("in_place", [False, True], ids=["grad None", "grad zeroed in place"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parity(
    "data_parallel", "gradient accumulation is exact, and sends nothing before its last microbatch"
)
def test_accumulation_under_no_sync_is_exact_and_silent(world_size, in_place):
    for history, early in run(lambda group: accumulate(group, in_place), world_size=world_size):
        assert_same(history, alone())
        assert early == []


def test_every_backward_outside_no_sync_averages_the_accumulated_gradient():
    """Two backwards without zeroing, both averaged: the sum of two averages."""

    def twice(group):
        wrapped = DataParallel(net(0), group)
        for step in range(2):
            x, y, _ = part(step, group)
            error(wrapped, x, y).backward()
        return state(wrapped)

    model = net(0)
    for step in range(2):
        error(model, *data(step)).backward()
    for ours in run(twice, world_size=2):
        assert_same([ours], [state(model)])


# ---- parity with torch's DDP ---------------------------------------------------------------------


class Normed(nn.Module):
    """A net with batch statistics: buffers that differ between ranks unless they are made equal."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)
        ).double()

    def forward(self, x):
        return self.body(x)


def trace_training(wrapped, group):
    """Train on two microbatches per step and evaluate; return the history, with buffers."""
    sgd, history = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9), []
    for step in range(STEPS):
        x, y, _ = part(step, group, 120)
        sgd.zero_grad()
        with wrapped.no_sync():
            error(wrapped, x[::2], y[::2]).backward()
        error(wrapped, x[1::2], y[1::2]).backward()
        sgd.step()
        history.append([*state(wrapped), *((buffer.clone(), None) for buffer in wrapped.buffers())])
        wrapped.eval()
        with torch.no_grad():
            history.append([(wrapped(x[:5]), None)])
        wrapped.train()
    return history


def both(group, make, ours, theirs):
    """Train the same model under DataParallel and under torch's DDP, on one rank."""
    torch.manual_seed(group.rank())
    model = make()
    twin = copy.deepcopy(model)
    mine = trace_training(DataParallel(model, group, **ours), group)
    its = trace_training(DistributedDataParallel(twin, process_group=group, **theirs), group)
    return mine, its


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("make", [Net, Normed])
@pytest.mark.parity("data_parallel", "our DataParallel trains as torch's DDP, buffers included")
def test_equals_torchs_ddp(make, world_size):
    sizes = {"bucket_bytes": 400}, {"bucket_cap_mb": 400 / 2**20}
    for mine, its in run(lambda group: both(group, make, *sizes), world_size=world_size):
        assert_same(mine, its)


@pytest.mark.parity("data_parallel", "the same with parameters that no backward reaches")
def test_equals_torchs_ddp_with_unused_parameters():
    options = {"find_unused": True}, {"find_unused_parameters": True}
    for mine, its in run(
        lambda group: both(group, lambda: Net(unused=True), *options), world_size=2
    ):
        assert_same(mine, its)


def test_evaluation_after_a_step_sees_rank_0s_buffers():
    def evaluate(group):
        torch.manual_seed(group.rank())
        wrapped = DataParallel(Normed(), group)
        x, y, _ = part(0, group)
        error(wrapped, x, y).backward()
        own = next(wrapped.buffers()).clone()
        wrapped.eval()
        with torch.no_grad():
            wrapped(x)
        return own, next(wrapped.buffers()).clone()

    results = run(evaluate, world_size=3)
    assert not torch.equal(results[0][0], results[1][0])  # every rank saw other samples
    for _, after in results:
        assert torch.equal(after, results[0][0])


# ---- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bucket_bytes", "num_buckets"), [(0, 4), (200, 3), (1000, 1), (25 * 2**20, 1)]
)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.counted(
    "data_parallel", "messages and bytes of a backward pass, for each size of buckets"
)
def test_bytes_counted_equal_the_formula(bucket_bytes, num_buckets, overlap):
    def step(group):
        wrapped = DataParallel(net(0), group, bucket_bytes=bucket_bytes, overlap=overlap)
        x, y, _ = part(0, group)
        with ledger.Ledger() as book:
            error(wrapped, x, y).backward()
        return book.events

    for events in run(step, world_size=3):
        # transposed 4 * 10 and gain 1, then the first layer's bias 10 and weight 10 * 6
        assert [event.op for event in events] == ["all_reduce"] * num_buckets
        assert sum(event.nbytes for event in events) == 8 * (4 * 10 + 1 + 10 + 10 * 6)


@pytest.mark.counted("data_parallel", "bytes sent at the start: the whole state, once")
def test_start_sends_the_whole_state_once():
    def start(group):
        model = Normed()
        nbytes = sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
        with ledger.Ledger() as book:
            DataParallel(model, group)
        return nbytes, book.events

    for nbytes, events in run(start, world_size=2):
        assert [event.nbytes for event in events if event.op == "broadcast"] == [nbytes]


def test_start_sends_messages_of_bounded_size():
    """Small tensors share a message and large ones are cut; the limit here is 100 bytes."""

    def start(group):
        model = nn.ModuleList([net(group.rank()), Normed()])
        with ledger.Ledger() as book, mock.patch.object(agreement, "MESSAGE_BYTES", 100):
            DataParallel(model, group)
        tensors = [tensor.detach() for tensor in [*model.parameters(), *model.buffers()]]
        return [event.nbytes for event in book.events if event.op == "broadcast"], tensors

    (sizes, firsts), *others = run(start, world_size=3)
    nbytes = sum(tensor.nbytes for tensor in firsts)
    assert sum(sizes) == nbytes
    assert max(sizes) <= 100
    assert (
        len(sizes) <= 2 * nbytes / 100 + 1
    )  # two neighbours make more than one piece, or they would be one
    for _, tensors in others:
        assert all(torch.equal(mine, its) for mine, its in zip(tensors, firsts, strict=True))


def test_start_makes_every_dtype_equal():
    """gloo cannot send int16, but it can send the same bytes as uint8."""
    dtypes = [
        torch.int16,
        torch.bool,
        torch.float64,
        torch.int64,
        torch.bfloat16,
        torch.uint8,
        torch.complex64,
    ]

    def start(group):
        model = nn.Linear(3, 1)
        for index, dtype in enumerate(dtypes):
            model.register_buffer(f"b{index}", torch.full((index,), 1 - group.rank()).to(dtype))
        DataParallel(model, group)
        return list(model.buffers())

    for buffers in run(start, world_size=2):
        for index, (buffer, dtype) in enumerate(zip(buffers, dtypes, strict=True)):
            assert torch.equal(buffer, torch.ones(index, dtype=dtype))


@pytest.mark.parametrize("overlap", [False, True])
def test_overlap_sends_before_backward_has_ended(overlap):
    def order(group):
        seen = []
        layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        wrapped = DataParallel(layers, group, bucket_bytes=0, overlap=overlap)
        layers[0].weight.register_hook(lambda _: seen.append(len(book.events)))
        with ledger.Ledger() as book:
            wrapped(torch.ones(1, 2)).sum().backward()
        return seen[0], len(book.events)

    for before, in_all in run(order, world_size=2):
        assert in_all == 4
        assert 2 <= before < 4 if overlap else before == 0  # the last layer's two are in flight
