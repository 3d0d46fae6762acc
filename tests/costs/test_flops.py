import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from shardlab.costs import flops, models
from shardlab.ranks import transformer
from shardlab.spec import TransformerSpec

GPT_MODELS = ["GPT-2 small", "GPT-2 XL", "GPT-3 175B"]
SIZES = {"vocab_size": 40, "context_length": 24, "hidden_size": 16, "num_layers": 3, "num_heads": 4}


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


@pytest.mark.parametrize(
    "changes", [{}, {"style": "llama"}, {"style": "llama", "num_kv_heads": 2, "ffn_size": 44, "tied_head": True}]
)
def test_predicted_equals_counted_on_the_reference_model(changes):
    spec = TransformerSpec(**{**SIZES, **changes})
    model, tokens = transformer.Transformer(spec), torch.zeros(2, 20, dtype=torch.long)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        loss = model(tokens, tokens)
        ahead = counter.get_total_flops()
        loss.backward()
    predicted = flops.training_step(spec, batch=2, sequence=20)
    assert ahead == sum(predicted["forward"].values())
    assert counter.get_total_flops() - ahead == sum(predicted["backward"].values())


def test_causal_attention_looks_at_half_the_pairs_and_the_diagonal():
    spec = TransformerSpec(**SIZES)
    full = flops.forward(spec, batch=1, sequence=20)
    causal = flops.forward(spec, batch=1, sequence=20, attention="causal")
    assert causal["scores"] / full["scores"] == 210 / 400
    assert {k: v for k, v in causal.items() if k != "scores"} == {k: v for k, v in full.items() if k != "scores"}


def test_bad_input_is_refused():
    spec = TransformerSpec(**SIZES)
    for changes, message in [
        ({"batch": 0}, "is empty"),
        ({"sequence": 25}, "use at most 24"),
        ({"attention": "sparse"}, "known: full, causal"),
    ]:
        with pytest.raises(ValueError, match=message):
            flops.forward(spec, **{"batch": 1, "sequence": 8, **changes})
