"""A layer with states counts what its modules have, and its rule the products that a chunk takes."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from shardlab.model.experts import Experts
from shardlab.model.recurrent import CHUNK, RULES, Recurrent
from shardlab.model.spec import TransformerSpec

SMALL = Recurrent(
    rule="Gated DeltaNet", layers=(0, 1, 3), num_heads=4, key_heads=2, key_size=6, value_size=10, convolution=3
)
NEXT = replace(SMALL, num_heads=32, key_heads=16, key_size=128, value_size=128, convolution=4)  # Qwen3-Next's

MAMBA = replace(SMALL, rule="Mamba-2", chunk=8)


def linear(*sizes):
    return nn.Linear(*sizes, bias=False)


def delta_net(h):
    """Queries, keys, values and a gate; strengths and decays; the convolution; A and a bias; norm; output."""
    pieces = [linear(h, 2 * 12 + 2 * 40), linear(h, 2 * 4), nn.Conv1d(64, 64, 3, groups=64, bias=False)]
    return nn.ModuleList([*pieces, nn.RMSNorm(10), linear(40, h)]), 2 * 4


def kimi_delta(h):
    """Heads with keys of their own; decays and gates from narrow layers; a decay for each number of a key."""
    pieces = [linear(h, 2 * 24 + 40), linear(h, 4), linear(h, 6), linear(6, 24), linear(h, 6), linear(6, 40)]
    return nn.ModuleList([*pieces, nn.Conv1d(88, 88, 3, groups=88, bias=False), nn.RMSNorm(10), linear(40, h)]), 4 + 24


def mamba_2(h):
    """A gate, what is convolved, and a step for each head; its bias, A and D; one norm for all heads."""
    pieces = [linear(h, 40 + 64 + 4), nn.Conv1d(64, 64, 3, groups=64), nn.RMSNorm(40), linear(40, h)]
    return nn.ModuleList(pieces), 3 * 4


@pytest.mark.parametrize(
    ("recurrent", "modules"),
    [(SMALL, delta_net), (replace(SMALL, rule="Kimi Delta Attention", key_heads=4), kimi_delta), (MAMBA, mamba_2)],
    ids=RULES,
)
def test_the_parameters_are_those_of_the_modules(recurrent, modules):
    layer, beside = modules(16)
    assert recurrent.parameters(16) == sum(each.numel() for each in layer.parameters()) + beside
    matrices = [each.weight.numel() for each in layer if isinstance(each, nn.Linear)]
    assert recurrent.matrices(16) == sum(matrices)


def one_by_one(q, k, v, strength, decay):
    state, outputs = torch.zeros(k.shape[1], v.shape[1], dtype=v.dtype), []
    for t in range(len(q)):
        state = decay[t] * state
        state = state + strength[t] * torch.outer(k[t], v[t] - k[t] @ state)
        outputs.append(q[t] @ state)
    return torch.stack(outputs), state


def in_a_chunk(q, k, v, strength, decay, state):
    """Compute a chunk with `Recurrent.products`: what each token writes is solved for first."""
    fall = decay.cumprod(0)
    between = (fall[:, None] / fall[None, :]).tril()
    triangle = (strength[:, None] * between * (k @ k.T)).tril(-1)
    one = torch.eye(len(q), dtype=v.dtype)
    inverse = torch.linalg.solve_triangular(one + triangle, one, upper=False, unitriangular=True)
    known, from_state = inverse @ (strength[:, None] * v), inverse @ ((strength * fall)[:, None] * k)
    written = known - from_state @ state
    output = fall[:, None] * (q @ state) + (between * (q @ k.T)) @ written
    return output, fall[-1] * state + ((fall[-1] / fall)[:, None] * k).T @ written


def test_a_chunk_takes_the_products_that_are_counted():
    torch.manual_seed(0)
    k_size, v_size = SMALL.key_size, SMALL.value_size
    q, k = (torch.randn(2 * CHUNK, k_size, dtype=torch.float64) for _ in range(2))
    k = k / k.norm(dim=1, keepdim=True)
    v = torch.randn(2 * CHUNK, v_size, dtype=torch.float64)
    strength, decay = torch.rand(2 * CHUNK, dtype=torch.float64), 1 - torch.rand(2 * CHUNK, dtype=torch.float64) / 8
    whole, last = one_by_one(q, k, v, strength, decay)
    state, outputs = torch.zeros(k_size, v_size, dtype=torch.float64), []
    with FlopCounterMode(display=False) as counter:
        for part in (slice(CHUNK), slice(CHUNK, None)):
            output, state = in_a_chunk(q[part], k[part], v[part], strength[part], decay[part], state)
            outputs.append(output)
    assert torch.allclose(torch.cat(outputs), whole)
    assert torch.allclose(state, last)
    counted = counter.get_total_flops()
    assert counted == 2 * sum(2 * m * k * n for m, k, n in SMALL.products())
    triangles = 2 * (CHUNK**3 // 3)
    convolution = 2 * 3 * (2 * 12 + 40)
    assert SMALL.flops == SMALL.num_heads * (counted + triangles) // (2 * CHUNK) + convolution


def test_a_chunk_of_mamba_2_takes_the_products_that_are_counted():
    """Two heads share keys B and queries C, whose product is computed once for both."""
    torch.manual_seed(0)
    c, b = (torch.randn(16, MAMBA.key_size, dtype=torch.float64) for _ in range(2))
    values = torch.randn(2, 16, MAMBA.value_size, dtype=torch.float64)
    decay = 1 - torch.rand(2, 16, dtype=torch.float64) / 8
    expected = torch.zeros_like(values)
    for head in range(2):
        state = torch.zeros(MAMBA.key_size, MAMBA.value_size, dtype=torch.float64)
        for t in range(16):
            state = decay[head, t] * state + b[t][:, None] * values[head, t]
            expected[head, t] = (c[t][:, None] * state).sum(0)
    outputs, states = torch.zeros_like(values), torch.zeros(2, MAMBA.key_size, MAMBA.value_size, dtype=torch.float64)
    with FlopCounterMode(display=False) as counter:
        for part in (slice(8), slice(8, None)):
            scores = c[part] @ b[part].T
            for head in range(2):
                fall = decay[head, part].cumprod(0)
                between = (fall[:, None] / fall[None, :]).tril()
                x, state = values[head, part], states[head].clone()
                outputs[head, part] = (between * scores) @ x + fall[:, None] * (c[part] @ state)
                states[head] = fall[-1] * state + b[part].T @ ((fall[-1] / fall)[:, None] * x)
    assert torch.allclose(outputs, expected)
    convolution = 2 * 3 * 64
    assert counter.get_total_flops() * MAMBA.key_heads == 16 * (MAMBA.flops - convolution)
    assert MAMBA.flops == 4 * (4 * 6 * 10 + 2 * 8 * 10) + 2 * 2 * 8 * 6 + convolution


def test_the_formula_of_the_docstring_is_the_sum_of_the_products():
    k, v, chunk = 128, 128, CHUNK
    head = 6 * k * v + chunk * (6 * k + 4 * v) + chunk**2 / 3
    assert NEXT.flops == pytest.approx(32 * head + 2 * 4 * 8192, abs=32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "Mamba"}, "unknown rule='Mamba'; known: Gated DeltaNet, Kimi"),
        ({"key_heads": 3}, "key_heads=3 do not divide num_heads=4"),
        ({"layers": ()}, r"layers=\(\) must be at least one place"),
        ({"layers": (1, 0)}, "in rising order"),
        ({"layers": (1, 1)}, "in rising order"),
        ({"layers": (-1, 0)}, "layers"),
    ],
)
def test_bad_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **changes)


def test_a_hybrid_has_two_kinds_of_layer():
    sizes = {"vocab_size": 9, "context_length": 8, "hidden_size": 16, "num_heads": 4, "style": "llama"}
    spec = TransformerSpec(num_layers=4, recurrent=SMALL, **sizes)
    (attention, plain), (states, recurrent) = spec.layer_kinds
    assert (attention, states) == (1 / 4, 3 / 4)
    assert plain == replace(spec, recurrent=None)
    assert recurrent.states_only.layers == (0, 1, 2, 3)
    assert plain.layer_kinds == recurrent.layer_kinds == ()
    assert spec.states_only is plain.states_only is None
    with pytest.raises(ValueError, match="layer 3 of Gated DeltaNet is not among num_layers=3; count from 0"):
        replace(spec, num_layers=3)


def test_layers_of_one_half_are_of_three_kinds():
    """M M - M *: a layer is states, attention or a block, and each has one norm."""
    sizes = {"vocab_size": 9, "context_length": 8, "hidden_size": 16, "num_heads": 4, "style": "llama"}
    spec = TransformerSpec(num_layers=5, recurrent=SMALL, blocks_at=(2,), gated=False, **sizes)
    (one, attention), (three, states), (last, blocks) = spec.layer_kinds
    assert (one, three, last) == (1 / 5, 3 / 5, 1 / 5)
    assert [kind.num_attention for kind in (spec, attention, states, blocks)] == [1, 5, 0, 0]
    assert [kind.num_blocks for kind in (spec, attention, states, blocks)] == [1, 0, 0, 5]
    assert [kind.num_norms for kind in (spec, attention, states, blocks)] == [1, 1, 1, 1]
    assert [kind.blocks_only for kind in (spec, attention, states, blocks)] == [False, False, False, True]
    assert states.states_only
    assert not spec.has_gate
    for places in ((1,), (5,), (4, 2), [2]):
        with pytest.raises(ValueError, match=r"blocks_at=.* must be a tuple of layers without states, of num_l.*=5"):
            replace(spec, blocks_at=places)
    mixture = {"experts": Experts(num_experts=2, per_token=1, expert_size=4)}
    for wrong in ({"post_norms": True}, {**mixture, "num_dense": 1, "ffn_size": 8}):
        with pytest.raises(ValueError, match=r"blocks_at=\(2,\) are layers with one norm each, .* post_norms and"):
            replace(spec, **wrong)
    with pytest.raises(ValueError, match=r"blocks_at=\(\) leaves no layer for experts"):
        replace(spec, blocks_at=(), **mixture)
    kinds = [kind.experts for _, kind in replace(spec, **mixture).layer_kinds]
    assert kinds == [None, None, mixture["experts"]]
