"""Sequence parallelism: the bytes that a rank keeps, and gradients that need a sum over slices."""

import dataclasses
import functools

import pytest
import torch
from torch import nn

from shardlab.costs.facts.recipes import recipe
from shardlab.costs.memory import activations
from shardlab.costs.programs import BOOK_ON_CPU
from shardlab.costs.training import Training
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import tensor_parallel, transformer
from shardlab.ranks.observe import ledger
from shardlab.ranks.observe.saved_tensors import SavedTensors
from shardlab.ranks.tensor_parallel import regather
from shardlab.ranks.tensor_parallel.sequence import SlicedPositions
from shardlab.sharding.layout import Layout
from tests.ranks.tolerance import EXACT

BATCH, LENGTH, WIDTH = 2, 24, 48
GPT2 = TransformerSpec(
    vocab_size=50, context_length=32, hidden_size=WIDTH, num_layers=2, num_heads=12
)
SPECS = {
    "gpt2": GPT2,
    "llama": dataclasses.replace(GPT2, style="llama", num_kv_heads=2, ffn_size=72),
}
WAYS = {
    "tensor": {},
    "sequence": {"sequence_parallel": True},
    "sequence, gathered again": {"sequence_parallel": True, "regather": True},
}


def model(spec):
    torch.manual_seed(0)
    return transformer.Transformer(spec)


def tokens():
    whole = torch.randint(50, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    return whole[:, :-1], whole[:, 1:]


# ---- memory --------------------------------------------------------------------------------------


def kept(group, spec, options):
    """Count the bytes of fp32 that the forward pass keeps on this rank."""
    cut, (x, targets) = tensor_parallel.parallelize(model(spec), group, **options), tokens()
    with SavedTensors(without=[*cut.parameters(), x, targets]) as saved:
        loss = cut(x, targets)
        nbytes = saved.nbytes
        loss.backward()
    assert saved.nbytes == 0
    return nbytes


def kept_by_a_layer(group):
    """Count what three layers keep more than two, for each model and way."""
    return {
        (name, way): kept(group, dataclasses.replace(spec, num_layers=3), options)
        - kept(group, spec, options)
        for name, spec in SPECS.items()
        for way, options in WAYS.items()
    }


@functools.cache
def ranks(size):
    return run(kept_by_a_layer, world_size=size)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.counted(
    "tensor_parallel", "bytes that a layer keeps, with and without sequence parallelism"
)
def test_a_layer_keeps_what_is_predicted(name, way, size):
    layout = Layout(tp=size, sequence_parallel=way != "tensor")
    settings = {
        "recipe": recipe("fp32 Adam"),
        "microbatch": BATCH,
        "sequence": LENGTH,
        # What the matrices read, at both entrances.
        "program": dataclasses.replace(BOOK_ON_CPU, keeps_gathered=way == "sequence"),
    }
    predicted = sum(
        activations.layer(Training(spec=SPECS[name], layout=layout, **settings)).values()
    )
    for seen in ranks(size):
        assert seen[name, way] == predicted


def test_all_activations_of_gpt2_are_divided_by_tp_only_if_gathered_again():
    """Korthikanti et al. 2022, equations 1, 2, 4, without dropout: 32 sbh, 8 + 24/t, 32/t."""
    unit = 4 * BATCH * LENGTH * WIDTH // 2  # the paper's sbh is half of a number of 16 bits
    small = (
        2 * 2 * 4 * BATCH * LENGTH,
        4 * BATCH * LENGTH * 12,
    )  # statistics of two norms, and of 12 heads' softmax
    (whole,), (four, *_) = ranks(1), ranks(4)
    assert whole["gpt2", "tensor"] == 32 * unit + sum(small)
    assert four["gpt2", "tensor"] == (8 + 24 / 4) * unit + small[0] + small[1] / 4
    assert four["gpt2", "sequence, gathered again"] == whole["gpt2", "tensor"] / 4


# ---- gradients of what is whole on every rank ----------------------------------------------------


def test_norms_see_a_slice_and_need_the_sum():
    def gradients(group):
        cut = tensor_parallel.parallelize(model(GPT2).double(), group, sequence_parallel=True)
        seen = []
        norm = cut.blocks[1].mlp_norm
        norm.register_forward_hook(lambda _module, inputs, _output: seen.append(inputs[0].shape))
        cut(*tokens()).backward()
        return (
            seen,
            norm.weight.grad,
            cut.blocks[1].mlp.down.bias.grad,
            cut.embedding.positions.weight.grad,
        )

    plain = model(GPT2).double()
    plain(*tokens()).backward()
    block = plain.blocks[1]
    expected = (
        block.mlp_norm.weight.grad,
        block.mlp.down.bias.grad,
        plain.embedding.positions.weight.grad,
    )
    for shapes, *ours in run(gradients, world_size=3):
        assert shapes == [(BATCH, LENGTH // 3, WIDTH)]
        for gradient, reference in zip(ours, expected, strict=True):
            torch.testing.assert_close(gradient, reference, **EXACT)


def test_the_sum_survives_a_change_of_the_parameters():
    """model.to(...) may replace the parameters that had hooks."""

    def gradient(group):
        cut = tensor_parallel.parallelize(model(GPT2).double(), group, sequence_parallel=True)
        cut(*tokens()).backward()
        before, cut.norm.weight = cut.norm.weight, nn.Parameter(cut.norm.weight.detach().clone())
        for _ in range(2):
            cut(*tokens()).backward()
        return before.grad, cut.norm.weight.grad

    plain = model(GPT2).double()
    plain(*tokens()).backward()
    for once, twice in run(gradient, world_size=2):
        torch.testing.assert_close(once, plain.norm.weight.grad, **EXACT)
        torch.testing.assert_close(twice, 2 * plain.norm.weight.grad, **EXACT)


def test_positions_of_a_slice():
    def slices(group):
        return SlicedPositions(
            nn.Embedding.from_pretrained(torch.arange(12.0).reshape(6, 2)), group
        )(torch.arange(4))

    first, second = run(slices, world_size=2)
    assert torch.equal(torch.cat([first, second]), torch.arange(8.0).reshape(4, 2))


# ---- gathering again -----------------------------------------------------------------------------


def reads_gathered(group, frozen):
    """Run two layers that read one gathered tensor, twice; return all results and counts."""
    torch.manual_seed(0)
    gathered = regather.GatheredInput(group)
    plain = [
        nn.Linear(3, 4).double(),
        nn.Linear(3, 4, bias=False).double().requires_grad_(not frozen),
    ]
    layers = [regather.RegatheringLinear(layer, gathered) for layer in plain]
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    part = x.chunk(group.size(), 1)[group.rank()].clone().requires_grad_()
    outputs, again = [], []
    for factor in (1.0, 2.0):
        whole = gathered(part * factor)
        outputs.append(sum(layer(whole) for layer in layers))
        again.append(gathered.slices[whole][1])
    in_use = len(gathered.slices)
    del whole
    with ledger.Ledger() as book:
        (outputs[0] * outputs[1]).sum().backward()
    num_gathers = [event.op for event in book.events].count("all_gather")
    held = len(gathered.slices) + sum(each.whole is not None for each in again)
    grads = [parameter.grad for layer in layers for parameter in layer.parameters()]
    return outputs[1].detach(), part.grad, grads, in_use, num_gathers, held


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parity("tensor_parallel", "layers that keep a slice of the sequence are plain ones")
def test_layers_that_keep_a_slice_compute_as_plain_ones(frozen):
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4).double(), nn.Linear(3, 4, bias=False).double()]
    x = torch.randn(2, 4, 3, dtype=torch.float64, requires_grad=True)
    first, second = (sum(layer(x * factor) for layer in layers) for factor in (1.0, 2.0))
    (first * second).sum().backward()
    references = [parameter.grad for layer in layers for parameter in layer.parameters()]
    for rank, (y, grad, grads, *counts) in enumerate(run(reads_gathered, frozen, world_size=2)):
        torch.testing.assert_close(y, second.detach(), **EXACT)
        torch.testing.assert_close(
            grad, 2 * x.grad.chunk(2, 1)[rank], **EXACT
        )  # both ranks' losses count
        for ours, reference in zip(grads, references, strict=True):
            if ours is not None:
                torch.testing.assert_close(ours, reference, **EXACT)
        assert [ours is None for ours in grads] == [False, False, frozen]
        assert counts == [1, 2, 0]  # in use at a time, gathered again, still held after backward


def test_autocast_computes_in_16_bits_and_keeps_gradients_in_32():
    def step(group, options):
        cut = tensor_parallel.parallelize(model(GPT2), group, **options)
        with torch.autocast("cpu", torch.bfloat16):
            loss = cut(*tokens())
        loss.backward()
        return loss.item(), cut.blocks[0].attention.k.weight.grad

    plain = model(GPT2)
    expected = plain(*tokens())
    expected.backward()
    reference = plain.blocks[0].attention.k.weight.grad.chunk(2)
    for rank, ways in enumerate(
        run(lambda group: [step(group, way) for way in WAYS.values()], world_size=2)
    ):
        for loss, grad in ways:
            assert loss == pytest.approx(expected.item(), rel=0.01)
            assert grad.dtype == torch.float32
            assert torch.cosine_similarity(grad.flatten(), reference[rank].flatten(), dim=0) > 0.99
