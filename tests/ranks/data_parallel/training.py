"""Share a net, its data, and trainings in one process and on ranks, among tests of data parallelism."""

import functools

import torch
from torch import nn

from shardlab.ranks.data_parallel import DataParallel, sampler
from tests.ranks.tolerance import EXACT

SAMPLES, STEPS = 128, 4
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
