"""The plain file of data parallelism: equal to one process and to the engine, by as many bytes as predicted."""

import inspect
import sys

import cloudpickle
import pytest
import torch

from shardlab import comm
from shardlab.costs import zero as costs
from shardlab.costs.facts import recipes
from shardlab.costs.training import Training
from shardlab.launch import RankError, run
from shardlab.plain import data_parallel
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.observe import ledger
from shardlab.sharding.layout import Layout

from ..rank_types import rank_type
from . import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(data_parallel)


def model_of(variables, _):
    return lesson.parameters(variables["model"])


def train(group, source=SOURCE, case=lesson.CASES[0]):
    return lesson.follow(group, "data_parallel", source, case, model_of)


def all_cases(group):
    return {case: train(group, case=case) for case in lesson.CASES}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def histories(request):
    return run(all_cases, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", lesson.CASES, ids=str)
@pytest.mark.parity("data_parallel", "the plain file trains the transformer like one process: parameters, each step")
def test_the_plain_file_equals_one_process(histories, case):
    for rank in histories:
        lesson.assert_same_training(rank[case], lesson.alone(*case))


def fast(group, case):
    """The engine, in the same training."""
    model, history = DataParallel(lesson.build(*case, seed=group.rank()), group), []
    optimizer = lesson.adamw(model.parameters())
    for step in range(lesson.STEPS):
        batch = lesson.batch_of(step)
        mine = data_parallel.shard(batch, group)
        optimizer.zero_grad()
        (model(mine[:, :-1], mine[:, 1:]) * len(mine) * group.size() / len(batch)).backward()
        optimizer.step()
        history.append(lesson.parameters(model.module))
    return history


@pytest.mark.parity("data_parallel", "the plain file and the engine train alike")
def test_the_plain_file_equals_the_engine():
    both = run(lambda group: [(train(group, case=case), fast(group, case)) for case in lesson.CASES], world_size=3)
    for plain, engine in (pair for rank in both for pair in rank):
        lesson.assert_same_training(plain, engine)


def bytes_of(group, style):
    """What a rank sends in every step."""
    options = {"around": ledger.Ledger, "dtype": torch.float32}
    return lesson.follow(group, "data_parallel", SOURCE, (style, False), lesson.wire_bytes, **options)


@pytest.mark.parametrize("style", lesson.SPECS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.counted("data_parallel", "bytes that the plain file sends in a step")
def test_a_step_sends_what_the_formula_says(style, ranks):
    training = Training(spec=lesson.SPECS[style], layout=Layout(dp=ranks), recipe=recipes.recipe("fp32 Adam"))
    predicted = sum(costs.sent_bytes(training).values())
    for steps in run(bytes_of, style, world_size=ranks):
        assert steps == pytest.approx([predicted] * lesson.STEPS, abs=1e-6)


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what was forgotten: (what stands there, what stands there then, what the launcher reports)
    "the copy at the start": ("tensor.copy_(comm.broadcast(tensor, group))", "tensor.clone()", None),
    "half of the parameters": ("[*model.parameters(), *model.buffers()]", "[*model.buffers()]", None),
    "who sends the copy": ("broadcast(tensor, group)", "broadcast(tensor, group, group.rank())", "the ranks disagree"),
    "to divide": ("partial = share * parameter.grad", "partial = parameter.grad", None),
    "that shards differ": ("share * parameter.grad", "parameter.grad / group.size()", None),
    "to replace the gradient": ("parameter.grad = comm.all_reduce(partial", "_ = comm.all_reduce(partial", None),
    "that others read other samples": ("[group.rank()]", "[0]", None),
    "to sum": ("comm.all_reduce(partial, group)", 'comm.all_reduce(partial, group, "max")', None),
    "the rest of the batch": ("batch.tensor_split(group.size())", "batch.split(len(batch) // group.size())", None),
}


def right(group, source):
    history = train(group, source)
    return all(map(lesson.equal, history, lesson.alone(*lesson.CASES[0])))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    old, new, report = WRONG[what]
    found = lesson.verdict(right, lesson.changed(SOURCE, old, new))
    assert lesson.noticed(found, report), found


def without_a_copy(group):
    """How far the ranks' weights are from rank 0's, before and after steps along averaged gradients."""
    torch.manual_seed(group.rank())
    net, distances = torch.nn.Linear(8, 1).double(), []
    for _ in range(20):
        distances.append((net.weight - comm.broadcast(net.weight.detach(), group)).norm().item())
        net.zero_grad()
        net(torch.randn(4, 8).double()).square().mean().backward()
        data_parallel.average_gradients(net, group, 1 / group.size())
        torch.optim.SGD(net.parameters(), lr=0.1).step()
    return distances


def test_ranks_that_start_apart_stay_as_far_apart():
    for rank, (first, *later) in enumerate(run(without_a_copy, world_size=3)):
        assert (first > 0) == (rank > 0)
        assert later == pytest.approx([first] * 19, rel=1e-12)


def test_fewer_samples_than_ranks_are_refused():
    with pytest.raises(RankError, match="2 samples leave some of 3 ranks without any; use at least 3 samples"):
        run(lambda group: data_parallel.shard(torch.zeros(2, 5), group), world_size=3)


def test_a_parameter_without_a_gradient_is_named():
    def call(group):
        model = lesson.build("gpt2", False, seed=0)
        model.embedding(lesson.batch_of(0)).sum().backward()
        data_parallel.average_gradients(model, group, 1 / group.size())

    with pytest.raises(RankError, match=r"blocks.0.attention_norm.weight has no gradient on rank \d; use it"):
        run(call, world_size=2)
