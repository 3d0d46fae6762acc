"""The plain file of tensor parallelism: equal to one process and to the engine, by as many bytes as predicted."""

import dataclasses
import inspect
import sys

import cloudpickle
import pytest
import torch

from shardlab.costs import composition
from shardlab.costs.facts import recipes
from shardlab.costs.training import Training
from shardlab.launch import RankError, run
from shardlab.plain import tensor_parallel
from shardlab.ranks import tensor_parallel as engine
from shardlab.ranks import transformer
from shardlab.ranks.observe import ledger
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout

from ..rank_types import rank_type
from . import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(tensor_parallel)
READERS = {"gpt2": 4, "llama": 5}  # matrices that read a normed tensor in a layer: q, k, v, and up, or gate and up


def pieces(variables, _):
    return {name: p.detach().clone() for name, p in variables["model"].named_parameters()}


def train(group, source=SOURCE, case=lesson.CASES[0]):
    return lesson.follow(group, "tensor_parallel", source, case, pieces)


def piece_of(whole, cut, rank):
    """This rank's piece of a whole parameter, without the library that cuts it."""
    held = cut.held(rank)
    return whole if cut.dim is None else whole.narrow(cut.dim, held.start, len(held))


def expected(case, ranks, rank):
    """What this rank should have after each step."""
    plan = cuts.model(lesson.SPECS[case[0]], ranks)
    return [{name: piece_of(step[name], cut, rank) for name, cut in plan.items()} for step in lesson.alone(*case)]


def all_cases(group):
    return {case: train(group, case=case) for case in lesson.CASES}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def histories(request):
    return run(all_cases, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", lesson.CASES, ids=str)
@pytest.mark.parity("tensor_parallel", "the plain file trains the transformer like one process: parameters, each step")
def test_the_plain_file_equals_one_process(histories, case):
    for rank, history in enumerate(histories):
        lesson.assert_same_training(history[case], expected(case, len(histories), rank))


def fast(group, case):
    """The engine, in the same training."""
    model, history = engine.parallelize(lesson.build(*case, seed=0), group), []
    optimizer = lesson.adamw(model.parameters())
    for step in range(lesson.STEPS):
        batch = lesson.batch_of(step)
        optimizer.zero_grad()
        model(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
        history.append(pieces({"model": model}, None))
    return history


@pytest.mark.parity("tensor_parallel", "the plain file and the engine train alike")
def test_the_plain_file_equals_the_engine():
    both = run(lambda group: [(train(group, case=case), fast(group, case)) for case in lesson.CASES], world_size=3)
    for plain, engines in (pair for rank in both for pair in rank):
        lesson.assert_same_training(plain, engines)


def bytes_of(group, style):
    options = {"around": ledger.Ledger, "dtype": torch.float32}
    return lesson.follow(group, "tensor_parallel", SOURCE, (style, False), lesson.wire_bytes, **options)


@pytest.mark.parametrize("style", lesson.SPECS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.counted("tensor_parallel", "bytes that the plain file sends in a step")
def test_a_step_sends_what_the_formula_says(style, ranks):
    """Every matrix that reads sums its own input's gradient; the engine sums once for all that read the same."""
    training = Training(
        spec=lesson.SPECS[style],
        layout=Layout(tp=ranks),
        recipe=recipes.recipe("fp32 Adam"),
        microbatch=lesson.SAMPLES,
        sequence=lesson.LENGTH,
    )
    parts = composition.sent(training)["tp"]
    predicted = sum(parts.values()) + parts["layers"] * ((2 + READERS[style]) / 4 - 1)
    for steps in run(bytes_of, style, world_size=ranks):
        assert steps == pytest.approx([predicted] * lesson.STEPS, abs=1e-6)


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (what stands there, what stands there then, what the launcher reports)
    "an input's gradient is not summed": ("x = CopyToRanks.apply(x, self.group)", "x = x * 1", None),
    "outputs are not summed": ("x = SumOverRanks.apply(x, self.group)", "x = x * 1", None),
    "the sum's gradient is summed too": (
        "x = SumOverRanks.apply(x, self.group)",
        "x = SumOverRanks.apply(CopyToRanks.apply(x, self.group), self.group)",
        None,
    ),
    "the bias counts once for every rank": (
        "functional.linear(x, self.weight)  ",
        "functional.linear(x, self.weight, self.bias)  ",
        None,
    ),
    "words of others count": ("SumOverRanks.apply(x * here[..., None], self", "SumOverRanks.apply(x, self", None),
    "the target's logit counts on all ranks": ("SumOverRanks.apply(chosen * here, group)", "chosen", None),
    "each rank has its own softmax": (
        "SumOverRanks.apply(logits.exp().sum(-1), group)",
        "logits.exp().sum(-1)",
        None,
    ),
    "each rank has its own maximum": (
        'comm.all_reduce(logits.detach().amax(-1), group, "max")',
        "logits.detach().amax(-1)",
        None,
    ),
    "rows are cut by outputs": ("shard(linear.weight, 1, group)", "shard(linear.weight, 0, group)", "RuntimeError"),
    "the bias of columns stays whole": ("shard(linear.bias, 0, group)", "linear.bias", "RuntimeError"),
    "every rank keeps the first part": ("[group.rank()]", "[0]", None),
    "parts go the other way round": ("[group.rank()]", "[-1 - group.rank()]", None),
    "a frozen weight is trained": ("part.clone(), whole.requires_grad", "part.clone()", None),
    "a tied head has a weight of its own": ("if model.spec.tied:", "if False:", None),
    "keys are queries, too": (
        "attention.q = ColumnLinear(attention.q, group)",
        "attention.q = ColumnLinear(attention.k, group)",
        None,
    ),
}


def right(group, source):
    """Tell whether a version of the file trains as one process does, without and with frozen weights."""
    for case in lesson.CASES[:2]:
        history = train(group, source, case)
        if not all(map(lesson.equal, history, expected(case, group.size(), group.rank()))):
            return False
    return True


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    old, new, report = WRONG[what]
    found = lesson.verdict(right, lesson.changed(SOURCE, old, new))
    assert lesson.noticed(found, report), found


@pytest.mark.parametrize(
    ("sizes", "count"),
    [({"num_heads": 16}, "num_heads=16"), ({"ffn_size": 50}, "ffn=50"), ({"vocab_size": 49}, "vocab_size=49")],
)
def test_what_does_not_split_is_refused(sizes, count):
    spec = dataclasses.replace(lesson.SPECS["gpt2"], **sizes)

    def call(group):
        tensor_parallel.parallelize(transformer.Transformer(spec), group)

    with pytest.raises(RankError, match=f"{count} on 3 ranks; use a divisor of"):
        run(call, world_size=3)


def test_a_mixture_of_experts_is_refused():
    """This file does not cut its matrices; the engine does."""

    def call(group):
        tensor_parallel.parallelize(lesson.build("top 2", False, seed=0), group)

    with pytest.raises(RankError, match=r"blocks\.0\.mlp has experts; use ranks\.tensor_parallel"):
        run(call, world_size=2)


def test_tokens_that_no_rank_has_are_refused():
    def call(group):
        model = lesson.build("gpt2", False, seed=0)
        tensor_parallel.parallelize(model, group)
        model(torch.full((1, 2), lesson.VOCABULARY))

    with pytest.raises(RankError, match="token 48 or 48: use 0 to 47"):
        run(call, world_size=2)
