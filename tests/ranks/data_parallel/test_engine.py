"""Data parallelism against one process and against torch's DDP: every parameter, every step."""

import copy
import functools
import gc
import time
import weakref
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shardlab.ranks import agreement, comm
from shardlab.ranks.data_parallel import DataParallel, sampler
from shardlab.ranks.launch import RankError, run
from shardlab.ranks.observe import ledger

SAMPLES, STEPS = 128, 4
EXACT = {"rtol": 0, "atol": 1e-12}
STRATEGIES = {
    "per parameter": {"bucket_bytes": 0, "overlap": False},
    "per parameter, overlapped": {"bucket_bytes": 0, "overlap": True},
    "buckets": {"bucket_bytes": 1500, "overlap": False},
    "buckets, overlapped": {"bucket_bytes": 1500, "overlap": True},
    "one bucket": {"overlap": True},
}


class Net(nn.Module):
    """A net with tied, frozen, scalar and transposed weights, and maybe an unused layer."""

    def __init__(self, unused=False):
        super().__init__()
        self.first = nn.Linear(6, 10)
        self.frozen = nn.Linear(10, 10).requires_grad_(False)
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.transposed = nn.Parameter(torch.randn(10, 4).T)  # [4, 10], not contiguous
        self.tied = nn.Linear(6, 10, bias=False)
        self.tied.weight = self.first.weight
        if unused:
            self.unused = nn.Linear(10, 3)
        self.double()

    def forward(self, x):
        h = torch.tanh(self.first(x)) * self.gain + self.frozen(self.tied(x))
        return h @ self.transposed.T


def net(seed, **options):
    torch.manual_seed(seed)
    return Net(**options)


def data(step):
    """Draw the samples of one step, over all ranks: [128, 6] and [128, 4]."""
    generator = torch.Generator().manual_seed(100 + step)
    return [
        torch.randn(SAMPLES, width, dtype=torch.float64, generator=generator) for width in (6, 4)
    ]


def part(step, group, samples=SAMPLES):
    """Return this rank's samples of one step, and the weight of their mean."""
    mine = sampler.shard(samples, group.rank(), group.size())
    x, y = (whole[mine.start : mine.stop] for whole in data(step))
    return x, y, sampler.weight(len(mine), samples, group.size())


def error(model, x, y):
    return (model(x) - y).pow(2).mean()


def optimizer(model):
    """Make an AdamW: it moves parameters by a zero gradient too, so zero instead of None shows."""
    return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)


def state(model):
    """Copy every parameter and gradient."""
    return [
        (p.detach().clone(), None if p.grad is None else p.grad.clone()) for p in model.parameters()
    ]


@functools.cache
def alone(samples=SAMPLES, clip=None, **options):
    """Return the history of one process that sees all samples."""
    model, history = net(0, **options), []
    adam = optimizer(model)
    for step in range(STEPS):
        x, y = (whole[:samples] for whole in data(step))
        adam.zero_grad()
        error(model, x, y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        adam.step()
        history.append(state(model))
    return history


def together(group, samples=SAMPLES, clip=None, weighted=True, options=None, **strategy):
    """Return the history of one rank; every rank starts from its own seed."""
    wrapped, history = DataParallel(net(group.rank(), **(options or {})), group, **strategy), []
    adam = optimizer(wrapped)
    for step in range(STEPS):
        x, y, weight = part(step, group, samples)
        adam.zero_grad()
        (error(wrapped, x, y) * (weight if weighted else 1)).backward()
        if clip:
            nn.utils.clip_grad_norm_(wrapped.parameters(), clip)
        adam.step()
        history.append(state(wrapped))
    return history


def assert_same(history, reference):
    assert len(history) == len(reference)
    for step, (ours, theirs) in enumerate(zip(history, reference, strict=True)):
        for index, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
            where = f"step {step}, parameter {index}"
            torch.testing.assert_close(
                mine, its, **EXACT, msg=lambda text, where=where: f"{where}: {text}"
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


# ---- parameters that no backward, or not every backward, reaches ---------------------------------


def test_unused_parameters_stay_untouched_as_in_one_process():
    reference = alone(unused=True)
    assert [grad for _, grad in reference[-1]].count(
        None
    ) == 4  # frozen and unused, weight and bias
    options = {"options": {"unused": True}, "find_unused": True, "bucket_bytes": 300}
    for history in run(lambda group: together(group, **options), world_size=3):
        assert_same(history, reference)


def test_unused_parameters_are_an_error_unless_allowed():
    message = (
        r"no gradient to 2 parameters of rank \d \(unused.weight, unused.bias\).*find_unused=True"
    )
    with pytest.raises(RankError, match=message):
        run(lambda group: together(group, options={"unused": True}), world_size=2)


class Branches(nn.Module):
    """Three layers: all ranks use layer 0, odd ranks layer 1, and none layer 2."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3, dtype=torch.float64) for _ in range(3))

    def forward(self, x, odd):
        return self.layers[1](self.layers[0](x)) if odd else self.layers[0](x)


def test_a_parameter_used_by_some_ranks_gets_the_average_on_all():
    """In a first step all ranks use layer 1, so that its view in the bucket holds old numbers."""

    def step(group):
        torch.manual_seed(0)
        wrapped = DataParallel(Branches(), group, find_unused=True, bucket_bytes=100)
        x = torch.full((2, 3), group.rank() + 1.0, dtype=torch.float64)
        wrapped(x, odd=True).sum().backward()
        wrapped.zero_grad()
        wrapped(x, odd=group.rank() % 2 == 1).sum().backward()
        return state(wrapped)

    torch.manual_seed(0)
    model = Branches()
    for rank in range(3):
        (
            model(torch.full((2, 3), rank + 1.0, dtype=torch.float64), odd=rank % 2 == 1).sum() / 3
        ).backward()
    for ours in run(step, world_size=3):
        assert_same([ours], [state(model)])


def test_gradients_of_earlier_microbatches_count_where_the_last_one_reaches_nothing():
    def step(group):
        torch.manual_seed(0)
        wrapped = DataParallel(Branches(), group, find_unused=True, bucket_bytes=100)
        x = torch.full((2, 3), group.rank() + 1.0, dtype=torch.float64)
        with wrapped.no_sync():
            wrapped(x, odd=True).sum().backward()
        wrapped(x, odd=False).sum().backward()
        return state(wrapped)

    torch.manual_seed(0)
    model = Branches()
    for rank in range(2):
        x = torch.full((2, 3), rank + 1.0, dtype=torch.float64)
        for odd in (True, False):
            (model(x, odd).sum() / 2).backward()
    for ours in run(step, world_size=2):
        assert_same([ours], [state(model)])


class TwoOrders(nn.Module):
    """Two layers of equal size; `swapped` reverses the order in which backward reaches them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(3, 3, bias=False, dtype=torch.float64) for _ in range(2)
        )

    def forward(self, x, swapped):
        first, second = reversed(self.layers) if swapped else self.layers
        return second(first(x).tanh())


def test_ranks_send_buckets_in_one_order_whatever_order_backward_has():
    def step(group):
        torch.manual_seed(0)
        wrapped = DataParallel(TwoOrders(), group, bucket_bytes=0)
        x = torch.full((2, 3), group.rank() + 1.0, dtype=torch.float64)
        wrapped(x, swapped=group.rank() == 1).sum().backward()
        return state(wrapped)

    torch.manual_seed(0)
    model = TwoOrders()
    for rank in range(2):
        x = torch.full((2, 3), rank + 1.0, dtype=torch.float64)
        (model(x, swapped=rank == 1).sum() / 2).backward()
    for ours in run(step, world_size=2):
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


# ---- dtypes, aliases, wrapping again -------------------------------------------------------------


def test_gradients_of_several_dtypes():
    def step(group):
        torch.manual_seed(group.rank())
        single, double, half = nn.Linear(3, 5), nn.Linear(5, 2).double(), nn.Linear(2, 3).bfloat16()
        wrapped = DataParallel(nn.ModuleList([single, double, half]), group, bucket_bytes=10**6)
        x = torch.full((1, 3), float(group.rank()))
        half(double(single(x).double()).bfloat16()).sum().backward()
        return len(wrapped.buckets), state(wrapped)

    results = run(step, world_size=2)
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(3, 5), nn.Linear(5, 2).double(), nn.Linear(2, 3).bfloat16()])
    for rank in range(2):
        x = torch.full((1, 3), float(rank))
        (layers[2](layers[1](layers[0](x).double()).bfloat16()).sum() / 2).backward()
    for num_buckets, ours in results:
        assert num_buckets == 3
        for (weight, grad), expected in zip(ours, layers.parameters(), strict=True):
            assert torch.equal(weight, expected)
            tolerance = 0.02 if grad.dtype == torch.bfloat16 else 1e-5
            torch.testing.assert_close(grad, expected.grad, rtol=tolerance, atol=tolerance)


def test_inputs_and_other_tensors_stay_as_they_were():
    def step(group):
        x = torch.full((2, 6), group.rank() + 1.0, dtype=torch.float64, requires_grad=True)
        outside = torch.ones(4, dtype=torch.float64, requires_grad=True)
        before = x.detach().clone()
        (DataParallel(net(0), group)(x) * outside).sum().backward()
        return torch.equal(x, before), x.grad, outside.grad

    model = net(0)
    for rank, (same, x_grad, outside_grad) in enumerate(run(step, world_size=2)):
        x = torch.full((2, 6), rank + 1.0, dtype=torch.float64, requires_grad=True)
        y = model(x)
        assert same
        torch.testing.assert_close(
            x_grad, torch.autograd.grad(y.sum(), x, retain_graph=True)[0], **EXACT
        )
        torch.testing.assert_close(outside_grad, y.sum(0).detach(), **EXACT)


def test_a_module_can_be_wrapped_again_and_leaves_no_hooks_behind():
    def step(group):
        model = net(0)
        first = DataParallel(model, group)
        gone = weakref.ref(first)
        first = DataParallel(
            model, group, bucket_bytes=0
        )  # as in a notebook: the name is used again
        freed = gone() is None
        x, y, weight = part(0, group)
        (error(first, x, y) * weight).backward()
        hooks = [
            len(p._post_accumulate_grad_hooks or {}) for p in model.parameters() if p.requires_grad
        ]
        gc.collect()
        return freed, hooks, state(model)

    model = net(0)
    error(model, *data(0)).backward()
    for freed, hooks, ours in run(step, world_size=2):
        assert freed
        assert hooks == [1] * 4
        assert_same([ours], [state(model)])


def test_checkpointed_layers_need_the_version_that_is_not_reentrant():
    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.shared, self.head, self.reentrant = nn.Linear(3, 3), nn.Linear(3, 1), reentrant

        def forward(self, x):
            for _ in range(2):
                x = checkpoint(self.shared, x, use_reentrant=self.reentrant)
            return self.head(x)

    def step(group, reentrant):
        wrapped = DataParallel(Checkpointed(reentrant), group)
        wrapped(torch.ones(2, 3, requires_grad=True)).sum().backward()
        return True

    assert run(step, False, world_size=2) == [True, True]
    with pytest.raises(RankError, match="use_reentrant=False"):
        run(step, True, world_size=2)


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            Net,
            {"bucket_bytes": -1},
            "bucket_bytes=-1 is negative; use 0 for one message per parameter",
        ),
        (lambda: nn.ReLU(), {}, "no trainable parameter, so there is nothing to average"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), {}, "no trainable parameter"),
        (
            lambda: nn.Linear(2, 2, device="meta"),
            {},
            r"is on meta, but rank 0 communicates from cpu; use module.to\(",
        ),
    ],
)
def test_errors_for_modules_that_cannot_be_trained_say_what_to_do(make, options, message):
    with pytest.raises(RankError, match=f"ValueError: .*{message}"):
        run(lambda group: DataParallel(make(), group, **options) and None, world_size=1)


def freeze(layer):
    """Make two layers of one size, one of them frozen."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[layer].requires_grad_(False)
    return model


DIFFERENT = {
    "shape": lambda odd: nn.Linear(4, 4, bias=False) if odd else nn.Linear(8, 2, bias=False),
    "number": lambda odd: nn.Linear(3, 3, bias=odd),
    "frozen": freeze,
    "dtype": lambda odd: nn.Linear(3, 3, dtype=torch.bfloat16 if odd else torch.float16),
    "order": lambda odd: nn.ModuleDict({name: nn.Linear(3, 3) for name in ("ba" if odd else "ab")}),
    "buffer": lambda odd: nn.ModuleList(
        [nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=odd)]
    ),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_modules_that_differ_between_ranks_are_refused(what):
    """Rank 2 has another module; in most pairs the number of tensors and of bytes are equal."""
    message = "rank 2's module differs from rank 0's .* build the same module, and freeze the same"
    with pytest.raises(RankError, match=message):
        run(
            lambda group: DataParallel(DIFFERENT[what](group.rank() == 2), group) and None,
            world_size=3,
        )


@pytest.mark.parametrize("find_unused", [False, True])
def test_sparse_gradients_are_refused(find_unused):
    def step(group):
        wrapped = DataParallel(nn.Embedding(10, 3, sparse=True), group, find_unused=find_unused)
        wrapped(torch.tensor([1, 2])).sum().backward()

    with pytest.raises(
        RankError,
        match=r"ValueError: .*shape \(10, 3\) is sparse.*use sparse=False in nn.Embedding",
    ):
        run(step, world_size=2)


# ---- after a backward that failed ----------------------------------------------------------------


def fail(tensor):
    raise ArithmeticError("on purpose")


def break_in_backward(wrapped, x):
    """Raise in backward while the all-reduce of the last parameters' gradients is in flight."""
    wrapped.module.first.weight.register_hook(fail)
    with pytest.raises(ArithmeticError):
        wrapped(x).sum().backward()
    wrapped.module.first.weight._backward_hooks.clear()


def reach_too_little(wrapped, x):
    with pytest.raises(RuntimeError, match=r"gave no gradient to 1 parameters .*transposed"):
        wrapped(x).sum().backward(
            inputs=[wrapped.module.first.weight, wrapped.module.first.bias, wrapped.module.gain]
        )


@pytest.mark.parametrize("failure", [break_in_backward, reach_too_little])
@pytest.mark.parametrize("overlap", [False, True])
def test_the_next_forward_drops_what_a_failed_backward_left(failure, overlap):
    def recover(group):
        wrapped = DataParallel(net(group.rank()), group, bucket_bytes=0, overlap=overlap)
        failure(wrapped, part(1, group)[0])
        wrapped.zero_grad()
        x, y, weight = part(0, group)
        loss = error(wrapped, x, y) * weight
        loss.backward()
        return state(wrapped)

    model = net(0)
    error(model, *data(0)).backward()
    for ours in run(recover, world_size=3):
        assert_same([ours], [state(model)])


def test_the_next_forward_waits_for_what_a_failed_backward_sent():
    """Rank 1 sends late, and rank 0 must not go on while its buffer is still being filled."""

    def recover(group):
        wrapped = DataParallel(net(0), group, bucket_bytes=0)
        if group.rank() == 1:
            wrapped.module.transposed.register_hook(lambda _: time.sleep(0.5))
        with ledger.Ledger() as book:
            break_in_backward(wrapped, part(1, group)[0])
            with torch.no_grad():
                wrapped(part(0, group)[0])
            ready = time.perf_counter()
            comm.barrier(group)
        return [event.end <= ready for event in book.events if event.op == "all_reduce"]

    for ended in run(recover, world_size=2):
        assert ended
        assert all(ended)
