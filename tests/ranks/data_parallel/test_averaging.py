"""Averaged gradients equal one process; averaged weights may not."""

import pytest
import torch
from torch import nn

from shardlab.launch import run
from shardlab.ranks.data_parallel import averaging
from tests.ranks.tolerance import EXACT


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)).double()


def loss(net, rank, step):
    """Compute the loss on as many samples on every rank, but different ones."""
    x = torch.randn(
        8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank)
    )
    return (net(x[:, :4]) - x[:, 4:]).pow(2).mean()


def train(group, what, make_optimizer, every=1):
    """Take six steps that average gradients, or weights every few steps; return the parameters."""
    net = model()
    optimizer = make_optimizer(net.parameters())
    for step in range(6):
        optimizer.zero_grad()
        loss(net, group.rank(), step).backward()
        if what == "gradients":
            for parameter in net.parameters():
                parameter.grad = averaging.mean(parameter.grad, group)
        optimizer.step()
        if what == "weights" and (step + 1) % every == 0:
            averaging.average_weights(net.parameters(), group)
    return [p.detach() for p in net.parameters()]


def alone(world_size, make_optimizer):
    """Take six steps in one process that sees the samples of all ranks; return the parameters."""
    net = model()
    optimizer = make_optimizer(net.parameters())
    for step in range(6):
        optimizer.zero_grad()
        (sum(loss(net, rank, step) for rank in range(world_size)) / world_size).backward()
        optimizer.step()
    return [p.detach() for p in net.parameters()]


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def same(ours, theirs):
    return all(torch.allclose(a, b, **EXACT) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("make_optimizer", [sgd, adam])
@pytest.mark.parity("data_parallel", "plain averaging is one process")
def test_averaged_gradients_equal_one_process(world_size, make_optimizer):
    reference = alone(world_size, make_optimizer)
    results = run(lambda group: train(group, "gradients", make_optimizer), world_size=world_size)
    assert all(same(ours, reference) for ours in results)


def test_a_mean_is_right_and_leaves_its_input_unchanged():
    def call(group):
        x = torch.arange(3.0) * group.rank()
        before = x.clone()
        mean = averaging.mean(x, group)
        assert torch.equal(x, before)
        return mean.tolist()

    assert run(call, world_size=3) == [[0, 1, 2]] * 3


def test_weights_averaged_after_every_step_of_sgd_equal_gradients():
    reference = alone(3, sgd)
    assert all(
        same(ours, reference)
        for ours in run(lambda group: train(group, "weights", sgd), world_size=3)
    )


@pytest.mark.parametrize(("make_optimizer", "every"), [(adam, 1), (sgd, 3), (adam, 3)])
def test_weights_averaged_with_adam_or_less_often_differ_from_averaged_gradients(
    make_optimizer, every
):
    reference = alone(3, make_optimizer)
    results = run(lambda group: train(group, "weights", make_optimizer, every=every), world_size=3)
    assert same(results[0], results[1])
    assert not any(
        torch.allclose(a, b, rtol=0, atol=1e-4) for a, b in zip(results[0], reference, strict=True)
    )
