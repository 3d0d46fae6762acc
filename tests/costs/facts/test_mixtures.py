"""Mixtures of experts have the parameters of released checkpoints, in all and for each token."""

import pytest
from torch import nn

from shardlab.costs.facts import mixtures
from shardlab.costs.facts.mixtures import GroupedAttention, LatentAttention, MixtureSpec

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


@pytest.mark.parametrize("model", mixtures.PUBLISHED.values(), ids=lambda model: model.name)
def test_counts_are_those_in_print(model):
    """DeepSeek's active parameters leave out the embedding's; Kimi prints 1.04 trillion, its checkpoint has 1.026."""
    active = mixtures.active_parameters(model.spec)
    if model.name == "DeepSeek-V3":
        del active["token embedding"]
    assert total(mixtures.parameters(model.spec)) == pytest.approx(model.printed[0], rel=0.014)
    assert total(active) == pytest.approx(model.printed[1], rel=0.011)


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


def test_bad_input_is_refused():
    sizes = {**vars(SMALL)}
    with pytest.raises(ValueError, match="use experts_per_token = 1 to 4"):
        MixtureSpec(**{**sizes, "experts_per_token": 5})
    with pytest.raises(ValueError, match="use 0 to 5"):
        MixtureSpec(**{**sizes, "num_dense_layers": 6})
    with pytest.raises(ValueError, match=r"Mixtral 9.*Mixtral 8x7B"):
        mixtures.published("Mixtral 9")
