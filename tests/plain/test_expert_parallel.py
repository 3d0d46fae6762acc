"""The plain file of expert parallelism: equal to one process by every rule, by as many bytes as predicted."""

import functools
import inspect
import sys

import cloudpickle
import pytest
import torch

from shardlab.launch import RankError, run
from shardlab.model.experts import Experts
from shardlab.plain import data_parallel, expert_parallel
from shardlab.ranks.mixture import Mixture, mixtures, rebalance
from shardlab.ranks.observe import ledger

from ..rank_types import rank_type
from . import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(expert_parallel)


def state_of(model):
    """Parameters, biases and gradients, by name."""
    found = {name: x.detach().clone() for name, x in [*model.named_parameters(), *model.named_buffers()]}
    return found | {f"{name}, gradient": p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


@functools.cache
def alone(style, frozen):
    """The same and the loss, of one process, after each step."""
    model, history = lesson.build(style, frozen, seed=0), []
    optimizer = lesson.adamw(model.parameters())
    for step in range(lesson.STEPS):
        optimizer.zero_grad()
        batch = lesson.batch_of(step)
        loss = model(batch[:, :-1], batch[:, 1:])
        loss.backward()
        optimizer.step()
        rebalance(model)
        history.append((loss.detach(), state_of(model)))
    return history


def found_after(variables, _):
    return variables["loss"].detach(), state_of(variables["model"])


def train(group, ep, source=SOURCE, case=("top 2", False), read=found_after, **options):
    return lesson.follow(group, "expert_parallel", source, case, read, ep=ep, **options)


def cases(size):
    """How many ranks hold all experts between them, with which mixture, and whether some of it is frozen."""
    degrees = [ep for ep in range(1, size + 1) if size % ep == 0]
    return [(ep, (style, ep == 2)) for ep in degrees for style in lesson.MIXTURES]


def everything(group):
    return {case: train(group, case[0], case=case[1]) for case in cases(group.size())}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def found(request):
    return run(everything, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parity(
    "expert_parallel",
    "expert parallelism's plain file trains a mixture like one process: loss, gradients, parameters and biases",
)
def test_the_plain_file_equals_one_process(found):
    for case in cases(len(found)):
        for step, (loss, whole) in enumerate(alone(*case[1])):
            losses = [rank[case][step][0] for rank in found]
            torch.testing.assert_close(sum(losses), loss, rtol=0, atol=lesson.ATOL)
            held = [rank[case][step][1] for rank in found]
            assert set().union(*held) == whole.keys(), "together the ranks hold all experts"
            for ours in held:
                for name in ours:
                    torch.testing.assert_close(ours[name], whole[name], rtol=0, atol=lesson.ATOL, msg=f"{case} {name}")


def test_experts_are_dealt_to_ranks_in_order(found):
    size = len(found)
    for rank, of_rank in enumerate(found):
        names = of_rank[size, ("top 2", size == 2)][0][1]
        numbers = {int(name.split(".")[4]) for name in names if ".experts." in name}
        assert numbers == set(range(rank * 12 // size, (rank + 1) * 12 // size))


def test_some_ranks_receive_no_token_and_some_experts_nobody_chooses():
    """With equal scores all tokens go to experts 0, 1 and 2, which are on rank 0 of 4."""
    _, state = alone("ties", False)[0]
    for name, x in state.items():
        if ".mlp.experts." in name and "gradient" in name:
            assert x.any() == (int(name.split(".")[4]) < 3), name


def travel(group):
    """The farthest that a token is from itself when experts change nothing and its weights add up to 1."""
    layer = Mixture(16, Experts(num_experts=12, per_token=2, expert_size=8))
    layer.router.weight.data.copy_(torch.randn(12, 16, generator=torch.Generator().manual_seed(0)))
    expert_parallel.LocalExperts(layer, group, group.size())
    layer.experts = torch.nn.ModuleDict({name: torch.nn.Identity() for name in layer.experts})
    x = torch.randn(1, 50, 16, generator=torch.Generator().manual_seed(group.rank()))
    return (layer(x) - x).abs().max().item()


@pytest.mark.parametrize("size", lesson.WORLD_SIZES)
def test_each_token_comes_home_from_experts_that_change_nothing(size):
    assert max(run(travel, world_size=size)) < 1e-6


# ---- predicted, counted ----------------------------------------------------------------------------------------------


def bytes_of(group, ep, style):
    options = {"around": ledger.Ledger, "dtype": torch.float32, "read": lesson.wire_bytes}
    return train(group, ep, case=(style, False), **options)[0]


def choices(style):
    """What every token chose in each layer, in the first step of one process: [tokens, k] each."""
    model, found = lesson.build(style, False, seed=0, dtype=torch.float32), []
    for mixture in mixtures(model):
        whole = mixture.compute
        mixture.compute = lambda *given, whole=whole: found.append(given[2]) or whole(*given)
    model(lesson.batch_of(0)[:, :-1])
    return found


def rows_between(chosen, size, ep):
    """The rows that each rank sends to each: [size, size]. Ranks hold samples and experts in order."""
    rows = torch.zeros(size, size)
    samples = torch.arange(lesson.SAMPLES).tensor_split(size)
    for rank, mine in enumerate(samples):
        tokens = chosen.view(lesson.SAMPLES, lesson.LENGTH, -1)[mine]
        for expert in tokens[tokens < 12].tolist():
            rows[rank, rank // ep * ep + expert // (12 // ep)] += 1
    return rows - rows.diag().diag()  # a row for the rank itself does not travel


@pytest.mark.parametrize("style", ["top 2", "capacity"])
@pytest.mark.parametrize(("ranks", "ep"), [(2, 2), (3, 3), (4, 2), (4, 4)])
@pytest.mark.counted("expert_parallel", "bytes that expert parallelism's plain file sends in a step")
def test_a_step_sends_what_the_formula_says(style, ranks, ep):
    element, count = 4, 8  # bytes of a number, and of how many
    predicted = torch.zeros(ranks)
    for chosen in choices(style):
        rows = rows_between(chosen, ranks, ep)
        predicted += 2 * lesson.SIZES["hidden_size"] * element * (rows.sum(1) + rows.sum(0))  # there, back; twice
        predicted += count * 12 * ((ep - 1) / ep + ranks - 1)  # to the experts' ranks; the load, to all
    model = lesson.build(style, False, seed=0)
    experts = sum(p.numel() for mixture in mixtures(model) for p in mixture.experts.parameters())
    shared = sum(p.numel() for p in model.parameters()) - experts
    predicted += 2 * element * (shared * (ranks - 1) / ranks + experts / ep * (ranks // ep - 1) / (ranks // ep))
    assert run(bytes_of, ep, style, world_size=ranks) == pytest.approx(predicted.tolist(), rel=1e-6)


# ---- wrong versions --------------------------------------------------------------------------------------------------

IN_TWO_GROUPS = 'self.replicas if ".experts." in name else self.group'
SUM = "comm.all_reduce(parameter.grad, group)"
EXCHANGE = "rows = AllToAllRows.apply(rows, group, there, here)"

WRONG = {  # what went wrong: (the mixture, what stands there, what stands there then, what the launcher reports)
    "experts are summed over all ranks": ("top 2", IN_TWO_GROUPS, "self.group", None),
    "all is summed over the ranks of the same experts": ("top 2", IN_TWO_GROUPS, "self.replicas", None),
    "experts are averaged over their copies": ("top 2", SUM, f"{SUM} * (self.group.size() / group.size())", None),
    "gradients stay on their own rank": ("top 2", SUM, "parameter.grad", None),
    "the mean of unequal shards": ("top 2", "loss = share * model(", "loss = 1 / group.size() * model(", None),
    "the load of each rank by itself": ("balance loss", "mixture.group = group ", "mixture.group = None ", None),
    "a capacity of each rank by itself": ("capacity", "mixture.group = group ", "mixture.group = None ", None),
    "biases stay as they are": ("bias", "rebalance(model)", "0", None),
    "weights of other tokens": ("top 2", "weights[order, None]", "weights[order.sort()[0], None]", None),
    "outputs go to other tokens": ("top 2", "index_add(0, token,", "index_add(0, token.sort()[0],", None),
    "experts take rows of their neighbours": ("top 2", "inputs[number]", "inputs[-1 - number]", None),
    "shared experts are left out": ("bias", "else y + mixture.shared(x)", "else y", "NoneType"),
    "tokens without a slot travel": ("capacity", "order = order[: sends.sum()]", "order = order[:]", "dim 0 has"),
    "gradients are sent the same way again": ("top 2", "group, receives, sends", "group, sends, receives", "dim 0 has"),
    "a rank without tokens skips the exchange": ("ties", EXCHANGE, f"{EXCHANGE} if here[0] else rows", "wait"),
}


def right(group, source, style):
    """Tell whether a version of the file trains as one process does, with two ranks that hold the same experts."""
    history = train(group, 2, source, (style, False))
    return all(lesson.equal(ours, theirs) for (_, ours), (_, theirs) in zip(history, alone(style, False), strict=True))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    style, old, new, report = WRONG[what]
    found = lesson.verdict(right, lesson.changed(SOURCE, old, new), style, world_size=4)
    assert lesson.noticed(found, report), found


def test_experts_that_the_ranks_do_not_divide_are_refused():
    def call(group):
        expert_parallel.LocalExperts(lesson.build("top 2", False, seed=0), group, 5)

    with pytest.raises(RankError, match="12 experts on 5 ranks; use a divisor of 12"):
        run(call, world_size=5)


def test_the_file_leaves_a_model_without_experts_alone():
    def call(group):
        model = lesson.build("gpt2", False, seed=0)
        expert_parallel.LocalExperts(model, group, 2)
        return data_parallel.shard(torch.arange(4), group).tolist(), len(list(model.parameters()))

    count = len(list(lesson.build("gpt2", False, seed=0).parameters()))
    assert run(call, world_size=2) == [([0, 1], count), ([2, 3], count)]
