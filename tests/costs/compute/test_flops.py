"""FLOPs follow the formulas of Megatron-LM and PaLM, and equal those that torch counts."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from shardlab.costs.compute import flops
from shardlab.costs.facts import models
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer

GPT_MODELS = ["GPT-2 small", "GPT-2 XL", "GPT-3 175B"]
SIZES = {"vocab_size": 40, "context_length": 24, "hidden_size": 16, "num_layers": 3, "num_heads": 4}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tiny tensors: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def total(spec, **sizes):
    parts = flops.training_step(spec, **sizes)
    return sum(sum(part.values()) for part in parts.values())


@pytest.mark.parametrize("name", GPT_MODELS)
def test_gpt_follows_the_formula_of_megatron(name):
    """Korthikanti et al. 2022, section 5.1: 72 B L s h^2 (1 + s/6h + v/12hL); https://arxiv.org/abs/2205.05198"""
    spec = models.published(name).spec
    h, layers, v, s, batch = spec.hidden_size, spec.num_layers, spec.vocab_size, spec.context_length, 4
    published = 72 * batch * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert total(spec, batch=batch, sequence=s) == pytest.approx(published, rel=1e-12)


@pytest.mark.parametrize("name", ["Llama 2 7B", "Llama 3 8B", "Llama 3 70B"])
def test_llama_follows_the_formula_of_palm(name):
    """Chowdhery et al. 2022, appendix B: 6N + 12 L H Q T for each token, N without what only looks up or scales."""
    spec = models.published(name).spec
    counts, s = models.parameters(spec), 4096
    multiplying = counts["attention"] + counts["feed-forward"] + counts["head"]
    published = 6 * multiplying + 12 * spec.num_layers * spec.num_heads * spec.head_size * s
    assert total(spec, batch=2, sequence=s) == 2 * s * published


def test_the_rule_of_thumb_gives_gpt_3s_training_compute():
    """Brown et al. 2020, Table D.1: 174,600 million parameters and 300 billion tokens take 3.14e23 FLOPs."""
    assert flops.six_n_d(174_600e6, 300e9) == pytest.approx(3.14e23, rel=0.002)
    spec = models.published("GPT-3 175B").spec
    exact = total(spec, batch=1, sequence=2048) / 2048 * 300e9
    assert exact == pytest.approx(3.14e23, rel=0.05)
    assert exact > flops.six_n_d(models.num_parameters(spec), 300e9)


@pytest.mark.parametrize("name", [name for name in models.PUBLISHED if name.startswith("Megatron")])
def test_full_recomputation_follows_the_formula_of_megatron(name):
    """Narayanan et al. 2021, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh); https://arxiv.org/abs/2104.04473"""
    spec = models.published(name).spec
    h, layers, v, s, batch = spec.hidden_size, spec.num_layers, spec.vocab_size, 2048, 3
    published = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert flops.hardware_flops(spec, batch=batch, sequence=s) == pytest.approx(published, rel=1e-12)


def test_selective_recomputation_is_a_third_of_what_is_printed():
    """Korthikanti et al. 2022, equation 8: 72 B L s h^2 (1 + s/3h + v/12hL), three times what the method adds."""
    spec, sizes = models.published("Megatron 175B").spec, {"batch": 2, "sequence": 2048}
    h, layers, v, s = spec.hidden_size, spec.num_layers, spec.vocab_size, 2048
    printed = 72 * 2 * layers * s * h**2 * (1 + s / (3 * h) + v / (12 * h * layers))
    assert flops.korthikanti_hardware_flops(spec, **sizes) == pytest.approx(printed, rel=1e-12)
    model = flops.model_flops(spec, **sizes)
    added = flops.hardware_flops(spec, **sizes, recomputation="selective") - model
    assert 3 * added == pytest.approx(printed - model, rel=1e-9)
    assert added == layers * 4 * 2 * s**2 * h  # section 5: two products of 2 B s^2 h each, once more


def test_parts_sum_to_the_whole():
    spec, sizes = models.published("Llama 3 8B").spec, {"batch": 1, "sequence": 100}
    assert flops.hardware_flops(spec, **sizes, recomputation="none") == flops.model_flops(spec, **sizes)
    step = flops.training_step(spec, **sizes, recomputation="full")
    again = {part: count for part, count in step["forward"].items() if part != "head"}
    assert step["recomputed"] == again
    assert total(spec, **sizes, recomputation="full") == flops.hardware_flops(spec, **sizes)


SHAPES = [
    {},
    {"style": "llama"},
    {"style": "llama", "num_kv_heads": 2, "ffn_size": 44, "tied_head": True},
    {"num_kv_heads": 1, "num_layers": 1, "ffn_size": 24},
    {"hidden_size": 32, "num_heads": 2, "num_layers": 2, "vocab_size": 17, "style": "llama"},
]


def counted(spec, again=None):
    """FLOPs of forward and of backward that torch counts; again: what a block becomes to compute its forward twice."""
    model, tokens = transformer.Transformer(spec), torch.zeros(2, 20, dtype=torch.long)
    if again:
        for block in model.blocks:
            block.forward = again(block.forward)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = model(tokens, tokens)
        ahead = counter.get_total_flops()
        loss.backward()
    return ahead, counter.get_total_flops() - ahead


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.counted("compute", "FLOPs of a forward and of a backward pass, by torch's counter")
def test_predicted_equals_counted_on_the_reference_model(changes):
    """torch's counter counts all pairs of tokens, as "full" does: its unfused attention computes them all."""
    spec = TransformerSpec(**{**SIZES, **changes})
    predicted = flops.training_step(spec, batch=2, sequence=20)
    assert counted(spec) == (sum(predicted["forward"].values()), sum(predicted["backward"].values()))


@pytest.mark.parametrize("changes", SHAPES)
@pytest.mark.counted("compute", "FLOPs of a backward pass that recomputes")
def test_recomputation_predicted_equals_counted(changes):
    """torch stops a recomputation at the last product: nobody needs its result, so that is less by its FLOPs."""
    spec = TransformerSpec(**{**SIZES, **changes})
    predicted = flops.training_step(spec, batch=2, sequence=20, recomputation="full")
    again = sum(predicted["backward"].values()) + sum(predicted["recomputed"].values())
    with checkpoint.set_checkpoint_early_stop(False):
        assert counted(spec, checkpointed)[1] == again
    assert counted(spec, checkpointed)[1] == again - spec.num_layers * 2 * 2 * 20 * spec.ffn * spec.hidden_size


def checkpointed(forward):
    return lambda x: checkpoint.checkpoint(forward, x, use_reentrant=False)


def test_what_torch_counts_for_fused_attention():
    """On a CPU nothing. On a GPU all pairs, and in backward a fifth product: queries by keys, computed again."""
    spec = TransformerSpec(**SIZES)
    scores = flops.forward(spec, batch=2, sequence=20)["scores"] // spec.num_layers
    q = k = v = (2, spec.num_heads, 20, spec.head_size)
    assert sdpa_flop_count(q, k, v) == scores
    assert sdpa_backward_flop_count(q, q, k, v) == 2 * scores + scores // 2
    heads = torch.zeros(q)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    assert counter.get_total_flops() == 0


@pytest.mark.parametrize(("name", "sequence"), [("GPT-3 175B", 2048), ("Llama 3 8B", 8192), ("Llama 3.2 1B", 64)])
def test_the_rule_of_thumb_misses_what_it_leaves_out(name, sequence):
    """By hand: 6 N against 6 (N without what only adds, scales or looks up) + 12 L h s, for each token."""
    spec = models.published(name).spec
    layers, h, f, kv = spec.num_layers, spec.hidden_size, spec.ffn, spec.kv_size
    products = layers * (2 * h * h + 2 * h * kv + (2 if spec.style == "gpt2" else 3) * h * f) + spec.vocab_size * h
    expected = models.num_parameters(spec) / (products + 2 * layers * h * sequence) - 1
    assert flops.six_n_d_error(spec, sequence=sequence) == pytest.approx(expected, rel=1e-9)


def test_the_rule_of_thumb_fails_for_long_sequences_only():
    spec = models.published("Llama 3.2 3B").spec
    short, long = (flops.six_n_d_error(spec, sequence=length) for length in (2048, 131_072))
    assert -0.11 < short < 0
    assert -0.88 < long < -0.87


def test_palms_formula_gives_palms_number():
    """Chowdhery et al. 2022, Table 1: 540.35 billion parameters, 118 layers, 48 heads of 256, 2048 tokens."""
    per_token = flops.palm_per_token(540.35e9, num_layers=118, attention_size=48 * 256, sequence=2048)
    assert per_token == pytest.approx(3.28e12, rel=0.001)
    assert flops.palm_per_token(540.35e9) == 6 * 540.35e9


def test_causal_attention_looks_at_half_the_pairs_and_the_diagonal():
    spec = TransformerSpec(**SIZES)
    full = flops.forward(spec, batch=1, sequence=20)
    causal = flops.forward(spec, batch=1, sequence=20, pairs="causal")
    assert causal["scores"] / full["scores"] == 210 / 400
    assert {k: v for k, v in causal.items() if k != "scores"} == {k: v for k, v in full.items() if k != "scores"}


def test_bad_input_is_refused():
    spec = TransformerSpec(**SIZES)
    for changes, message in [
        ({"batch": 0}, "batch=0 must be a whole number of at least 1"),
        ({"sequence": 25}, "use at most 24"),
        ({"pairs": "sparse"}, "known: full, causal"),
    ]:
        with pytest.raises(ValueError, match=message):
            flops.forward(spec, **{"batch": 1, "sequence": 8, **changes})
    with pytest.raises(ValueError, match="known: none, selective, full"):
        flops.recomputed(spec, batch=1, sequence=8, recomputation="some")
