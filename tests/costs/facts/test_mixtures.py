"""Mixtures of experts have the parameters of released checkpoints, in all and for each token."""

import pytest
from torch import nn

from shardlab.attention import GroupedAttention, LatentAttention
from shardlab.costs.facts import mixtures
from shardlab.costs.facts.mixtures import MixtureSpec

RELEASED = [one for one in mixtures.PUBLISHED.values() if one.parameters is not None]
SMALL = MixtureSpec(
    vocab_size=11,
    hidden_size=6,
    num_layers=5,
    attention=LatentAttention(num_heads=2, query_rank=3, kv_rank=4, plain_size=5, rotary_size=2, value_size=7),
    num_experts=4,
    experts_per_token=2,
    expert_size=8,
    num_shared_experts=1,
    num_dense_layers=2,
    dense_size=9,
    router_bias=True,
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
    """OpenAI 2025, Table 1: billions; its biases, which we leave out, are 0.04 of them."""
    parts = mixtures.parameters(mixtures.published(f"gpt-oss-{name}").spec)
    assert (parts["routed experts"] + parts["routers"]) / 1e9 == pytest.approx(mlp, abs=0.045)
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
        layers += [nn.RMSNorm(h), nn.RMSNorm(h), *latent(h, spec.attention)]
        if index < spec.num_dense_layers:
            layers += dense(h, spec.dense_size)
        else:
            layers += [nn.Linear(h, spec.num_experts)]  # its bias stands for the numbers that balance the experts
            for _ in range(spec.num_experts + spec.num_shared_experts):
                layers += dense(h, spec.expert_size)
    model = nn.ModuleList([nn.Embedding(11, h), *layers, nn.RMSNorm(h), linear(h, 11)])
    assert total(mixtures.parameters(spec)) == sum(parameter.numel() for parameter in model.parameters())


def test_a_token_uses_its_experts_and_everything_else():
    whole, active = mixtures.parameters(SMALL), mixtures.active_parameters(SMALL)
    assert active.pop("routed experts") == whole.pop("routed experts") * 2 / 4
    assert active == whole


def test_grouped_attention_is_that_of_the_dense_model():
    """Llama 3 8B has Mixtral's attention: 4096 wide, 32 heads, 8 for keys and values."""
    grouped = GroupedAttention(num_heads=32, num_kv_heads=8, head_size=128)
    assert grouped.parameters(4096) == 2 * 4096 * 4096 + 2 * 4096 * 1024


def test_a_query_multiplies_a_key_and_a_value():
    """Attention in all heads, as in FLOPs of the dense model; latent keys are longer than values."""
    grouped = GroupedAttention(num_heads=32, num_kv_heads=8, head_size=128)
    assert grouped.pair_size == 2 * 4096
    assert SMALL.attention.pair_size == 2 * (5 + 2 + 7)


def test_bad_input_is_refused():
    sizes = {**vars(SMALL)}
    with pytest.raises(ValueError, match="use experts_per_token = 1 to 4"):
        MixtureSpec(**{**sizes, "experts_per_token": 5})
    with pytest.raises(ValueError, match="use 0 to 5"):
        MixtureSpec(**{**sizes, "num_dense_layers": 6})
    with pytest.raises(ValueError, match=r"Mixtral 9.*Mixtral 8x7B"):
        mixtures.published("Mixtral 9")
