"""Sizes that are left out follow from the style, and sizes that make no model are refused."""

import pytest

from shardlab.model.attention import LatentAttention
from shardlab.model.spec import TransformerSpec


def spec(**changes):
    sizes = {"vocab_size": 64, "context_length": 32, "hidden_size": 24, "num_layers": 2, "num_heads": 4}
    return TransformerSpec(**{**sizes, **changes})


def test_what_is_not_said_follows_from_the_style():
    gpt, llama = spec(), spec(style="llama")
    assert (gpt.kv_heads, gpt.ffn, gpt.tied, gpt.head_size, gpt.kv_size) == (4, 96, True, 6, 24)
    assert not llama.tied
    assert spec(style="llama", tied_head=True).tied
    assert not spec(tied_head=False).tied


def test_grouped_heads_make_narrower_keys():
    grouped = spec(num_kv_heads=2, ffn_size=50)
    assert (grouped.kv_heads, grouped.kv_size, grouped.ffn) == (2, 12, 50)


def test_what_released_models_changed_is_said_field_by_field():
    gpt, llama = spec(), spec(style="llama")
    assert (gpt.positions, gpt.biases, gpt.num_norms) == ("learned", ("qkv", "out", "ffn"), 2)
    assert (llama.positions, llama.biases, llama.attention_size) == ("rotary", (), 24)
    wide = spec(num_heads=5, head_dim=16, num_kv_heads=1, post_norms=True)
    assert (wide.head_size, wide.attention_size, wide.kv_size, wide.num_norms) == (16, 80, 16, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, "5 heads do not divide hidden_size=24; use 4 heads"),
        ({"num_kv_heads": 3}, "3 key/value heads do not divide 4 heads; use 2 key/value heads"),
        ({"num_kv_heads": 8}, "8 key/value heads do not divide 4 heads; use 4 key/value heads"),
        ({"num_layers": 0}, "num_layers=0 must be a whole number of at least 1"),
        ({"hidden_size": -24}, "hidden_size=-24 must be a whole number of at least 1"),
        ({"vocab_size": 64.0}, "vocab_size=64.0 must be a whole number of at least 1"),
        ({"context_length": True}, "context_length=True must be a whole number of at least 1"),
        ({"num_kv_heads": 0}, "num_kv_heads=0 must be a whole number of at least 1"),
        ({"ffn_size": 0}, "ffn_size=0 must be a whole number of at least 1"),
        ({"position_style": "alibi"}, "unknown position_style 'alibi'; known: learned, rotary"),
        ({"bias_places": ("qkv", "head")}, "bias_places=.*use some of qkv, out, ffn"),
        ({"style": "bert"}, "unknown style 'bert'; known: gpt2, llama"),
        ({"style": "llama", "num_heads": 8}, "a head has 3 of them; make hidden_size / num_heads, or head_dim, even"),
    ],
)
def test_sizes_that_make_no_model_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        spec(**changes)


def test_latent_attention_rotates_a_part_of_each_head():
    sizes = {"num_heads": 2, "query_rank": 3, "kv_rank": 4, "plain_size": 5, "value_size": 8}
    odd = LatentAttention(**sizes, rotary_size=3)
    with pytest.raises(ValueError, match="a head has 3 of them; make rotary_size even"):
        spec(style="llama", num_heads=2, latent=odd)
    assert spec(style="llama", num_heads=2, latent=LatentAttention(**sizes, rotary_size=2)).positions == "rotary"


def test_tokens_are_counted_and_checked():
    assert spec().tokens(3, 32) == 96
    for batch, sequence, message in [(0, 8, "batch=0"), (2, 0, "sequence=0"), (1, 33, "use at most 32")]:
        with pytest.raises(ValueError, match=message):
            spec().tokens(batch, sequence)
