"""Parameters that no backward, or not every backward, reaches, and odd modules, train as in one process."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from shardlab.launch import RankError, run
from shardlab.ranks.data_parallel import DataParallel
from tests.ranks.data_parallel.training import alone, assert_same, data, error, net, part, state, together
from tests.ranks.tolerance import EXACT


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
