"""ZeRO against one process with the whole batch, and against torch: every parameter, every step."""

import contextlib
import copy
import functools

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from shardlab import cuts, schedules
from shardlab.ranks import comm, pipeline, tensor_parallel, transformer, zero
from shardlab.ranks.launch import RankError, run
from shardlab.ranks.memory import recompute
from shardlab.ranks.memory.precision import LossScale, MasterWeights
from shardlab.ranks.pipeline import partition
from shardlab.ranks.tensor_parallel import shards
from shardlab.spec import TransformerSpec

SIZES = {
    "vocab_size": 37,
    "context_length": 10,
    "hidden_size": 10,
    "num_layers": 3,
    "num_heads": 1,
}  # odd: padding
MESH_SPEC = TransformerSpec(
    vocab_size=37,
    context_length=10,
    hidden_size=12,
    num_layers=2,
    num_heads=2,
    ffn_size=20,
    style="gpt2",
)
SAMPLES, STEPS, CLIP = 24, 3, 0.2  # samples divide by 1 to 4 ranks
FROZEN = "blocks.1.mlp.down.weight"
EXACT = {"rtol": 0, "atol": 1e-12}
OPTIMIZERS = {  # a large eps: a small one magnifies the rounding of gradients near 0
    "AdamW": lambda pieces: torch.optim.AdamW(pieces, lr=0.02, weight_decay=0.1, eps=1e-4),
    "Adam": lambda pieces: torch.optim.Adam(pieces, lr=0.02, eps=1e-4),
    "SGD": lambda pieces: torch.optim.SGD(pieces, lr=0.1, momentum=0.9),
}
CASES = [  # style, stage, optimizer, microbatches, hold gradients back until the last one, clip
    (style, stage, optimizer, microbatches, hold, clip)
    for stage in (1, 2, 3)
    for style, optimizer, microbatches, hold, clip in [
        ("gpt2", "AdamW", 1, False, False),
        ("gpt2", "SGD", 3, True, True),
        ("llama", "Adam", 3, False, True),
    ]
]


def build(style, seed=0):
    """Build the reference model with a frozen matrix in the middle; GPT-2 style has a tied head."""
    torch.manual_seed(seed)
    model = transformer.Transformer(TransformerSpec(**SIZES, style=style)).double()
    model.get_parameter(FROZEN).requires_grad_(False)
    return model


def tokens_of(step):
    return torch.randint(
        SIZES["vocab_size"], (SAMPLES, 11), generator=torch.Generator().manual_seed(step)
    )


def error(model, tokens):
    return model(tokens[:, :-1], tokens[:, 1:])


def clones(state):
    return {name: tensor.detach().clone() for name, tensor in state.items()}


@functools.cache
def alone(style, optimizer, clip):
    """Return (norm, state dict) after each step of one process that sees all samples."""
    model, history = build(style), []
    steps = OPTIMIZERS[optimizer]([p for p in model.parameters() if p.requires_grad])
    for step in range(STEPS):
        steps.zero_grad()
        error(model, tokens_of(step)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP if clip else 1e9)
        steps.step()
        history.append((norm, clones(model.state_dict())))
    return history


def together(group, style, stage, optimizer, microbatches, hold, clip):
    """Return the same from one rank, which starts from its own seed and sees its own samples."""
    model, history = build(style, seed=group.rank()), []
    states = zero.shard(model, group, stage=stage, optimizer=OPTIMIZERS[optimizer])
    for step in range(STEPS):
        states.zero_grad()
        mine = tokens_of(step).chunk(group.size())[group.rank()]
        for number, piece in enumerate(mine.tensor_split(microbatches)):
            last = number == microbatches - 1
            with contextlib.nullcontext() if last or not hold else states.no_sync():
                (error(model, piece) * len(piece) / len(mine)).backward()
        norm = states.clip(CLIP if clip else 1e9)
        states.step()
        history.append((norm, states.full_state_dict()))
    return history


def all_cases(group):
    return [together(group, *case) for case in CASES]


@pytest.fixture(scope="module", params=[1, 2, 3, 4])
def histories(request):
    return run(all_cases, world_size=request.param)


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


# ---- other modules -------------------------------------------------------------------------------


class Odd(nn.Module):
    """A module with shared and frozen weights, keywords, two outputs, a buffer and a branch."""

    class Layer(nn.Module):
        def __init__(self, shared, train=True):
            super().__init__()
            self.shared, self.own = shared, nn.Linear(5, 5).requires_grad_(train)

        def forward(self, x, *, gain):
            h = torch.tanh(self.own(x) + self.shared(x)) * gain
            return h, h.sum()

    def __init__(self):
        super().__init__()
        shared = nn.Linear(5, 5)
        self.first = nn.Linear(3, 5).requires_grad_(False)
        self.layers = nn.ModuleDict({"a": self.Layer(shared), "b": self.Layer(shared, train=False)})
        self.branch = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("mean", torch.randn(5))
        self.double()

    def forward(self, x, way):
        x, total = self.first(x) + self.mean, 0.0
        for layer in self.layers.values():
            x, more = layer(x, gain=self.gain)
            total = total + more
        return {"y": self.branch[way](x), "total": total}


def odd(seed):
    torch.manual_seed(seed)
    return Odd()


def odd_loss(model, x, way):
    found = model(x, way)
    return found["y"].pow(2).mean() + 1e-2 * found["total"] / len(x)


def odd_steps(model, states, x):
    """Take two steps; the second leaves the parameters of the first's branch without gradients."""
    for way in (0, 1):
        states.zero_grad()
        odd_loss(model, x, way).backward()
        states.step()


def shard_odd(group):
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    found = []
    for stage in (1, 2, 3):
        model = odd(group.rank())
        states = zero.shard(model, group, stage=stage, optimizer=OPTIMIZERS["AdamW"])
        odd_steps(model, states, x.chunk(group.size())[group.rank()])
        with torch.no_grad():
            value = odd_loss(model, x, 1)
        found.append((states.full_state_dict(), value))
    return found


def test_any_module():
    x = torch.randn(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    model = odd(0)
    odd_steps(model, OPTIMIZERS["AdamW"]([p for p in model.parameters() if p.requires_grad]), x)
    value = odd_loss(model, x, 1).detach()
    for stages in run(shard_odd, world_size=4):
        for state, ours in stages:
            torch.testing.assert_close(ours, value, **EXACT)
            assert list(state) == list(model.state_dict())
            for name, tensor in model.state_dict().items():
                torch.testing.assert_close(state[name], tensor, **EXACT)


def recomputed(group):
    """Recompute layers in backward, with our checkpoint and with torch's around the whole layer."""
    found = []
    for way in ("plain", "ours", "torch's"):
        model = build("llama")
        states = zero.shard(model, group, stage=3, optimizer=OPTIMIZERS["Adam"])
        if way == "ours":
            recompute.wrap(model.blocks)
        if way == "torch's":
            model.blocks = nn.ModuleList([Around(block) for block in model.blocks])
        error(model, tokens_of(0).chunk(group.size())[group.rank()]).backward()
        found.append([each.average for each in states.gradients])
        assert not any(flat.is_whole for flat in states.flats)
    return found


class Around(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


def test_recomputed_layers():
    for plain, ours, theirs in run(recomputed, world_size=2):
        for expected, one, other in zip(plain, ours, theirs, strict=True):
            torch.testing.assert_close(one, expected, **EXACT)
            torch.testing.assert_close(other, expected, **EXACT)


# ---- parameters are there when they compute, and only then ---------------------------------------


def watched(group):
    """Return what a reader sees between steps, and the order of gathering and computing."""
    model, order = build("llama"), []
    states = zero.shard(model, group, stage=3, optimizer=OPTIMIZERS["Adam"])
    outside = (
        [bool(p.isnan().all()) for p in model.parameters()],
        [p.shape for p in model.parameters()],
    )
    for number, unit in enumerate(states.gathering.units):
        unit.gather = functools.partial(
            lambda number, go: (order.append(f"gather {number}"), go()), number, unit.gather
        )
        unit.module.register_forward_pre_hook(
            lambda *_, number=number: order.append(f"forward {number}")
        )
        unit.module.register_full_backward_pre_hook(
            lambda *_, number=number: order.append(f"backward {number}")
        )
    error(model, tokens_of(group.rank())).backward()
    return outside, order, [flat.is_whole for flat in states.flats]


def test_the_next_layer_is_gathered_before_this_one_computes():
    for (gone, shapes), order, whole in run(watched, world_size=2):
        assert all(gone)
        assert shapes == [p.shape for p in build("llama").parameters()]
        assert not any(whole)
        forward, backward = order[: order.index("backward 2")], order[order.index("backward 2") :]
        for number in (0, 1):
            assert forward.index(f"gather {number + 1}") < forward.index(f"forward {number}")
        for number in (2, 1):
            assert backward.index(f"gather {number - 1}") < backward.index(f"backward {number - 1}")
        assert backward.index("gather 1") < backward.index("backward 1")


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
    pipe = pipeline.Pipeline(partition.cut(model, schedule, pp.rank()), schedule, pp)
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


# ---- errors --------------------------------------------------------------------------------------


def fails_once(group):
    """Run a backward that fails on all ranks, then zero_grad, then one that does not fail."""
    model = build("gpt2")
    states = zero.shard(model, group, stage=3, optimizer=OPTIMIZERS["SGD"])
    loss = error(model, tokens_of(0).chunk(group.size())[group.rank()])

    def fail(grad):
        raise ArithmeticError

    model.blocks[1].register_forward_hook(
        lambda _module, _inputs, y: y.register_hook(fail) and None
    )
    with contextlib.suppress(ArithmeticError):
        error(model, tokens_of(1)).backward()
    model.blocks[1]._forward_hooks.popitem()
    states.zero_grad()
    loss = error(model, tokens_of(0).chunk(group.size())[group.rank()])
    loss.backward()
    states.step()
    return states.full_state_dict()


def test_zero_grad_drops_what_a_failed_backward_left():
    model = build("gpt2")
    plain = OPTIMIZERS["SGD"]([p for p in model.parameters() if p.requires_grad])
    error(model, tokens_of(0)).backward()
    plain.step()
    for state in run(fails_once, world_size=2):
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, **EXACT)


class Half(nn.Module):
    """A layer of which one half is never used."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.ModuleDict({"used": nn.Linear(2, 2), "idle": nn.Linear(2, 2)})]
        )

    def forward(self, x):
        return self.layers[0]["used"](x)


def half_used(group):
    """Step with gradients for half of a unit, while torch fills uninitialized memory with NaN."""
    torch.use_deterministic_algorithms(True)
    module = Half()
    states = zero.shard(
        module, group, stage=1, optimizer=functools.partial(torch.optim.SGD, lr=0.1)
    )
    before = states.full_state_dict()
    module(torch.ones(1, 2)).sum().backward()
    states.step()
    return {name: tensor - before[name] for name, tensor in states.full_state_dict().items()}


def test_parameters_that_no_backward_reached_count_as_zero():
    for moved in run(half_used, world_size=2):
        used = {name for name, difference in moved.items() if difference.any()}
        assert used == {"layers.0.used.weight", "layers.0.used.bias"}


def shard_anything(group, module, stage=2, **options):
    states = zero.shard(
        copy.deepcopy(module), group, stage=stage, optimizer=torch.optim.Adam, **options
    )
    states.module(torch.ones(1, 2)).sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"module": Half()},
            r"no gradient to 2 parameters.*layers.0.idle.weight.*freeze them.*no_sync",
        ),
        (
            {"module": nn.Linear(2, 2), "stage": 0},
            "stages 1, 2 and 3, not 0; without any, use DataParallel",
        ),
        (
            {"module": nn.Linear(2, 2), "layers": [nn.Linear(2, 2)]},
            "layer 0 is not inside the module",
        ),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises(RankError, match=message):
        run(lambda group: shard_anything(group, **options), world_size=2)


def test_layers_inside_each_other_are_refused():
    module = nn.Sequential(nn.Sequential(nn.Linear(2, 2)))
    with pytest.raises(ValueError, match="layer 1 is inside another"):
        zero.units.cut(nn.ModuleList([module]), [module, module[0]])


def test_a_weight_that_is_used_outside_of_its_layer_belongs_to_the_rest():
    module = nn.ModuleDict(
        {"layers": nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]), "head": nn.Linear(2, 2)}
    )
    module["head"].weight = module["layers"][0].weight
    (_, first), (_, second), (whole, rest) = zero.units.cut(module, list(module["layers"]))
    assert list(first) == ["layers.0.bias"]
    assert list(second) == ["layers.1.weight", "layers.1.bias"]
    assert whole is module
    assert list(rest) == ["layers.0.weight", "head.bias"]


def test_a_sparse_gradient_is_refused():
    module = nn.Sequential(nn.Embedding(4, 2, sparse=True))

    def call(group):
        zero.shard(module, group, stage=1, optimizer=OPTIMIZERS["SGD"])
        module(torch.tensor([1])).sum().backward()
        flat = zero.Flat({"x": module[0].weight}, group)
        zero.gradients.Gradients(flat).take(0)

    with pytest.raises(RankError, match="sparse=False"):
        run(call, world_size=1)
