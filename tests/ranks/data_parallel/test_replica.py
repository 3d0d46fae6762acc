"""Replicas train as one process that sees all samples: averages, norms and steps."""

import pytest
import torch
from torch import nn

from shardlab import comm
from shardlab.launch import run
from shardlab.ranks.data_parallel.replica import Replica

SHARES = {"0.weight": 1.0, "0.bias": 0.5, "2.weight": 0.0, "2.bias": 1.0}


def model():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    net[2].bias.requires_grad_(False)
    return net


def samples(rank):
    return torch.randn(6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.1)


def replicated(group):
    net = model()
    replica = Replica(dict(net.named_parameters()), group, adam)
    found = []
    for step in range(2):
        net(samples(group.rank() + 10 * step)).pow(2).mean().backward()
        replica.reduce()
        replica.reduce()  # it is averaged already
        square = comm.all_reduce(replica.squared_norm(SHARES.get), group)
        norm = comm.all_reduce(replica.squared_norm(lambda name: 1.0), group).sqrt()
        assert replica.clip(0.1, norm) is norm
        replica.step()
        replica.zero_grad()
        found.append((square.item(), norm.item()))
    return (
        found,
        replica.full_state_dict(),
        [name for name, p in net.named_parameters() if p.grad is not None],
    )


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parity("composition", "replicas step like one process")
def test_replicas_step_like_one_process(size):
    net = model()
    optimizer, expected = adam([p for p in net.parameters() if p.requires_grad]), []
    for step in range(2):
        optimizer.zero_grad()
        net(torch.cat([samples(rank + 10 * step) for rank in range(size)])).pow(2).mean().backward()
        trained = {name: p for name, p in net.named_parameters() if p.grad is not None}
        square = sum(SHARES[name] * p.grad.square().sum().item() for name, p in trained.items())
        expected.append((square, nn.utils.clip_grad_norm_(net.parameters(), 0.1).item()))
        optimizer.step()
    for found, state, left in run(replicated, world_size=size):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert left == []
        for name, weight in net.named_parameters():
            torch.testing.assert_close(state[name], weight.detach(), rtol=0, atol=1e-12)
