"""The two halves of a split backward together are the whole, and each computes only its half."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from shardlab.ranks.memory import recompute
from shardlab.ranks.pipeline.split_backward import SplitBackward
from tests.ranks.tolerance import EXACT


class Net(nn.Module):
    """A net of linear layers, one frozen, one used twice; a norm; a weight that is no leaf."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 5, bias=False)
        self.frozen, self.norm = nn.Linear(5, 5).requires_grad_(False), nn.LayerNorm(5)
        self.last = nn.Linear(5, 3)
        self.double()

    def forward(self, x):
        h = self.frozen(self.second(torch.tanh(self.second(self.first(x)))))
        return F.linear(self.norm(h), 2 * self.last.weight, self.last.bias)


def net():
    torch.manual_seed(0)
    return Net()


def samples():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 4, 6, dtype=torch.float64, generator=generator).requires_grad_()


def gradients(module):
    return {
        name: None if p.grad is None else p.grad.clone() for name, p in module.named_parameters()
    }


@pytest.mark.parity("pipeline", "the two halves of a split backward are the whole")
def test_the_halves_are_the_whole():
    whole, x = net(), samples()
    whole(x).square().sum().backward()
    cut, y, later = net(), samples(), []
    with SplitBackward(cut).into(later):
        result = cut(y)
    result.square().sum().backward()
    torch.testing.assert_close(y.grad, x.grad, **EXACT)
    there = {name for name, gradient in gradients(cut).items() if gradient is not None}
    assert there == {
        "norm.weight",
        "norm.bias",
        "last.weight",
        "last.bias",
    }  # what is no product with a weight
    assert len(later) == 3  # the second layer stands twice in the graph
    for weights in later:
        weights()
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], gradient, **EXACT)


def test_gradients_are_added_to_those_that_are_there():
    whole, cut = net(), net()
    split = SplitBackward(cut)
    for _ in range(2):
        later = []
        whole(samples()).sum().backward()
        with split.into(later):
            result = cut(samples())
        result.sum().backward()
        for weights in later:
            weights()
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], gradient, **EXACT)


def test_outside_the_block_and_without_gradients_nothing_is_split():
    cut, later = net(), []
    split = SplitBackward(cut)
    with split.into(later):
        pass
    cut(samples()).sum().backward()
    assert cut.first.weight.grad is not None
    with split.into(later), torch.no_grad():
        assert not cut(samples()).requires_grad
    assert later == []


def test_recomputed_layers_split_where_they_are_recomputed():
    whole, cut, x, y, later = net(), net(), samples(), samples(), []
    whole(x).square().sum().backward()
    split = SplitBackward(cut)
    recompute.wrap([cut])
    with split.into(later):
        result = cut(y)
        assert later == []
        result.square().sum().backward()
    assert cut.first.weight.grad is None
    for weights in later:
        weights()
    torch.testing.assert_close(y.grad, x.grad, **EXACT)
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], gradient, **EXACT)


def test_mixed_precision_keeps_the_dtypes_of_the_weights():
    cut, later = net().float(), []
    x = samples().detach().float().requires_grad_()
    with SplitBackward(cut).into(later), torch.autocast("cpu", torch.bfloat16):
        result = cut(x)
    result.float().square().sum().backward()
    for weights in later:
        weights()
    whole, z = net().float(), samples().detach().float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        result = whole(z)
    result.float().square().sum().backward()
    for (name, mine), its in zip(cut.named_parameters(), whole.parameters(), strict=True):
        if its.grad is not None:
            assert mine.grad.dtype == torch.float32, name
            torch.testing.assert_close(mine.grad, its.grad, rtol=0.05, atol=0.05)
    torch.testing.assert_close(x.grad, z.grad, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(("style", "per_token"), [("gpt2", 16), ("llama", None)])
def test_what_waits_for_the_second_half_is_what_the_paper_counts(style, per_token):
    """Qi et al. 2023, Table 1: a layer keeps 32 s b h bytes for W, so 16 h numbers a token."""
    h, f = 8, 32
    spec = TransformerSpec(
        vocab_size=5,
        context_length=4,
        hidden_size=h,
        num_layers=1,
        num_heads=2,
        ffn_size=f,
        style=style,
    )
    block, later = transformer.Transformer(spec).blocks[0], []
    x = torch.randn(3, 4, h, requires_grad=True)
    with SplitBackward(block).into(later):
        y = block(x)
    y.backward(torch.randn_like(y))
    kept = {
        tensor.untyped_storage()._cdata: tensor.numel()
        for weights in later
        for tensor in weights.args[:2]
    }
    # x: one for q, k, v; out, (gate and) up, down. dy: q, k, v, out, up, (gate,) down
    expected = (3 * h + f) + (5 * h + f if style == "gpt2" else 5 * h + 2 * f)
    assert sum(kept.values()) / (3 * 4) == expected
    assert per_token is None or expected == per_token * h


def test_hooks_on_weights_see_and_change_their_gradients():
    """Tensor parallelism sums the gradients of shared key heads with such hooks."""
    seen, whole, split = [], net(), net()
    for model in (whole, split):
        model.second.weight.register_hook(lambda gradient: seen.append(gradient) or 2 * gradient)
        model.first.bias.register_hook(lambda gradient: 3 * gradient)
    x = (
        samples().detach()
    )  # needs no gradient: the first layer's weights must be reached all the same
    whole(x).sum().backward()
    halves, later = SplitBackward(split), []
    with halves.into(later):
        y = split(x)
    y.sum().backward()
    assert len(seen) == 1
    for weights in later:
        weights()
    assert len(seen) == 3  # the layer is used twice, and each use makes a gradient
    for name, gradient in gradients(whole).items():
        if gradient is not None:
            torch.testing.assert_close(gradients(split)[name], gradient, **EXACT)
