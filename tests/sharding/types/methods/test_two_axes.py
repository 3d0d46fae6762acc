"""On a mesh of two axes, too, the list of a text is what ranks send: verb, axis and bytes, end of the step included.

A layer's text is read with types that name both axes, and what follows it sums gradients over the outer one.
"""

import functools
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional

from shardlab import comm, trace
from shardlab.launch import run
from shardlab.plain import context_parallel, data_parallel, expert_parallel, ring_attention, tensor_parallel, zero
from shardlab.ranks.data_parallel.engine import DataParallel
from shardlab.ranks.observe.ledger import Ledger
from shardlab.ranks.tensor_parallel.sequence import GatherSequence, ScatterSequence
from shardlab.ranks.zero import shard
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.methods.method import layer
from shardlab.sharding.types.tracer import Tracer

SIZES = {"B": 4, "S": 8, "h": 8, "f": 16, "H": 16, "e": 2, "G": 4, "E": 4, "C": 2}
MLP, SEQUENCE = METHODS["tensor parallel mlp"], METHODS["sequence parallel mlp"]


class Weights(nn.Module):
    """Named parameters of ones."""

    def __init__(self, **shapes):
        super().__init__()
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.ones(shape)))


def ones(*shape):
    return torch.ones(shape, requires_grad=True)


def block(tp):
    columns = tensor_parallel.ColumnLinear(nn.Linear(8, 16, bias=False), tp)
    rows = tensor_parallel.RowLinear(nn.Linear(16, 8, bias=False), tp)
    return nn.Sequential(columns, nn.GELU(), rows)


def replicas(tp, dp):
    model = block(tp)
    model(ones(4 // dp.size(), 8, 8)).sum().backward()
    data_parallel.average_gradients(model, dp, 1 / dp.size())


def sharded(tp, dp, stage):
    states = getattr(zero, stage)([block(tp)], dp, functools.partial(torch.optim.SGD, lr=0.1))
    states.step(ones(4 // dp.size(), 8, 8), torch.zeros(()), lambda y, _: y.square().sum(), 1.0)


def experts(tp, ep):
    """This rank's experts, which tp cuts; each has eight slots."""
    n, local = tp.size(), 4 // ep.size()
    even = [8 * local // ep.size()] * ep.size()
    there = expert_parallel.AllToAllRows.apply(ones(8 * local, 8), ep, even, even)
    x = tensor_parallel.CopyToRanks.apply(there.view(local, 8, 8), tp)
    y = functional.gelu(x @ ones(local, 8, 16 // n)) @ ones(local, 16 // n, 8)
    y = tensor_parallel.SumOverRanks.apply(y, tp).flatten(0, 1)
    expert_parallel.AllToAllRows.apply(y, ep, even, even).sum().backward()


def sequence(tp, dp):
    n = tp.size()
    model = Weights(gain=(8,), up=(8, 16 // n), down=(16 // n, 8))
    x = ones(4 // dp.size(), 8 // n, 8) * tensor_parallel.CopyToRanks.apply(model.gain, tp)
    hidden = functional.gelu(GatherSequence.apply(x, tp) @ model.up)
    ScatterSequence.apply(hidden @ model.down, tp).sum().backward()
    data_parallel.average_gradients(model, dp, 1 / dp.size())


def attention(tp, cp, way):
    """This rank's heads of its part of the sequence."""
    n, length = tp.size(), 8 // cp.size()
    model = Weights(**dict.fromkeys(("query", "key", "value"), (8, 32 // n)), out=(32 // n, 8))
    context = context_parallel.Context(torch.zeros(8, dtype=torch.long), context_parallel.contiguous(8, cp), cp)
    ring = functools.partial(ring_attention.ring, mask=context.mask, group=cp)
    attend = ring if way == "ring attention" else {"gathered keys": context.gathered, "ulysses": context.ulysses}[way]
    x = tensor_parallel.CopyToRanks.apply(ones(4, length, 8), tp)
    q, k, v = ((x @ w).view(4, length, -1, 2).transpose(1, 2) for w in (model.query, model.key, model.value))
    y = attend(q, k, v).transpose(1, 2).flatten(2) @ model.out
    tensor_parallel.SumOverRanks.apply(y, tp).sum().backward()
    data_parallel.average_gradients(model, cp, 1 / cp.size())


def heads_of_parts(way):
    """Make a text of two: heads are cut by tp, and what they attend to by cp."""
    weight = "[h, H/tp, e] R@cp"

    @layer(x="[B, S/cp, h]", query=weight, key=weight, value=weight, out="[H/tp, e, h] R@cp")
    def text(on, x, query, key, value, out):
        x = on.redistribute(x, "tp", "I -> R")
        q, k, v = (on.product("B H S e", x, w) for w in (query, key, value))
        y = METHODS[way].text(on, q, k, v)
        return on.redistribute(on.product("B S h", y, out), "tp", "P -> I")

    return text


@layer(slots="[G/ep, E, C, h]", up="[E/ep, h, f/tp]", down="[E/ep, f/tp, h]")
def cut_experts(on, slots, up, down):
    """Experts are on the ranks of ep, and cut along tp."""
    slots = on.redistribute(slots, "ep", "S(G) -> S(E)")
    slots = on.redistribute(slots, "tp", "I -> R")
    hidden = on.function("gelu", on.product("G E C f", slots, up))
    slots = on.redistribute(on.product("G E C h", hidden, down), "tp", "P -> I")
    return on.redistribute(slots, "ep", "S(E) -> S(G)")


def gathered_mlp(again):
    """Make a text that gathers a layer along dp, and once more in backward; again: to compute it once more, too."""

    @layer(x="[B/dp, S, h]", up="[h/dp, f/tp]", down="[f/tp, h/dp]")
    def text(on, x, up, down):
        up, down = (on.redistribute(each, "dp", "S(h) -> R", again=True) for each in (up, down))
        x = on.redistribute(x, "tp", "I -> R")
        hidden = on.function("gelu", on.product("B S f", x, up))
        return on.redistribute(on.product("B S h", hidden, down), "tp", "P -> I", again=again)

    return text


CASES = {  # what runs on (tp, outer) -> the text, the outer axis, and the state in which it leaves gradients
    replicas: (MLP, "dp", "I"),
    functools.partial(sharded, stage="ZeRO1"): (MLP, "dp", "S(h)"),
    functools.partial(sharded, stage="ZeRO2"): (MLP, "dp", "S(h)"),
    experts: (cut_experts, "ep", "I"),
    sequence: (SEQUENCE, "dp", "I"),
    **{
        functools.partial(attention, way=way): (heads_of_parts(way), "cp", "I")
        for way in ("gathered keys", "ulysses", "ring attention")
    },
}


def engine(tp, dp, stage):
    model = nn.Sequential(block(tp))
    x = ones(4 // dp.size(), 8, 8)
    if not stage:
        replica = DataParallel(model, dp)
        return lambda: replica(x).square().sum().backward()
    states = shard(model, dp, stage=stage, optimizer=functools.partial(torch.optim.SGD, lr=0.1), layers=[model[0]])

    def step():
        model(x).square().sum().backward()
        states.step()

    return step


def plain_zero_3(tp, dp):
    return functools.partial(sharded, tp, dp, "ZeRO3")


LAYERS = {  # what treats a layer as one -> as above
    functools.partial(engine, stage=0): (MLP, "dp", "I"),
    functools.partial(engine, stage=1): (MLP, "dp", "S(h)"),
    functools.partial(engine, stage=2): (MLP, "dp", "S(h)"),
    functools.partial(engine, stage=3): (gathered_mlp(again=False), "dp", "I"),
    plain_zero_3: (gathered_mlp(again=True), "dp", "I"),
}


def listed(text, mesh, outer, state):
    """Trace a layer, and the end of its step: each parameter is R along the outer axis, so its gradient is P."""
    on = Tracer(mesh, SIZES, itemsize=4)
    inputs = [on.given(each) for each in text.inputs.values()]
    text(on, *inputs)
    weights = [w for w in inputs if outer in w.replicated]
    summed = [on.redistribute(on.gradient(w), outer, f"P -> {state}") for w in weights]
    for piece in summed if state != "I" else []:
        on.redistribute(piece, outer, f"{state} -> R")
    return on.collectives()


def recorded(world, call, inner):
    """Neighbours are along tp. An engine is made first, and returns its step."""
    groups = comm.split(world, inner), comm.across(world, inner)
    call = call(*groups) if call in LAYERS else functools.partial(call, *groups)
    with Ledger() as ledger:
        call()
    events = [each for each in trace.communication(ledger.events) if each.op != "receive"]
    return [(each.op, each.group[1] - each.group[0] == 1, trace.wire_bytes(each)) for each in events]


def expected(text, outer, state, inner, ranks):
    mesh = {outer: ranks // inner, "tp": inner}
    found = [(verb, axis == "tp", sent) for verb, axis, sent in listed(text, mesh, outer, state)]
    assert {along_tp for _, along_tp, _ in found} == {True, False}
    return found


def totals(events):
    """Sum bytes by verb and axis. On CPUs the ranks of an engine send each other the slices of a reduce-scatter."""
    found = Counter()
    for verb, along_tp, sent in events:
        found["reduce_scatter" if verb == "send" else verb, along_tp] += sent
    return found


@pytest.mark.parametrize("call", CASES, ids=lambda call: str(getattr(call, "keywords", "") or call.__name__))
@pytest.mark.parametrize(("inner", "ranks"), [(2, 4), (2, 8)])
def test_the_list_of_a_text_on_two_axes_is_that_of_the_ledger(call, inner, ranks):
    for seen in run(recorded, call, inner, world_size=ranks):
        assert seen == expected(*CASES[call], inner, ranks)


@pytest.mark.parametrize("call", LAYERS, ids=lambda call: str(getattr(call, "keywords", "") or call.__name__))
@pytest.mark.parametrize(("inner", "ranks"), [(2, 4), (2, 8)])
def test_what_sends_a_layer_at_once_sends_the_bytes_of_its_lines(call, inner, ranks):
    """A buffer has both matrices, and a gather of both comes before the layer's backward: other messages, in order."""
    for seen in run(recorded, call, inner, world_size=ranks):
        assert seen != expected(*LAYERS[call], inner, ranks)
        assert totals(seen) == totals(expected(*LAYERS[call], inner, ranks))
