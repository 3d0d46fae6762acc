"""The model against independent implementations: torch's encoder layer, complex rotation, attention by hand."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shardlab.model.details import Details, RotaryScaling
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer
from tests.ranks.tolerance import EXACT

SIZES = {"vocab_size": 17, "context_length": 12, "hidden_size": 24, "num_layers": 2, "num_heads": 6}
GPT2 = TransformerSpec(**SIZES)
LLAMA = TransformerSpec(**SIZES, num_kv_heads=2, ffn_size=40, style="llama")


def model(spec):
    """Make a float64 model in which every parameter is random: ones and zeros would hide mistakes."""
    torch.manual_seed(0)
    net = transformer.Transformer(spec).double()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.3)
    return net


def tokens(batch=3, length=9):
    return torch.randint(0, 17, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("published", "sizes"),
    [
        (124_439_808, (50257, 1024, 768, 12, 12)),  # GPT-2 small: https://huggingface.co/openai-community/gpt2
        (8_030_261_248, (128256, 8192, 4096, 32, 32, 8, 14336, "llama")),  # meta-llama/Meta-Llama-3-8B
    ],
)
def test_parameter_counts_are_the_published_ones(published, sizes):
    names = ["vocab_size", "context_length", "hidden_size", "num_layers", "num_heads"]
    names += ["num_kv_heads", "ffn_size", "style"]
    with torch.device("meta"):
        net = transformer.Transformer(TransformerSpec(**dict(zip(names, sizes, strict=False))))
    assert sum(parameter.numel() for parameter in net.parameters()) == published


def torch_layer(block):
    """Make torch's own layer with our block's weights."""
    layer = nn.TransformerEncoderLayer(
        24, 6, 96, dropout=0.0, activation=nn.GELU(approximate="tanh"), batch_first=True, norm_first=True
    ).double()
    attention, parts = block.attention, (block.attention.q, block.attention.k, block.attention.v)
    pairs = [(layer.norm1, block.attention_norm), (layer.norm2, block.mlp_norm)]
    pairs += [(layer.linear1, block.mlp.up), (layer.linear2, block.mlp.down)]
    pairs += [(layer.self_attn.out_proj, attention.out)]
    with torch.no_grad():
        layer.self_attn.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        layer.self_attn.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    return layer.train()  # in eval mode torch may take a fused path


@pytest.mark.parity("compute", "the reference model in GPT-2's style is torch's own encoder layers")
def test_gpt2_equals_torchs_encoder_layers():
    net, x = model(GPT2), tokens()
    mask = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
    h = net.embedding.tokens.weight[x] + net.embedding.positions.weight[:9]
    for block in net.blocks:
        h = torch_layer(block)(h, src_mask=mask, is_causal=True)
    h = F.layer_norm(h, (24,), net.norm.weight, net.norm.bias, eps=1e-5)
    torch.testing.assert_close(net(x), h @ net.embedding.tokens.weight.T, **EXACT)


def rms_norm(x, weight):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turn(x):
    """Rotate with complex numbers: multiply pair j at position m by e^(i m base^(-2j/N))."""
    length, width = x.shape[-2:]
    angle = torch.arange(length)[:, None] * 500_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def attend(q, k, v):
    """Compute attention of one head and one sample by its definition: [S, e] each."""
    scores = turn(q) @ turn(k).T / math.sqrt(q.shape[-1])
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ v


def llama_block(x, block):
    """Compute attention of one sample, head by head: [S, h]."""
    h, a = rms_norm(x, block.attention_norm.weight), block.attention
    q, k, v = (h @ part.weight.T for part in (a.q, a.k, a.v))
    heads = []
    for head in range(6):
        mine, shared = slice(4 * head, 4 * head + 4), slice(4 * (head // 3), 4 * (head // 3) + 4)
        heads.append(attend(q[:, mine], k[:, shared], v[:, shared]))
    x = x + torch.cat(heads, dim=-1) @ a.out.weight.T
    h = rms_norm(x, block.mlp_norm.weight)
    gate = h @ block.mlp.gate.weight.T
    return x + (gate * torch.sigmoid(gate) * (h @ block.mlp.up.weight.T)) @ block.mlp.down.weight.T


@pytest.mark.parity("compute", "the reference model in Llama's style is attention by its definition")
def test_llama_equals_attention_by_hand():
    net, x = model(LLAMA), tokens()
    rows = []
    for sample in x:
        h = net.embedding.tokens.weight[sample]
        for block in net.blocks:
            h = llama_block(h, block)
        rows.append(rms_norm(h, net.norm.weight) @ net.head.weight.T)
    torch.testing.assert_close(net(x), torch.stack(rows), **EXACT)


def test_rotation_depends_on_distance_alone():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    products = [
        transformer.rotate(q, torch.tensor([m])) @ transformer.rotate(k, torch.tensor([m - 3])).T for m in (3, 7, 100)
    ]
    torch.testing.assert_close(products[0], products[1], **EXACT)
    torch.testing.assert_close(products[0], products[2], **EXACT)
    assert not torch.allclose(products[0], q @ k.T)


def test_rotation_keeps_the_dtype_but_not_its_error():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    turned = transformer.rotate(x.bfloat16(), torch.arange(5000, 5064))
    assert turned.dtype == torch.bfloat16
    torch.testing.assert_close(turned.float(), transformer.rotate(x, torch.arange(5000, 5064)), rtol=0, atol=0.05)


@pytest.mark.parametrize("spec", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_a_later_token_does_not_change_earlier_logits(spec):
    net, x = model(spec), tokens()
    changed = x.clone()
    changed[:, 5] = (x[:, 5] + 1) % 17
    before, after = net(x), net(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert (before[:, 5:] != after[:, 5:]).any(dim=(0, 2)).all()


@pytest.mark.parametrize("spec", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_loss_is_the_mean_surprise_and_reaches_every_parameter(spec):
    net, x, targets = model(spec), tokens(), tokens().roll(1, 1)
    loss = net(x, targets)
    surprise = -net(x).softmax(-1).gather(-1, targets[..., None]).log()
    torch.testing.assert_close(loss, surprise.mean(), **EXACT)
    loss.backward()
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("spec", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_attention_can_be_cut_by_heads_from_outside(spec):
    whole = model(spec).blocks[0].attention
    x = torch.randn(2, 5, 24, dtype=torch.float64)
    total = torch.zeros_like(x)
    for rank in range(2):
        part = transformer.Attention(spec).double()
        for name in ("q", "k", "v"):
            linear = getattr(whole, name)
            getattr(part, name).weight = nn.Parameter(linear.weight.chunk(2)[rank])
            if linear.bias is not None:
                getattr(part, name).bias = nn.Parameter(linear.bias.chunk(2)[rank])
        part.out = nn.Linear(12, 24, bias=False).double()
        part.out.weight = nn.Parameter(whole.out.weight.chunk(2, dim=1)[rank])
        total += part(x)
    if whole.out.bias is not None:
        total += whole.out.bias
    torch.testing.assert_close(total, whole(x), **EXACT)


@pytest.mark.parametrize("style", ["gpt2", "llama"])
def test_starts_as_published(style):
    torch.manual_seed(0)
    spec = TransformerSpec(
        vocab_size=256, context_length=128, hidden_size=256, num_layers=8, num_heads=4, style=style, tied_head=True
    )
    net = transformer.Transformer(spec)
    assert net.head.weight is net.embedding.tokens.weight
    deviation = {name: p.std().item() for name, p in net.named_parameters() if p.dim() > 1}
    for name, value in deviation.items():
        smaller = name.endswith(("attention.out.weight", "mlp.down.weight"))
        expected = 0.01 if "positions" in name else 0.02 / math.sqrt(16) if smaller else 0.02
        assert value == pytest.approx(expected, rel=0.03), name
    assert not any(p.any() for name, p in net.named_parameters() if name.endswith("bias"))
    x = torch.randint(0, 256, (2, 64))
    assert net(x, x.roll(1, 1)).item() == pytest.approx(math.log(256), abs=0.1)


def test_a_model_on_meta_can_be_filled_later():
    torch.manual_seed(0)
    here = transformer.Transformer(LLAMA)
    with torch.device("meta"):
        later = transformer.Transformer(LLAMA)
    later.to_empty(device="cpu")
    torch.manual_seed(0)
    later.initialize()
    torch.manual_seed(0)
    here.initialize()
    for (name, ours), theirs in zip(here.named_parameters(), later.parameters(), strict=True):
        assert torch.equal(ours, theirs), name


def test_too_many_tokens_name_the_way_out():
    with pytest.raises(ValueError, match="13 tokens do not fit context_length=12; pass at most 12"):
        model(GPT2)(tokens(length=13))


DOCUMENTS = (4, 5)  # lengths of two documents that lie in one sequence


def within_documents(q, k, v):
    """Compute attention by hand: a token attends to those before it in its own document."""
    number = torch.repeat_interleave(torch.arange(len(DOCUMENTS)), torch.tensor(DOCUMENTS))
    seen = (number[:, None] == number).tril()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("rows", [1, 3], ids=["alike for all", "for each sequence"])
@pytest.mark.parametrize("spec", [GPT2, LLAMA], ids=["gpt2", "llama"])
def test_attention_and_positions_can_be_replaced(spec, rows):
    """Two documents in a sequence, each with positions from 0, give the results of two sequences."""
    net, x = model(spec), tokens()
    alone = torch.cat([net(document) for document in x.split(DOCUMENTS, dim=1)], dim=1)
    positions = torch.cat([torch.arange(length) for length in DOCUMENTS])
    expanded = positions if rows == 1 else positions.expand(rows, -1)
    transformer.replace(net, attend=within_documents, locate=lambda _: expanded)
    torch.testing.assert_close(net(x), alone, **EXACT)
    transformer.replace(net, locate=transformer.count_positions)
    assert (net(x) - alone).abs().max() > 1e-3 or spec.style == "llama"  # rotary positions are relative
    transformer.replace(net, attend=transformer.causal_attention)
    assert (net(x) - alone).abs().max() > 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"position_style": "rotary"},
        {"whole_norms": True},
        {"post_norms": True},
    ],
)
def test_a_spec_that_only_costs_knows_is_refused(changes):
    (name,) = changes
    with pytest.raises(ValueError, match=f"does not build {name}=.*count and plan this spec"):
        transformer.Transformer(TransformerSpec(**SIZES, **changes))


def test_every_field_after_the_experts_is_built_or_refused():
    names = [each.name for each in dataclasses.fields(TransformerSpec)]
    built = {"head_dim", "bias_places", "head_norms", "details"}
    assert {*transformer.COUNTED_ONLY} == {*names[names.index("experts") + 1 :]} - built


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"style": "llama", "details": Details(exact_gelu=True)}, "exact_gelu=True has no meaning"),
        ({"experts": Experts(num_experts=2, per_token=1, expert_size=8), "bias_places": ("ffn",)}, "leave 'ffn' out"),
        ({"style": "llama", "details": Details(turned=0.25)}, "turned=0.25 of a head of 4 are 1 numbers"),
    ],
)
def test_details_that_the_model_cannot_have_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        transformer.Transformer(TransformerSpec(**SIZES, **changes))


def test_a_sequence_longer_than_the_window_is_refused():
    net = model(dataclasses.replace(LLAMA, details=Details(window=8)))
    assert net(tokens(length=8)).shape == (3, 8, 17)
    with pytest.raises(ValueError, match=r"9 tokens are more than window=8.*pass at most 8"):
        net(tokens(length=9))


def test_the_gelu_may_be_exact():
    block = transformer.MLP(dataclasses.replace(GPT2, details=Details(exact_gelu=True))).double()
    x = torch.randn(5, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    h = x @ block.up.weight.T + block.up.bias
    inner = h * (1 + torch.erf(h / math.sqrt(2))) / 2
    torch.testing.assert_close(block(x), inner @ block.down.weight.T + block.down.bias, **EXACT)


def own_turn(x, details):
    """Rotate [S, e] number by number, as a table of sines and cosines says."""
    width, y = round(x.shape[-1] * details.turned), x.clone()
    for i in range(width // 2):
        turns = details.rotary_base ** (-2 * i / width)
        if details.scaling:
            low, high = details.scaling.low, details.scaling.high
            length, context = 2 * math.pi / turns, details.scaling.original
            if length > context / low:
                turns /= details.scaling.factor
            elif length >= context / high:
                part = (context / length - low) / (high - low)
                turns = (1 - part) * turns / details.scaling.factor + part * turns
        a, b = (i, i + width // 2) if details.pairs == "halves" else (2 * i, 2 * i + 1)
        for position in range(len(x)):
            cos, sin = math.cos(position * turns), math.sin(position * turns)
            y[position, a] = x[position, a] * cos - x[position, b] * sin
            y[position, b] = x[position, a] * sin + x[position, b] * cos
    return y


@pytest.mark.parametrize(
    "details",
    [
        Details(),
        Details(pairs="halves", rotary_base=10_000.0),
        Details(turned=0.5),
        Details(pairs="halves", turned=0.5),
        Details(rotary_base=50.0, scaling=RotaryScaling(factor=8.0, low=1.0, high=4.0, original=40)),
    ],
    ids=["plain", "halves", "share", "share of halves", "scaling"],
)
def test_positions_turn_as_the_details_say(details):
    x = torch.randn(9, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    turned = transformer.rotate(x, torch.arange(9), details)
    torch.testing.assert_close(turned, own_turn(x, details), **EXACT)


def test_heads_may_have_their_own_width_norms_and_biases():
    changes = {"head_dim": 6, "head_norms": True, "bias_places": ("qkv", "out", "ffn")}
    details = Details(epsilon=0.1, pairs="halves", rotary_base=100.0)
    net = model(dataclasses.replace(LLAMA, **changes, details=details))
    a, x = net.blocks[0].attention, torch.randn(9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def normed(x, scale):
        return x / (x.pow(2).mean(-1, keepdim=True) + 0.1).sqrt() * scale.weight

    q, k, v = (x @ part.weight.T + part.bias for part in (a.q, a.k, a.v))
    heads = []
    for head in range(6):
        mine, shared = slice(6 * head, 6 * head + 6), slice(6 * (head // 3), 6 * (head // 3) + 6)
        turned = [own_turn(normed(*each), details) for each in ((q[:, mine], a.q_scale), (k[:, shared], a.k_scale))]
        scores = turned[0] @ turned[1].T / math.sqrt(6)
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ v[:, shared])
    torch.testing.assert_close(a(x[None])[0], torch.cat(heads, -1) @ a.out.weight.T + a.out.bias, **EXACT)
    gate, up = (x @ part.weight.T + part.bias for part in (net.blocks[0].mlp.gate, net.blocks[0].mlp.up))
    down = net.blocks[0].mlp.down
    expected = (gate * torch.sigmoid(gate) * up) @ down.weight.T + down.bias
    torch.testing.assert_close(net.blocks[0].mlp(x), expected, **EXACT)
