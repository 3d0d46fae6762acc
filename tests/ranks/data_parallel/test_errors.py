"""What cannot be trained is refused with advice, and a failed backward leaves nothing behind."""

import time

import pytest
import torch
from torch import nn

from shardlab import comm
from shardlab.launch import RankError, run
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.observe import ledger
from tests.ranks.data_parallel.training import Net, assert_same, data, error, net, part, state


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
