"""The list that a text gives is what ranks send: verbs, order and bytes, by the plain files and the engine."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from shardlab import trace
from shardlab.launch import run
from shardlab.plain import (
    context_parallel,
    data_parallel,
    expert_parallel,
    ring_attention,
    tensor_parallel,
    zero,
)
from shardlab.ranks.observe.ledger import Ledger
from shardlab.ranks.tensor_parallel.sequence import GatherSequence, ScatterSequence
from shardlab.sharding.types.methods import METHODS

SIZES = {"B": 4, "S": 4, "h": 8, "f": 16, "H": 4, "e": 2, "V": 32, "G": 4, "T": 3, "E": 4, "C": 2}


def tensor(*shape):
    return torch.ones(shape, requires_grad=True)


def attention(group):
    """Heads are cut with the columns of one matrix, which has queries, keys and values."""
    columns = tensor_parallel.ColumnLinear(nn.Linear(8, 24, bias=False), group)
    rows = tensor_parallel.RowLinear(nn.Linear(8, 8, bias=False), group)
    q, k, v = columns(tensor(4, 4, 8)).chunk(3, -1)
    rows(q.softmax(-1) * k * v).sum().backward()


def mlp(group):
    columns = tensor_parallel.ColumnLinear(nn.Linear(8, 16, bias=False), group)
    rows = tensor_parallel.RowLinear(nn.Linear(16, 8, bias=False), group)
    rows(functional.gelu(columns(tensor(4, 4, 8)))).sum().backward()


def sequence(group):
    """A gain on this rank's tokens, and the block on those of all."""
    n = group.size()
    x = tensor(4, 4 // n, 8) * tensor_parallel.CopyToRanks.apply(tensor(8), group)
    hidden = functional.gelu(GatherSequence.apply(x, group) @ tensor(8, 16 // n))
    ScatterSequence.apply(hidden @ tensor(16 // n, 8), group).sum().backward()


def embedding(group):
    table = tensor_parallel.VocabularyEmbedding(nn.Embedding(32, 8), group)
    table(torch.zeros(4, 4, dtype=torch.long)).sum().backward()


def loss(group):
    logits = tensor(4, 4, 32 // group.size())
    tensor_parallel.cross_entropy(logits, torch.zeros(4, 4, dtype=torch.long), group).backward()


def attend(group, name):
    order = context_parallel.contiguous(4, group)
    context = context_parallel.Context(torch.zeros(4, dtype=torch.long), order, group)
    q, k, v = (tensor(4, 4, 4 // group.size(), 2) for _ in range(3))
    getattr(context, name)(q, k, v).sum().backward()


def ring(group):
    q, k, v = (tensor(4, 4, 4 // group.size(), 2) for _ in range(3))
    seen = torch.ones(4 // group.size(), 4, dtype=torch.bool)
    ring_attention.ring(q, k, v, seen, group).sum().backward()


def experts(group):
    """As many rows for each rank, which is what slots of equal capacity are."""
    n = group.size()
    rows = tensor(4 // n * 4 * 2, 8)
    even = [len(rows) // n] * n
    there = expert_parallel.AllToAllRows.apply(rows, group, even, even)
    expert_parallel.AllToAllRows.apply(functional.gelu(there), group, even, even).sum().backward()


def replicas(group):
    model = nn.Linear(8, 16, bias=False)
    model(torch.ones(4 // group.size(), 8)).square().sum().backward()
    data_parallel.average_gradients(model, group, 1 / group.size())


def sharded(group, stage):
    states = getattr(zero, stage)([nn.Linear(8, 16, bias=False)], group, functools.partial(torch.optim.SGD, lr=0.1))
    states.step(torch.ones(4 // group.size(), 8), torch.zeros(()), lambda y, _: y.square().sum(), 1.0)


ON_RANKS = {  # what runs -> the text whose list it has
    mlp: "tensor parallel mlp",
    attention: "tensor parallel attention",
    sequence: "sequence parallel mlp",
    embedding: "vocabulary parallel embedding",
    loss: "vocabulary parallel loss",
    functools.partial(attend, name="gathered"): "gathered keys",
    functools.partial(attend, name="ulysses"): "ulysses",
    ring: "ring attention",
    experts: "expert parallel",
    replicas: "data parallel step",
    functools.partial(sharded, stage="ZeRO1"): "zero 1",
    functools.partial(sharded, stage="ZeRO2"): "zero 1",
    functools.partial(sharded, stage="ZeRO3"): "zero 3",
}


def recorded(group, call):
    with Ledger() as ledger:
        call(group)
    return [(each.op, trace.wire_bytes(each)) for each in trace.communication(ledger.events) if each.op != "receive"]


@pytest.mark.counted("sharding", "collectives of each method, with their bytes, as its text lists them")
@pytest.mark.parametrize("call", ON_RANKS, ids=lambda call: str(getattr(call, "keywords", "") or call.__name__))
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_list_of_a_text_is_that_of_the_ledger(call, ranks):
    """Single numbers, counts and losses, are left out: the plain files know their denominators."""
    method = METHODS[ON_RANKS[call]]
    axes = {axis for x in method.types for axis in x.axes}
    mesh = dict.fromkeys(axes, ranks) | ({"dp": 1} if "tp" in axes else {})
    number = trace.ring_bytes("all_reduce", 4, ranks)
    listed = [(verb, sent) for verb, _, sent in method.trace(mesh, SIZES, itemsize=4).collectives()]
    expected = [(verb, sent) for verb, sent in listed if sent > number]
    assert expected
    for seen in run(recorded, call, world_size=ranks):
        assert seen == expected
