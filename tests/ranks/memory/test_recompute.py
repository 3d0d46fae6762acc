"""Recomputation changes no bit of gradients, random numbers or casts, and saves the predicted bytes."""

import functools
import gc
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils import checkpoint as torchs
from torch.utils.flop_counter import FlopCounterMode

from shardlab.costs import memory
from shardlab.costs.compute import flops as predict
from shardlab.costs.facts import recipes
from shardlab.costs.programs import BOOK_ON_CPU
from shardlab.costs.training import Training
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.memory import recompute
from shardlab.ranks.memory.recompute import checkpoint
from shardlab.ranks.observe.saved_tensors import SavedTensors

BATCH, LENGTH, HIDDEN, LAYERS, HEADS = 2, 24, 16, 4, 2
ATTENTIONS = {"flash": nullcontext, "stored": functools.partial(sdpa_kernel, SDPBackend.MATH)}
POLICIES = {
    "nothing": lambda blocks: None,
    "attention": recompute.wrap_attention,
    "every second block": lambda blocks: recompute.wrap(blocks[::2]),
    "every block": recompute.wrap,
    "attention inside every block": lambda blocks: (recompute.wrap_attention(blocks), recompute.wrap(blocks)),
    "twice": lambda blocks: (recompute.wrap(blocks), recompute.wrap(blocks)),
}


def plain(function, *inputs, **options):
    return function(*inputs, **options)


def torchs_checkpoint(function, *inputs, **options):
    return torchs.checkpoint(function, *inputs, use_reentrant=False, **options)


CHECKPOINTS = (plain, checkpoint, torchs_checkpoint)


def same(ours, theirs):
    """Assert that gradients are bitwise identical, or missing in both."""
    return (ours is None) == (theirs is None) and (ours is None or torch.equal(ours, theirs))


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for index, (mine, its) in enumerate(zip(ours, theirs, strict=True)):
        assert same(mine, its), f"tensor {index} differs"


# ---- the transformer, from outside -----------------------------------------------------------------------------------


def model(style="gpt2", policy="nothing"):
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "num_layers": LAYERS, "num_heads": HEADS, "context_length": LENGTH}
    net = transformer.Transformer(TransformerSpec(vocab_size=19, style=style, **sizes)).double()
    POLICIES[policy](net.blocks)
    return net


def tokens(batch=BATCH):
    return torch.randint(19, (batch, LENGTH + 1), generator=torch.Generator().manual_seed(1))


@functools.cache
def trained(style, attention, policy):
    """Return the gradients of one step, the bytes that forward kept, and the peak."""
    net, text = model(style, policy), tokens()
    with ATTENTIONS[attention](), SavedTensors(without=[*net.parameters(), text]) as saved:
        loss = net(text[:, :-1], text[:, 1:])
        left = saved.nbytes
        loss.backward()
    return [loss.detach(), *(p.grad for p in net.parameters())], left, saved.peak


@pytest.mark.parametrize("policy", list(POLICIES)[1:])
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.parity("memory", "gradients with recomputation are those without it, to the bit")
def test_gradients_are_equal_to_the_bit(style, attention, policy):
    assert_same(trained(style, attention, policy)[0], trained(style, attention, "nothing")[0])


@functools.cache
def alone(style, attention):
    """Return the bytes that one block keeps, without its input."""
    block, x = model(style).blocks[0], torch.randn(BATCH, LENGTH, HIDDEN, dtype=torch.float64, requires_grad=True)
    with ATTENTIONS[attention](), SavedTensors(without=[*block.parameters(), x]) as saved:
        y = block(x)
        return y.nbytes, saved.nbytes


def without_blocks(style):
    """Return the bytes that embedding, norm, head and loss keep."""
    net, text = model(style), tokens()
    net.blocks = nn.ModuleList()
    with SavedTensors(without=[*net.parameters(), text]) as saved:
        loss = net(text[:, :-1], text[:, 1:])
        return saved.nbytes, loss


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.counted("memory", "bytes that stay of recomputed blocks")
def test_of_a_block_its_input_stays(style, attention):
    """Every block keeps its input; at the peak of backward one block keeps everything."""
    x, block = alone(style, attention)
    assert x == BATCH * LENGTH * HIDDEN * 8
    rest, _ = without_blocks(style)
    _, none, _ = trained(style, attention, "nothing")
    _, left, peak = trained(style, attention, "every block")
    assert left == LAYERS * x + rest
    assert none == LAYERS * (x + block) + rest
    assert LAYERS * x + block <= peak <= left + block
    assert trained(style, attention, "every second block")[1] == LAYERS * x + LAYERS // 2 * block + rest


@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_of_the_attention_the_scores_go(style):
    """Korthikanti et al. 2022, section 3: the softmax, a number for each head and pair of tokens (no dropout here)."""
    scores = LAYERS * BATCH * HEADS * LENGTH**2 * 8
    none, left = (trained(style, "stored", policy)[1] for policy in ("nothing", "attention"))
    assert none - left == scores


@pytest.mark.parametrize(
    ("recomputation", "policy"), {"none": "nothing", "selective": "attention", "full": "every block"}.items()
)
@pytest.mark.parametrize("style", ["gpt2", "llama"])
@pytest.mark.counted("memory", "bytes kept and FLOPs computed, for each way to recompute")
def test_bytes_and_flops_are_those_predicted(style, recomputation, policy):
    net, text = model(style, policy).float(), tokens()
    with sdpa_kernel(SDPBackend.MATH), SavedTensors(without=net.parameters()) as saved:
        with FlopCounterMode(display=False) as work:  # its hooks keep tensors, too: bytes are counted before
            loss = net(text[:, :-1].clone(), text[:, 1:].clone())
            left = saved.nbytes
            loss.backward()
    sizes = {"recomputation": recomputation, "sequence": LENGTH}
    fp32 = recipes.recipe("fp32 Adam")
    training = Training(
        spec=net.spec, microbatch=BATCH, attention="stored", recipe=fp32, program=BOOK_ON_CPU, **sizes
    )
    assert left == sum(memory.kept(training).values())
    assert work.get_total_flops() == predict.hardware_flops(net.spec, batch=BATCH, **sizes)


def test_no_more_stays_than_with_torchs_checkpoint():
    net, text = model(), tokens()
    for block in net.blocks:
        block.forward = functools.partial(torchs_checkpoint, block.forward)
    with SavedTensors(without=[*net.parameters(), text]) as saved:
        loss = net(text[:, :-1], text[:, 1:])
        assert trained("gpt2", "flash", "every block")[1] == saved.nbytes, loss


def test_wrapping_can_be_undone_and_keeps_names():
    net, bare = model(policy="every block"), model()
    assert list(net.state_dict()) == list(bare.state_dict())
    for block in net.blocks:
        del block.forward
        assert block.forward == type(block).forward.__get__(block)


def test_microbatches_hold_the_activations_of_one_and_give_the_gradient_of_all():
    """Accumulation, the other way to need less memory, is a loop, and only makes matrices smaller."""
    text, whole, parts = tokens(batch=8), model(), model()
    with SavedTensors(without=[*whole.parameters(), text]) as at_once:
        whole(text[:, :-1], text[:, 1:]).backward()
    with SavedTensors(without=[*parts.parameters(), text]) as one_by_one:
        for part in text.chunk(4):
            (parts(part[:, :-1], part[:, 1:]) / 4).backward()
    assert one_by_one.peak * 4 == pytest.approx(at_once.peak, rel=0.01)  # a few numbers do not depend on the batch
    for ours, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-14)


# ---- any function: against no checkpoint and against torch's ---------------------------------------------------------


class Scaled(torch.autograd.Function):
    """An operation that torch's modules do not have."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Odd(nn.Module):
    """A custom operation, a list of tensors, a frozen weight, an unused one, and torch.ops."""

    def __init__(self):
        super().__init__()
        self.scale, self.unused = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(2))
        self.top, self.frozen = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(3, 6), requires_grad=False)

    def forward(self, x):
        return torch.ops.aten.mm.default(Scaled.apply(x, self.scale), torch.cat([self.top, self.frozen * 2]))


class Nested(nn.Module):
    """A checkpoint in a checkpoint, each with dropout, and one layer in both."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def inner(self, x):
        return F.dropout(torch.tanh(self.layer(x)), 0.3)

    def forward(self, x):
        return self.last(checkpoint(self.inner, F.dropout(self.layer(x), 0.3)))


class Constant(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))

    def forward(self, x):
        return self.weight


MODULES = {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.4), nn.Linear(6, 6), nn.Dropout(0.4)),
    "torch's layer": lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.3, batch_first=True),
    "custom operations": Odd,
    "nested": Nested,
    "a parameter as it is": Constant,
    "frozen": lambda: nn.Linear(6, 3).requires_grad_(False),
    "its input as it is": nn.Identity,
    "several lists": lambda: nn.GRU(6, 4),
}


def outcome(how, make, needs_gradient=True):
    """Return the result, the gradients and the next random number, from the same seeds."""
    torch.manual_seed(0)
    module, x = make().double(), torch.randn(5, 6, dtype=torch.float64, requires_grad=needs_gradient)
    torch.manual_seed(1)
    y = how(module, x)
    y, after_forward = y[0] if isinstance(y, tuple) else y, torch.rand(1)
    if y.requires_grad:
        y.square().sum().backward()
    return [y.detach(), x.grad, *(p.grad for p in module.parameters()), after_forward, torch.rand(1)]


@pytest.mark.parametrize("needs_gradient", [True, False])
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parity("memory", "our checkpoint is no checkpoint, and torch's, to the bit")
def test_equals_no_checkpoint_and_torchs(kind, needs_gradient):
    expected, ours, theirs = (outcome(how, MODULES[kind], needs_gradient) for how in CHECKPOINTS)
    assert_same(ours, expected)
    assert_same(theirs, expected)


def test_every_dropout_differs_but_not_from_itself():
    torch.manual_seed(0)
    x = torch.ones(1000, requires_grad=True)
    masks = [checkpoint(F.dropout, x, 0.5) for _ in range(2)]
    assert not torch.equal(*masks)
    for mask in masks:
        (gradient,) = torch.autograd.grad(mask.sum(), x)
        assert torch.equal(gradient, mask)


def many(pair, text, *, factor, options, unused=None):
    """Nested inputs and results, some of them no tensors."""
    x, y = pair
    first = x * factor + options["z"]
    return {"first": first, "pair": [y.square(), len(text)], "index": y.argsort(), "cut": first.detach()}, text


def test_inputs_and_results_may_be_nested_and_anything():
    gradients = []
    for how in CHECKPOINTS:
        x, y, z, unused = (torch.arange(float(start), start + 3).requires_grad_() for start in range(4))
        z.requires_grad_(False)
        named, text = how(many, (x, y), "text", factor=3, options={"z": z}, unused=unused)
        assert (text, named["pair"][1], named["index"].tolist()) == ("text", 4, [0, 1, 2])
        assert not named["index"].requires_grad
        named["first"] += 1  # what a function returned may be changed
        (named["first"].square().sum() + named["pair"][0].sum()).backward()
        gradients.append([x.grad, y.grad, z.grad, unused.grad])
    assert_same(gradients[1], gradients[0])
    assert_same(gradients[2], gradients[0])


def test_results_that_backward_does_not_reach():
    for how in CHECKPOINTS:
        x = torch.ones(2, requires_grad=True)
        first, second = how(lambda x: (x * 2, x * 3), x)
        first.sum().backward()
        assert x.grad.tolist() == [2, 2]
        assert second.requires_grad
    x = torch.ones(2, requires_grad=True)
    checkpoint(lambda x: x.detach(), x).sum().backward()  # as torch's reentrant one: it cannot know before
    assert x.grad is None


def test_one_tensor_in_two_places():
    for how in CHECKPOINTS:
        x = torch.tensor([3.0], requires_grad=True)
        how(lambda a, b: a * a * b, x, x).backward()
        assert x.grad.item() == 27


def cast_step(how, make, inside):
    """Return the result's dtype and the gradients, with backward inside the block or after it."""
    torch.manual_seed(0)
    module, x = make(), torch.randn(5, 6)
    with torch.autocast("cpu", torch.bfloat16):
        y = how(module, x)
        if inside:
            y.float().square().sum().backward()
    if not inside:
        y.float().square().sum().backward()
    return y.dtype, [p.grad for p in module.parameters()]


class Twice(nn.Module):
    """One weight in two checkpoints: a cast of the first that has no history must not serve the second."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return checkpoint(self.layer, checkpoint(self.layer, x).tanh())


@pytest.mark.parametrize("inside", [False, True], ids=["backward after autocast", "backward inside autocast"])
def test_autocast_is_respected(inside):
    def make():
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))

    (kept, expected), (dtype, ours) = cast_step(plain, make, inside), cast_step(checkpoint, make, inside)
    assert dtype == kept == torch.bfloat16
    assert_same(ours, expected)
    (_, ours), (_, theirs) = cast_step(plain, Twice, inside), cast_step(torchs_checkpoint, Twice, inside)
    for mine, its in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, its, rtol=0.02, atol=0.02)


def test_without_autocast_in_forward_there_is_none_in_backward():
    def step(how):
        torch.manual_seed(0)
        layer, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), torch.randn(5, 6)
        y = how(layer, x).sum()
        with torch.autocast("cpu", torch.bfloat16):
            y.backward()
        return [p.grad for p in layer.parameters()]

    assert_same(step(checkpoint), step(plain))


def test_computes_once_without_gradients_and_twice_with():
    calls = []

    def function(x):
        calls.append(torch.is_grad_enabled())
        return x * 2

    with torch.no_grad():
        checkpoint(function, torch.ones(1, requires_grad=True))
    assert not checkpoint(function, torch.ones(1)).requires_grad
    assert calls == [False, False]
    y = checkpoint(function, torch.ones(1, requires_grad=True))
    y.backward(retain_graph=True)
    y.backward()
    assert calls == [False, False, False, True, True]


def test_a_parameter_in_a_closure_gets_its_gradient():
    """Where no input needs a gradient, torch's reentrant version leaves it out, with a warning."""
    layer = nn.Linear(3, 3)
    checkpoint(lambda x: layer(x).tanh(), torch.ones(2, 3)).sum().backward()
    assert layer.weight.grad.abs().sum() > 0


def test_only_the_gradient_asked_for():
    layer, x = nn.Linear(3, 3), torch.ones(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(checkpoint(layer, x).sum(), x)
    assert torch.equal(gradient, layer.weight.sum(0).expand(2, 3))
    assert layer.weight.grad is None


def test_nothing_is_held_after_backward_but_the_inputs_before():
    x = torch.ones(3, requires_grad=True)
    inside, before = [], (x * 2)
    given = weakref.ref(before)

    def function(x):
        inside.append(weakref.ref(x.exp()))
        return x.exp().tanh()

    y = checkpoint(function, before)
    del before
    gc.collect()
    assert inside[0]() is None
    assert given() is not None
    y.sum().backward()
    assert given() is None


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_a_tensor_with_a_history_must_be_an_input():
    x = torch.ones(3, requires_grad=True)
    h = x * 2
    with pytest.raises(ValueError, match=r"uses a tensor \(3,\) from outside; pass it as one of the inputs"):
        checkpoint(lambda x: x + h, x)
    assert torch.equal(checkpoint(lambda x: x + torch.ones(h.shape), x), torch.full((3,), 2.0))  # its shape is no use


def test_a_parameter_that_leaves_its_device_is_refused():
    layer = nn.Linear(2, 2)

    def use_and_move(x):
        y = layer(x)
        torch.utils.swap_tensors(layer.weight, nn.Parameter(layer.weight.to("meta")))  # `Offload`: to the host
        return y

    with pytest.raises(RuntimeError, match=r"used on cpu and is on meta now.* recompute.wrap\(modules\) before"):
        checkpoint(use_and_move, torch.ones(1, 2))



def test_a_parameter_that_changed_before_backward_is_noticed():
    layer = nn.Linear(3, 3)
    y = checkpoint(layer, torch.ones(2, 3)).sum()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="changed between forward and backward"):
        y.backward()


def test_a_gradient_of_a_gradient_is_refused():
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(checkpoint(torch.exp, x).sum(), x, create_graph=True)


# ---- with other methods ----------------------------------------------------------------------------------------------


class Shared(nn.Module):
    """One layer in two checkpoints: its gradient must arrive once."""

    def __init__(self):
        super().__init__()
        self.shared, self.head = nn.Linear(3, 3), nn.Linear(3, 1)

    def forward(self, x):
        return self.head(checkpoint(self.shared, checkpoint(self.shared, x)))


def test_hooks_of_modules_may_watch_the_second_forward():
    """torch's FLOP counter registers hooks on the inputs of every module, which leaves of a nested backward reject."""
    x, net = torch.ones(2, 6, requires_grad=True), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    with FlopCounterMode(display=False) as counter:
        checkpoint(net, x).sum().backward()
    forward = 2 * 2 * (2 * 6 * 6)
    assert counter.get_total_flops() == 2 * forward + 2 * forward


def test_ranks_average_checkpointed_layers():
    def step(group):
        gradients = []
        for wrap in (DataParallel, functools.partial(DistributedDataParallel)):
            torch.manual_seed(0)
            net = Shared().double()
            wrapped = wrap(net, group) if wrap is DataParallel else wrap(net, process_group=group)
            wrapped(torch.full((2, 3), group.rank() + 1.0, dtype=torch.float64)).square().sum().backward()
            gradients.append([p.grad.clone() for p in net.parameters()])
        return gradients

    torch.manual_seed(0)
    net = Shared().double()
    total = sum(net(torch.full((2, 3), rank + 1.0, dtype=torch.float64)).square().sum() for rank in range(2))
    (total / 2).backward()
    for gradients in run(step, world_size=2):
        for ours in gradients:
            for mine, its in zip(ours, net.parameters(), strict=True):
                torch.testing.assert_close(mine, its.grad, rtol=0, atol=1e-12)
