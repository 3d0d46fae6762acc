"""Meta's checker, spmd_types, gives the plain files the verdicts that ours gives their texts.

It follows real tensors through a program. What it cannot know, each program tells it:

    functions with a backward of their own     the redistribution that each is
    verbs that fill an empty tensor            the state of their result; so, too, of a maximum over ranks
    gradients, which it does not follow        the mirror of the parameter's state
    cut words                                  that they differ, not which dim is cut: it has no rule for a look-up
"""

import types

import pytest
import torch
from torch import nn
from torch.nn import functional

from shardlab import comm
from shardlab.launch import run
from shardlab.plain import data_parallel, tensor_parallel, zero
from shardlab.ranks.tensor_parallel.sequence import GatherSequence, ScatterSequence
from shardlab.sharding.types.altered import Altered
from shardlab.sharding.types.methods import METHODS
from shardlab.sharding.types.mutants import mutants
from shardlab.sharding.types.tracer import Refusal, Tracer

spmd = pytest.importorskip("spmd_types", reason="spmd_types is not installed: pip install spmd_types==0.3.1")
checker = pytest.importorskip("spmd_types.checker")
rules, R, P, S, V = spmd.rules, spmd.R, spmd.P, spmd.S, spmd.V

SIZES = dict.fromkeys("BSf", 4) | {"h": 8, "V": 8}
PAIRS = {
    tensor_parallel.CopyToRanks: lambda *, x, group: rules.convert(x, group, src=spmd.I, dst=R),
    tensor_parallel.SumOverRanks: lambda *, x, group: rules.all_reduce(x, group, src=spread(x, group), dst=spmd.I),
    GatherSequence: lambda *, x, group: rules.all_gather(x, group, src=S(1), dst=R),
    ScatterSequence: lambda *, x, group: rules.reduce_scatter(x, group, src=P, dst=S(1)),
}


def spread(x, group):
    """What differs where nothing says how, is summed: a term."""
    return V if spmd.get_axis_local_type(x, group) is V and not spmd.get_partition_spec(x) else P


class Removed:
    """The redistributions of a program, counted from 1, one of which is left out."""

    def __init__(self, number):
        self.number, self.seen = number, 0

    def __call__(self, function, instead=lambda x, group: x):
        """Return what is called in place of a function of a tensor and its group."""

        def call(x, group):
            self.seen += 1
            return (instead if self.seen == self.number else function)(x, group)

        return staticmethod(call)


def stated(verb, target):
    """Let the result of a verb have the state that it is known to have."""

    def call(x, group, *options):
        with spmd.no_typecheck():
            y = verb(x, group, *options)
        return spmd.assert_type(y, {group: target})

    return call


def known(x, group, state):
    return spmd.assert_type(x, {group: state})


def tensor(group, state, *shape):
    return known(torch.ones(shape, requires_grad=True), group, state)


def close(y):
    y.square().sum().backward()


def mlp(group):
    columns = tensor_parallel.ColumnLinear(nn.Linear(8, 16, bias=False), group)
    rows = tensor_parallel.RowLinear(nn.Linear(16, 8, bias=False), group)
    known(columns.weight, group, S(0))
    known(rows.weight, group, S(1))
    x = tensor(group, spmd.I, 4, 4, 8)
    return lambda: close(rows(functional.gelu(columns(x))))


def sequence(group):
    x, gain = tensor(group, S(1), 4, 2, 8), tensor(group, spmd.I, 8)
    up, down = tensor(group, S(1), 8, 8), tensor(group, S(0), 8, 8)

    def program():
        y = x * tensor_parallel.CopyToRanks.apply(gain, group)
        hidden = functional.gelu(GatherSequence.apply(y, group) @ up)
        close(ScatterSequence.apply(hidden @ down, group))

    return program


def embedding(group):
    table = tensor_parallel.VocabularyEmbedding(nn.Embedding(8, 8), group)
    known(table.weight, group, V)
    tokens = known(torch.zeros(4, 4, dtype=torch.long), group, R)
    return lambda: close(table(tokens))


def words(group):
    logits = tensor(group, V, 4, 4, 4)
    targets = known(torch.zeros(4, 4, dtype=torch.long), group, R)

    def largest(x, group, op="sum"):
        return (stated(comm.all_reduce, R) if op == "max" else comm.all_reduce)(x, group, op)

    tensor_parallel.comm = types.SimpleNamespace(all_reduce=largest)
    return lambda: tensor_parallel.cross_entropy(logits, targets, group).backward()


def replicas(group):
    model = nn.Linear(8, 4, bias=False)
    known(model.weight, group, R)
    x = known(torch.ones(2, 8), group, S(0))

    def program():
        close(model(x))
        known(model.weight.grad, group, R.backward_type())
        data_parallel.average_gradients(model, group, 1 / 2)
        return model.weight.detach() - model.weight.grad

    return program


def pieces(group):
    model = nn.Linear(8, 4, bias=False)
    states = zero.ZeRO1([model], group, lambda each: torch.optim.SGD(each, lr=0.1))
    known(model.weight, group, R)
    known(states.piece[model.weight], group, S(0))
    x, targets = known(torch.ones(2, 8), group, S(0)), None
    zero.rows = stated(zero.rows, R.backward_type())
    return lambda: states.step(x, targets, lambda y, _: y.square().sum(), 1 / 2)


def verbs(removed):
    """Let all that redistributes count, and one do nothing."""
    for function, hook in PAIRS.items():
        function.spmd_typecheck = staticmethod(hook)
        function.apply = removed(super(function, function).apply)
    data_parallel.comm = types.SimpleNamespace(all_reduce=removed(comm.all_reduce))
    own = stated(lambda x, group: x[group.rank()][None], P)
    summed = removed(stated(comm.reduce_scatter, S(1)), own)
    zero.comm = types.SimpleNamespace(reduce_scatter=summed, all_gather=stated(comm.all_gather, R))


def theirs(group, prepare, numbers):
    """Run a program without one redistribution after another; return which Meta's checker accepts."""
    return [accepts(group, prepare, Removed(number)) for number in numbers]


def accepts(group, prepare, removed):
    with spmd.set_current_mesh({"N": spmd.MeshAxis.of(group)}):
        program = prepare(group)
        with checker.typecheck(local=prepare in (embedding, words)):
            verbs(removed)
            try:
                program()
            except spmd.SpmdTypeError:
                return False
    return True


def ours(name, number):
    method = METHODS[name]
    mesh = dict.fromkeys([axis for x in method.types for axis in x.axes], 2)
    gaps = {each.number: each for each in mutants(method, mesh, SIZES) if each.what == "removed"}
    on = Tracer(mesh, SIZES)
    inputs = [on.given(text) for text in method.inputs.values()]
    try:
        method(Altered(on, *([gaps[number]] if number else [])), *inputs)
    except Refusal:
        return False
    return True


PROGRAMS = {  # a program -> its text, and the text's numbers of the program's redistributions
    mlp: ("tensor parallel mlp", [1, 2]),
    sequence: ("sequence parallel mlp", [1, 2, 3]),
    embedding: ("vocabulary parallel embedding", [1]),
    words: ("vocabulary parallel loss", [1, 2]),
    replicas: ("data parallel step", [2]),
    pieces: ("zero 1", [2]),
}


@pytest.mark.parametrize("prepare", PROGRAMS)
def test_both_checkers_accept_a_method_and_refuse_it_without_a_redistribution(prepare):
    name, numbers = PROGRAMS[prepare]
    expected = [True, *[False for _ in numbers]]
    assert [ours(name, number) for number in [0, *numbers]] == expected
    assert run(theirs, prepare, range(len(expected)), world_size=2) == [expected] * 2
