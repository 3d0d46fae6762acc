"""Mixed precision against fp32 and torch's GradScaler: results, what is lost without it, and bytes."""

import functools

import pytest
import torch
from torch import nn

from shardlab.costs import memory
from shardlab.costs.facts import recipes
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.memory import precision
from shardlab.ranks.memory.precision import LossScale, MasterWeights

SIZES = {"vocab_size": 32, "context_length": 16, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    **{name: getattr(torch.optim, name) for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad")},
    **{name: getattr(torch.optim, name) for name in ("Adadelta", "RMSprop", "ASGD", "Rprop")},
}


# ---- against torch's GradScaler --------------------------------------------------------------------------------------


def slopes(step):
    """Make the gradient of one step: small numbers that fp16 holds exactly, and sometimes an overflow."""
    if step in (2, 6, 7, 12):
        return torch.tensor([1.0, float("inf"), 0.5])
    return torch.tensor([1.0, -2.0, step / 4]) / 1024


def torchs(make, steps):
    """Return the scale and the fp32 weights after each step of torch's own scaler."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0, -0.5]))
    optimizer, scaler = make([weight]), torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)
    for step in range(steps):
        optimizer.zero_grad()
        scaler.scale((weight * slopes(step)).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        yield scaler.get_scale(), weight.detach().clone()


def ours(make, steps):
    weight = nn.Parameter(torch.tensor([1.0, 2.0, -0.5], dtype=torch.float16))
    optimizer = MasterWeights(make([weight]), loss_scale=LossScale(16.0, good_steps=3))
    for step in range(steps):
        optimizer.backward((weight * slopes(step)).sum())
        assert optimizer.step() == slopes(step).isfinite().all()
        assert torch.equal(weight.detach(), optimizer.masters[0].detach().half())
        assert weight.grad is None
        assert optimizer.masters[0].grad is None
        yield optimizer.scale, optimizer.masters[0].detach().clone()


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parity("memory", "loss scaling with fp32 masters steps and skips as torch's does")
def test_scales_skips_and_steps_as_torch_does(name):
    make, scales = OPTIMIZERS[name], []
    for mine, its in zip(ours(make, 20), torchs(make, 20), strict=True):
        assert mine[0] == its[0]
        assert torch.equal(mine[1], its[1])
        scales.append(mine[0])
    assert {4.0, 8.0, 16.0} == set(scales)  # it went both ways


def test_groups_and_schedules_of_the_optimizer_stay():
    slow, fast = (nn.Parameter(torch.ones(2, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = MasterWeights(torch.optim.SGD([{"params": [slow], "lr": 0.25}, {"params": [fast]}], lr=0.5))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer.optimizer, step_size=1, gamma=0.5)
    for _ in range(2):
        optimizer.backward((slow + fast).sum())
        optimizer.step()
        schedule.step()
    assert slow.tolist() == [1 - 0.25 - 0.125] * 2
    assert fast.tolist() == [1 - 0.5 - 0.25] * 2


def test_states_that_are_there_already_go_on_in_fp32():
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    inner = torch.optim.SGD([weight], lr=2.0**-10, momentum=0.5)
    weight.sum().backward()
    inner.step()
    optimizer = MasterWeights(inner)
    weight.grad = None
    optimizer.backward(weight.sum())
    optimizer.step()
    (state,) = inner.state.values()
    assert (state["momentum_buffer"].item(), state["momentum_buffer"].dtype) == (1.5, torch.float32)
    assert optimizer.masters[0].item() == 1 - 1.5 * 2.0**-10


# ---- the same training -----------------------------------------------------------------------------------------------


def model(dtype, style="gpt2"):
    torch.manual_seed(0)
    return transformer.Transformer(TransformerSpec(**SIZES, style=style)).to(dtype)


def sequences(step):
    """Make sequences that count in threes from a random start: [16, 17]."""
    start = torch.randint(32, (16, 1), generator=torch.Generator().manual_seed(step))
    return (start + torch.arange(17) * 3) % 32


def loss_of(net, text):
    return transformer.loss(net(text[:, :-1]).float(), text[:, 1:])


@functools.cache
def losses(dtype, with_masters, steps=40):
    net, seen = model(dtype), []
    inner = torch.optim.AdamW(net.parameters(), lr=1e-3)
    if with_masters:
        optimizer = MasterWeights(inner, loss_scale=LossScale() if dtype == torch.float16 else None)
    for step in range(steps):
        loss = loss_of(net, sequences(step))
        if with_masters:
            optimizer.backward(loss)
            assert optimizer.step()
        else:
            inner.zero_grad()
            loss.backward()
            inner.step()
        seen.append(loss.item())
    return torch.tensor(seen)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 3e-3), (torch.float16, 4e-4)])
def test_learns_as_in_fp32(dtype, tolerance):
    reference = losses(torch.float32, False)
    assert reference[-1] < 0.8 * reference[0]
    assert (losses(dtype, True) - reference).abs().max() < tolerance


def test_learns_less_without_masters():
    reference = losses(torch.float32, False)
    with_masters, without = (losses(torch.bfloat16, each)[-5:].mean() - reference[-5:].mean() for each in (True, False))
    assert without > 0.02
    assert without > 10 * with_masters.abs()


# ---- why -------------------------------------------------------------------------------------------------------------


def test_a_short_step_is_lost_without_a_master():
    """Neighbours of 1 in bf16 are 2**-7 above and 2**-8 below: 100 steps of 2**-10 are 0.1, or nothing."""

    def train(wrap):
        weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
        inner = torch.optim.SGD([weight], lr=2.0**-10)
        optimizer = MasterWeights(inner) if wrap else inner
        for _ in range(100):
            if wrap:
                optimizer.backward(weight.sum())
            else:
                inner.zero_grad()
                weight.sum().backward()
            optimizer.step()
        return weight.item()

    assert train(wrap=False) == 1.0
    assert train(wrap=True) == pytest.approx(1 - 100 * 2.0**-10, abs=2.0**-9)


def test_a_small_gradient_is_lost_without_a_scale():
    """The smallest number of fp16 is 2**-24."""

    def gradient(loss_scale):
        weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
        optimizer = MasterWeights(torch.optim.SGD([weight], lr=1.0), loss_scale=loss_scale)
        optimizer.backward((weight.float() * 2.0**-26).sum())
        optimizer.collect()
        return optimizer.masters[0].grad.item()

    assert gradient(None) == 0
    assert gradient(LossScale(1024.0)) == 2.0**-26


def test_recovers_from_a_scale_that_is_too_large():
    """A gradient of 1 in fp16 can be scaled by 2**15 at most: from 2**24 on, nine steps are skipped."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = MasterWeights(torch.optim.Adam([weight], lr=0.125), loss_scale=LossScale(2.0**24))
    taken = []
    for _ in range(12):
        optimizer.backward(weight.sum())
        taken.append(optimizer.step())
        assert taken[-1] or weight.item() == 1.0
    assert taken == [False] * 9 + [True] * 3
    assert optimizer.scale == 2.0**15
    assert weight.item() == 1 - 3 * 0.125


def test_the_scale_doubles_after_good_steps_in_a_row():
    scale, seen = LossScale(8.0, good_steps=3), []
    for overflowed in [False, False, True, False, False, False, False, False, False, True]:
        scale.update(overflowed)
        seen.append(scale.value)
    assert seen == [8, 8, 4, 4, 4, 8, 8, 8, 16, 8]


def test_what_a_dtype_loses():
    tiny, huge = 2.0**-26, 70_000.0
    numbers = [torch.tensor([0.0, 0.0, tiny, 1.0]), torch.tensor([[huge], [tiny]])]
    assert precision.lost(numbers, torch.float16) == (0.5, 0.25)
    assert precision.lost(numbers, torch.float16, scale=4.0) == (0.0, 0.25)
    assert precision.lost(numbers, torch.bfloat16) == (0.0, 0.0)
    before, after = [torch.ones(4)], [torch.tensor([1.0, 1 + 2.0**-9, 1 - 2.0**-7, 1.5])]
    assert precision.unmoved(before, after, torch.bfloat16) == pytest.approx(1 / 3)
    assert precision.unmoved(before, after, torch.float32) == 0


# ---- accumulation, clipping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_fp32", [False, True])
def test_many_microbatches_add_up_in_fp32(in_fp32):
    """In bf16, 256 + 1 is 256."""
    weight = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=1.0), loss_scale=LossScale(4.0))
    for _ in range(300):
        optimizer.backward(weight.sum())
        if in_fp32:
            optimizer.collect()
    optimizer.step()
    assert optimizer.masters[0].item() == (-300 if in_fp32 else -256)


def test_gradients_can_be_clipped_between_collect_and_step():
    weight = nn.Parameter(torch.zeros(2, dtype=torch.float16))
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=1.0), loss_scale=LossScale(512.0))
    optimizer.backward((weight * torch.tensor([30.0, 40.0])).sum())
    optimizer.collect()
    assert nn.utils.clip_grad_norm_(optimizer.masters, 5.0).item() == 50
    assert optimizer.step()
    torch.testing.assert_close(optimizer.masters[0], torch.tensor([-3.0, -4.0]))
    optimizer.backward((weight * float("inf")).sum())
    optimizer.collect()
    nn.utils.clip_grad_norm_(optimizer.masters, 5.0)
    assert not optimizer.step()  # clipping has not hidden the overflow


def test_parameters_without_gradients_stay():
    layer = nn.Linear(2, 2).to(torch.bfloat16)
    layer.bias.requires_grad_(False)
    before, optimizer = layer.bias.clone(), MasterWeights(torch.optim.AdamW(layer.parameters(), weight_decay=0.5))
    optimizer.backward(layer(torch.ones(1, 2, dtype=torch.bfloat16)).sum())
    optimizer.step()
    assert torch.equal(layer.bias, before)


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parametrize("dtype", precision.HALVES)
@pytest.mark.counted("memory", "bytes of each model state in mixed precision")
def test_bytes_counted_equal_the_recipes(style, dtype):
    """There are 16 bytes per parameter between steps, and 18 with fp32 gradients, as during the step."""
    net, in_step = model(dtype, style), []
    optimizer = MasterWeights(torch.optim.AdamW(net.parameters(), lr=1e-3))
    optimizer.optimizer.register_step_pre_hook(lambda *_: in_step.append(optimizer.nbytes()))
    count = sum(parameter.numel() for parameter in net.parameters())
    halves, full = (recipes.recipe(f"mixed, {kind} gradients") for kind in ("16-bit", "fp32"))
    for _ in range(2):  # the optimizer's states are there after the first step
        optimizer.backward(loss_of(net, sequences(0)))
        before = optimizer.nbytes()
        optimizer.step()
    assert before == memory.model_states(count, halves)
    assert in_step[1] == memory.model_states(count, full)
    optimizer.backward(loss_of(net, sequences(1)))
    optimizer.collect()
    assert optimizer.nbytes() == memory.model_states(count, full)
    assert optimizer.nbytes()["gradients"] == 4 * count


# ---- ranks -----------------------------------------------------------------------------------------------------------


def agree(group, together):
    """Let rank r overflow in step r; ranks have different gradients, as with ZeRO."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
    scale = LossScale(16.0, good_steps=2)
    optimizer = MasterWeights(torch.optim.SGD([weight], lr=0.25), loss_scale=scale, group=group if together else None)
    history = []
    for step in range(6):
        optimizer.backward(weight.sum() * (float("inf") if step == group.rank() else group.rank()))
        history.append((optimizer.step(), optimizer.scale))
    return history


def average(group):
    """Train data-parallel for three steps, of which the second overflows on the last rank; return the masters."""
    net = model(torch.bfloat16) if group.rank() == 0 else transformer.Transformer(TransformerSpec(**SIZES)).bfloat16()
    wrapped = DataParallel(net, group)
    optimizer = MasterWeights(torch.optim.AdamW(net.parameters(), lr=1e-3), loss_scale=LossScale(1024.0))
    taken = []
    for step in range(3):
        text = sequences(step).chunk(group.size())[group.rank()]
        with wrapped.no_sync():
            optimizer.backward(loss_of(wrapped, text[:4]) / 2)
        factor = float("inf") if step == 1 and group.rank() == group.size() - 1 else 0.5
        optimizer.backward(loss_of(wrapped, text[4:]) * factor)
        taken.append(optimizer.step())
    return taken, optimizer.scale, [master.detach() for master in optimizer.masters]


def both(group):
    return agree(group, True), agree(group, False), average(group)


def test_ranks_agree():
    results = run(both, world_size=2)
    together, apart, averaged = zip(*results, strict=True)
    taken = [False, False, True, True, True, True]
    assert all(history == list(zip(taken, [8, 4, 4, 8, 8, 16], strict=True)) for history in together)
    assert apart[0] != apart[1]
    for taken, scale, masters in averaged:
        assert taken == [True, False, True]
        assert scale == 512
        for mine, its in zip(masters, averaged[0][2], strict=True):
            assert torch.equal(mine, its)


def test_ranks_learn_as_one_process():
    """Gradients averaged in bf16 are rounded once more; steps of Adam differ where a gradient is near zero."""
    masters = run(average, world_size=2)[0][2]
    net = model(torch.bfloat16)
    start = [parameter.detach().float() for parameter in net.parameters()]
    optimizer = MasterWeights(torch.optim.AdamW(net.parameters(), lr=1e-3))
    for step in (0, 2):
        optimizer.backward(loss_of(net, sequences(step)))
        optimizer.step()
    moved = torch.cat([(a - b).flatten() for a, b in zip(optimizer.masters, start, strict=True)])
    error = torch.cat([(a - b).flatten() for a, b in zip(masters, optimizer.masters, strict=True)])
    assert error.norm() < 0.1 * moved.norm()


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_what_is_not_16_bits_is_refused():
    with pytest.raises(ValueError, match=r"is torch.float32; use model.to\(torch.bfloat16\)"):
        MasterWeights(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0))


@pytest.mark.parametrize("arguments", [{"value": 0.0}, {"good_steps": 0}])
def test_a_scale_that_scales_nothing_is_refused(arguments):
    with pytest.raises(ValueError, match="cannot scale a loss; use a value above 0, and at least 1"):
        LossScale(**arguments)
