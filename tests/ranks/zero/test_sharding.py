"""ZeRO against one process with the whole batch, and against torch: every parameter, every step."""

import functools

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from shardlab import comm, schedules
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import pipeline, tensor_parallel, transformer, zero
from shardlab.ranks.memory.precision import LossScale, MasterWeights
from shardlab.ranks.pipeline import partition
from shardlab.ranks.tensor_parallel import shards
from shardlab.sharding import cuts
from tests.rank_types import rank_type
from tests.ranks.tolerance import EXACT
from tests.ranks.zero.training import (
    CASES,
    CLIP,
    FROZEN,
    OPTIMIZERS,
    STEPS,
    all_cases,
    alone,
    build,
    clones,
    error,
    tokens_of,
)

MESH_SPEC = TransformerSpec(
    vocab_size=37,
    context_length=10,
    hidden_size=12,
    num_layers=2,
    num_heads=2,
    ffn_size=20,
    style="gpt2",
)


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def histories(request):
    return run(all_cases, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("number", range(len(CASES)), ids=map(str, CASES))
@pytest.mark.parity(
    "zero", "every stage trains like one process: parameters after each step, and norms"
)
def test_ranks_equal_one_process(histories, number):
    style, _, optimizer, _, _, clip = CASES[number]
    reference = alone(style, optimizer, clip)
    assert not clip or all(norm > CLIP for norm, _ in reference)  # it does clip
    for rank in histories:
        assert len(rank[number]) == STEPS
        for (norm, ours), (expected, theirs) in zip(rank[number], reference, strict=True):
            torch.testing.assert_close(norm, expected, **EXACT)
            assert list(ours) == list(theirs)
            for name, tensor in theirs.items():
                where = f"{name}: "
                torch.testing.assert_close(
                    ours[name], tensor, **EXACT, msg=lambda text, where=where: where + text
                )


# ---- torch's own ---------------------------------------------------------------------------------


def beside_torch(group):
    """Return the parameters after each step, for each stage of ours and of torch's."""
    plain = {
        name: build("gpt2") for name in ("stage 1", "stage 2", "stage 3", "redundancy", "fsdp")
    }
    adam = functools.partial(torch.optim.AdamW, lr=0.02)
    models, steps = dict(plain), {}
    for stage in (1, 2, 3):
        steps[f"stage {stage}"] = zero.shard(
            plain[f"stage {stage}"], group, stage=stage, optimizer=adam
        )
    models["redundancy"] = DistributedDataParallel(plain["redundancy"], process_group=group)
    trained = [p for p in plain["redundancy"].parameters() if p.requires_grad]
    steps["redundancy"] = ZeroRedundancyOptimizer(
        trained, torch.optim.AdamW, process_group=group, lr=0.02
    )
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in plain["fsdp"].blocks:
        fully_shard(block, mesh=mesh)
    steps["fsdp"] = adam(
        [p for p in fully_shard(plain["fsdp"], mesh=mesh).parameters() if p.requires_grad]
    )
    history = []
    for step in range(2):
        mine, row = tokens_of(step).chunk(group.size())[group.rank()], {}
        for name, model in models.items():
            steps[name].zero_grad()
            error(model, mine).backward()
            steps[name].step()
            ours = isinstance(steps[name], zero.Zero)
            state = steps[name].full_state_dict() if ours else plain[name].state_dict()
            row[name] = {
                key: x.full_tensor() if hasattr(x, "full_tensor") else x.clone()
                for key, x in state.items()
            }
        history.append(row)
    return history


@pytest.mark.parity(
    "zero", "torch's fully_shard and ZeroRedundancyOptimizer end with the same parameters"
)
def test_equal_to_fully_shard_and_to_zero_redundancy_optimizer():
    for history in run(beside_torch, world_size=3):
        for row in history:
            for stage, theirs in (
                ("stage 1", "redundancy"),
                ("stage 2", "fsdp"),
                ("stage 3", "fsdp"),
            ):
                assert list(row[stage]) == list(row[theirs])
                for name, tensor in row[theirs].items():
                    torch.testing.assert_close(row[stage][name], tensor, **EXACT)


# ---- states, from any number of ranks to any other -----------------------------------------------


def train(group, stage, steps, before=None):
    model = build("gpt2", seed=5)
    states = zero.shard(model, group, stage=stage, optimizer=OPTIMIZERS["AdamW"])
    if before:
        states.load_full_state_dict(before[0])
        states.load_full_optimizer_state(before[1])
    for step in steps:
        states.zero_grad()
        error(model, tokens_of(step).chunk(group.size())[group.rank()]).backward()
        states.step()
    return states.full_state_dict(), states.full_optimizer_state()


@pytest.mark.parity(
    "zero", "a run goes on on other ranks, at another stage: parameters and moments"
)
def test_a_run_goes_on_on_another_number_of_ranks_at_another_stage():
    first = run(train, 3, range(2), world_size=3)[1]
    (state, moments), *_ = run(train, 1, range(2, 4), first, world_size=2)
    expected, theirs = run(train, 2, range(4), world_size=1)[0]
    assert moments.keys() == theirs.keys()
    assert moments["blocks.0.mlp.up.weight"]["step"] == 4
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor, **EXACT)
    for name, parts in theirs.items():
        for key, value in parts.items():
            torch.testing.assert_close(moments[name][key], value, **EXACT)


@pytest.mark.parity("zero", "the joined moments are those of Adam in one process")
def test_full_moments_are_those_of_plain_adam():
    model = build("gpt2", seed=5)
    plain = OPTIMIZERS["AdamW"]([p for p in model.parameters() if p.requires_grad])
    error(model, tokens_of(0)).backward()
    plain.step()
    _, moments = run(train, 3, range(1), world_size=4)[2]
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert moments.keys() == trained.keys()
    for name, parameter in trained.items():
        for key, value in plain.state[parameter].items():
            torch.testing.assert_close(moments[name][key], value, **EXACT)


# ---- precision -----------------------------------------------------------------------------------


def low(group, precision, gradients, stage, scale):
    """Take two steps in 16 bits; return the fp32 masters after each. scale: of an fp16 loss."""
    model = build("llama").float()
    states = zero.shard(
        model,
        group,
        stage=stage,
        optimizer=OPTIMIZERS["AdamW"],
        precision=precision,
        gradients=gradients,
    )
    factor, history = LossScale(scale, good_steps=1) if scale else None, []
    for step in range(2):
        states.zero_grad()
        mine = tokens_of(step).chunk(group.size())[group.rank()]
        loss = transformer.loss(model(mine[:, :-1]).float(), mine[:, 1:])
        (loss * factor.value if factor else loss).backward()
        if factor:
            states.scale(1 / factor.value)
        fine = bool(states.clip(1e9).isfinite())
        if fine:
            states.step()
        if factor:
            factor.update(not fine)
        history.append((fine, states.full_state_dict()))
    dtypes = (
        {flat.whole.dtype for flat in states.flats},
        {g.average.dtype for g in states.gradients},
    )
    return history, dtypes


def test_masters_keep_fp32_and_the_model_computes_in_16_bits():
    """One rank is bitwise identical to `MasterWeights`; several differ by the order of sums."""
    model = build("llama").float()
    exact = clones(model.state_dict())
    model = model.to(torch.bfloat16)
    masters = MasterWeights(OPTIMIZERS["AdamW"]([p for p in model.parameters() if p.requires_grad]))
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    for name, master in zip(names, masters.masters, strict=True):
        master.data = exact[name].clone()
    for step in range(2):
        tokens = tokens_of(step)
        masters.backward(transformer.loss(model(tokens[:, :-1]).float(), tokens[:, 1:]))
        masters.step()
    for stage in (1, 3):
        (history, dtypes), *_ = run(low, torch.bfloat16, None, stage, None, world_size=1)
        assert dtypes == ({torch.bfloat16}, {torch.bfloat16})
        for name, master in zip(names, masters.masters, strict=True):
            assert torch.equal(history[-1][1][name], master)
    ranks = run(low, torch.bfloat16, torch.float32, 3, None, world_size=2)
    assert ranks[0][1] == ({torch.bfloat16}, {torch.float32})
    for name, master in zip(names, masters.masters, strict=True):
        torch.testing.assert_close(ranks[1][0][-1][1][name], master, rtol=0, atol=0.02)


def test_a_loss_of_fp16_is_scaled_and_a_step_that_overflows_is_skipped_by_all_ranks():
    for history, dtypes in run(low, torch.float16, torch.float32, 2, 2.0**40, world_size=2):
        start = build("llama").float().state_dict()
        assert [fine for fine, _ in history] == [False, False]
        assert all(
            torch.equal(history[0][1][name], tensor)
            for name, tensor in start.items()
            if name != FROZEN
        )
        assert dtypes[0] == {torch.float16}
    scaled = [
        run(low, torch.float16, torch.float32, 2, scale, world_size=2)[0][0]
        for scale in (1.0, 2.0**8)
    ]
    assert all(fine for history in scaled for fine, _ in history)
    for name, tensor in scaled[0][-1][1].items():
        torch.testing.assert_close(scaled[1][-1][1][name], tensor, rtol=0, atol=2e-2)


# ---- norms across groups -------------------------------------------------------------------------


def norms(group):
    model = build("gpt2")
    states = zero.shard(model, group, stage=2, optimizer=OPTIMIZERS["SGD"])
    error(model, tokens_of(0).chunk(group.size())[group.rank()]).backward()
    shares = {"embedding.tokens.weight": 0.0, "blocks.0.mlp.up.weight": 0.5}
    some = comm.all_reduce(states.squared_norm(lambda name: shares.get(name, 1.0)), group)
    before = [each.average.clone() for each in states.gradients]
    states.clip(1.0, norm=torch.tensor(2.0, dtype=torch.float64))
    ratios = [x.average.norm() / y.norm() for x, y in zip(states.gradients, before, strict=True)]
    return some, ratios


def test_a_norm_can_count_a_share_of_a_parameter_and_clip_takes_any_norm():
    model = build("gpt2")
    error(model, tokens_of(0)).backward()
    squares = {
        name: p.grad.pow(2).sum() for name, p in model.named_parameters() if p.grad is not None
    }
    expected = (
        sum(squares.values())
        - squares["embedding.tokens.weight"]
        - squares["blocks.0.mlp.up.weight"] / 2
    )
    for some, ratios in run(norms, world_size=3):
        torch.testing.assert_close(some, expected, **EXACT)
        torch.testing.assert_close(
            torch.stack(ratios), torch.full((len(ratios),), 0.5).double(), rtol=1e-6, atol=0
        )


# ---- on a mesh -----------------------------------------------------------------------------------


def on_a_mesh(group, stage):
    """Take two steps on tp=2 x dp; return (norm over all groups, this rank's pieces) after each."""
    tp, dp = comm.split(group, 2), comm.across(group, 2)
    model = transformer.Transformer(MESH_SPEC)
    torch.manual_seed(1)
    model.initialize()
    model = tensor_parallel.parallelize(model.double(), tp, sequence_parallel=True)
    plan, history = cuts.model(MESH_SPEC, 2), []
    states = zero.shard(model, dp, stage=stage, optimizer=OPTIMIZERS["AdamW"])
    for step in range(2):
        states.zero_grad()
        error(model, tokens_of(step).chunk(dp.size())[dp.rank()]).backward()
        squared = states.squared_norm(
            lambda name: 1 / plan[name].holders if plan[name].dim is not None else 1 / 2
        )
        norm = comm.all_reduce(squared, group).sqrt()
        states.clip(CLIP, norm)
        states.step()
        history.append((norm, states.full_state_dict()))
    return history


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parity(
    "zero", "pieces of tensor parallelism, cut once more, train like the whole model"
)
def test_on_a_mesh_with_tensor_parallelism_norms_count_every_parameter_once(stage):
    model = transformer.Transformer(MESH_SPEC)
    torch.manual_seed(1)
    model.initialize()
    model, plan, reference = model.double(), cuts.model(MESH_SPEC, 2), []
    plain = OPTIMIZERS["AdamW"](model.parameters())
    for step in range(2):
        plain.zero_grad()
        error(model, tokens_of(step)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        plain.step()
        reference.append((norm, clones(dict(model.named_parameters()))))
    for rank, history in enumerate(run(on_a_mesh, stage, world_size=4)):
        for (norm, pieces), (expected, whole) in zip(history, reference, strict=True):
            torch.testing.assert_close(norm, expected, **EXACT)
            for name, tensor in whole.items():
                torch.testing.assert_close(
                    pieces[name], shards.take(tensor, plan[name], rank % 2), **EXACT
                )


def of_a_pipeline(group, stage):
    """Take two steps on pp=2 x dp with a tied head; return (norm, parameters) after each."""
    pp, dp = comm.split(group, 2), comm.across(group, 2)
    model, schedule, history = (
        build("gpt2"),
        schedules.make("1F1B", num_stages=2, num_microbatches=3),
        [],
    )
    pipe = pipeline.Pipeline(partition.split(model, schedule, pp.rank()), schedule, pp)
    states = zero.shard(pipe, dp, stage=stage, optimizer=OPTIMIZERS["AdamW"])
    pipe.negotiate(tokens_of(0).chunk(dp.size())[dp.rank()][:, :-1])
    copy_of_head = pp.rank() == 1
    for step in range(2):
        states.zero_grad()
        mine = tokens_of(step).chunk(dp.size())[dp.rank()]
        with states.no_sync():
            pipe.step(mine[:, :-1], mine[:, 1:])
        squared = states.squared_norm(
            lambda name: 0.0 if copy_of_head and name.endswith("head.weight") else 1.0
        )
        norm = comm.all_reduce(squared, group).sqrt()
        states.clip(CLIP, norm)
        states.step()
        history.append(
            (
                norm,
                {name.partition("parts.0.")[2]: x for name, x in states.full_state_dict().items()},
            )
        )
    return history


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parity("zero", "stages of a pipeline, cut once more, train like the whole model")
def test_on_a_mesh_with_a_pipeline(stage):
    reference = alone("gpt2", "AdamW", True)
    for history in run(of_a_pipeline, stage, world_size=4):
        for (norm, held), (expected, whole) in zip(history, reference, strict=False):
            torch.testing.assert_close(norm, expected, **EXACT)
            for name, tensor in held.items():
                torch.testing.assert_close(tensor, whole[name], **EXACT)
