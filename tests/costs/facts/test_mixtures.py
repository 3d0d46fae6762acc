"""Mixtures of experts have the parameters of released checkpoints, in all and for each token."""

import pytest
from torch import nn

from shardlab.costs.facts import mixtures, models
from shardlab.model.attention import LatentAttention
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec

RELEASED = [one for one in mixtures.PUBLISHED.values() if one.parameters is not None]
RULES = Experts(num_experts=4, per_token=2, expert_size=8, num_shared=1, choose="sigmoid", balance="bias")
LATENT = LatentAttention(num_heads=2, query_rank=3, kv_rank=4, plain_size=5, rotary_size=2, value_size=7)
SMALL = TransformerSpec(
    vocab_size=11, context_length=16, hidden_size=6, num_layers=5, num_heads=2, style="llama",
    latent=LATENT, experts=RULES, num_dense=2, ffn_size=9,
)


def total(parts):
    return sum(parts.values())


@pytest.mark.parametrize("model", RELEASED, ids=lambda model: model.name)
def test_counts_equal_those_of_the_released_checkpoints(model):
    assert total(mixtures.parameters(model.spec)) == model.parameters


def test_the_two_counts_everybody_knows():
    assert total(mixtures.parameters(mixtures.published("Mixtral 8x7B").spec)) == 46_702_792_704
    assert total(mixtures.parameters(mixtures.published("DeepSeek-V3").spec)) == 671_026_419_200


# Whose authors leave the embedding out of the active parameters. gpt-oss: below its Table 1.
WITHOUT_EMBEDDING = ("DeepSeek-V2", "DeepSeek-V3", "gpt-oss-120b", "gpt-oss-20b")


@pytest.mark.parametrize("model", mixtures.PUBLISHED.values(), ids=lambda model: model.name)
def test_counts_are_those_in_print(model):
    """Kimi prints 1.04 trillion where its checkpoint has 1.026, Qwen 3.3 billion where 3.35 are counted."""
    active = mixtures.active_parameters(model.spec)
    if model.name in WITHOUT_EMBEDDING:
        del active["token embedding"]
    assert total(mixtures.parameters(model.spec)) == pytest.approx(model.printed[0], rel=0.014)
    assert total(active) == pytest.approx(model.printed[1], rel=0.017)


@pytest.mark.parametrize(("name", "mlp", "attention"), [("120b", 114.71, 0.96), ("20b", 19.12, 0.64)])
def test_every_part_of_gpt_oss_is_that_of_its_card(name, mlp, attention):
    """OpenAI 2025, Table 1: billions, biases and sinks included."""
    parts = mixtures.parameters(mixtures.published(f"gpt-oss-{name}").spec)
    assert (parts["routed experts"] + parts["routers"]) / 1e9 == pytest.approx(mlp, abs=0.005)
    assert parts["attention"] / 1e9 == pytest.approx(attention, abs=0.005)
    assert (parts["token embedding"] + parts["head"]) / 1e9 == pytest.approx(1.16, abs=0.005)


def test_a_layers_mixture_is_plain_data():
    experts = mixtures.published("DeepSeek-V3").spec.experts
    assert (experts.num_experts, experts.per_token, experts.expert_size) == (256, 8, 2048)
    assert experts.shared_size == 2048


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def dense(width, hidden):
    return [linear(width, hidden), linear(width, hidden), linear(hidden, width)]


def latent(h, a):
    return [
        linear(h, a.query_rank),
        nn.RMSNorm(a.query_rank),
        linear(a.query_rank, a.num_heads * (a.plain_size + a.rotary_size)),
        linear(h, a.kv_rank + a.rotary_size),
        nn.RMSNorm(a.kv_rank),
        linear(a.kv_rank, a.num_heads * (a.plain_size + a.value_size)),
        linear(a.num_heads * a.value_size, h),
    ]


def test_predicted_equals_counted_on_torch_modules():
    spec, h = SMALL, SMALL.hidden_size
    layers = []
    for index in range(spec.num_layers):
        layers += [nn.RMSNorm(h), nn.RMSNorm(h), *latent(h, LATENT)]
        if index < spec.num_dense:
            layers += dense(h, spec.ffn)
        else:
            layers += [nn.Linear(h, RULES.num_experts)]  # its bias stands for the numbers that balance the experts
            for _ in range(RULES.num_experts + RULES.num_shared):
                layers += dense(h, RULES.expert_size)
    model = nn.ModuleList([nn.Embedding(11, h), *layers, nn.RMSNorm(h), linear(h, 11)])
    assert total(mixtures.parameters(spec)) == sum(parameter.numel() for parameter in model.parameters())


def test_a_token_uses_its_experts_and_everything_else():
    whole, active = mixtures.parameters(SMALL), mixtures.active_parameters(SMALL)
    assert active.pop("routed experts") == whole.pop("routed experts") * 2 / 4
    assert active == whole


@pytest.mark.parametrize("model", mixtures.PUBLISHED.values(), ids=lambda model: model.name)
def test_parts_are_those_of_any_transformer_and_a_routers_bias(model):
    spec = model.spec
    biases = (spec.num_layers - spec.num_dense) * spec.experts.num_experts * (spec.experts.balance == "bias")
    assert total(mixtures.parameters(spec)) == models.num_parameters(spec) + biases


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match=r"no experts; count it with models\.parameters"):
        mixtures.parameters(SMALL.dense)
    with pytest.raises(ValueError, match=r"Mixtral 9.*Mixtral 8x7B"):
        mixtures.published("Mixtral 9")


@pytest.mark.parametrize(("name", "facts"), [("Llama 3 8B", models), ("Kimi K2", mixtures)])
def test_sizes_are_found_by_name_whether_dense_or_a_mixture(name, facts):
    assert mixtures.spec_of(name) is facts.published(name).spec
    with pytest.raises(ValueError, match=rf"sizes of .x{name}.; known: GPT-2 small, .*Kimi K2.*config\.json"):
        mixtures.spec_of(f"x{name}")
