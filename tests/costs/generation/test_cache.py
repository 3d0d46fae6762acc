"""The cache holds keys and values of each token, or one narrow vector in their place."""

import pytest

from shardlab.costs.facts import mixtures, models
from shardlab.costs.generation import cache
from shardlab.costs.published.engines import TOKEN_CACHES
from shardlab.sharding.layout import Layout

LLAMA = models.published("Llama 3 8B").spec
DEEPSEEK = mixtures.published("DeepSeek-V3").spec


@pytest.mark.parametrize("row", TOKEN_CACHES, ids=lambda row: row.model)
def test_a_token_takes_the_bytes_that_were_published(row):
    known = mixtures if row.model in mixtures.PUBLISHED else models
    assert round(cache.token_bytes(known.published(row.model).spec), -3) == row.bytes


def test_ranks_share_heads_until_each_has_one_and_never_a_latent_vector():
    by_ranks = [cache.token_bytes(LLAMA, Layout(tp=tp)) for tp in (1, 2, 8, 32)]
    assert by_ranks == [2 * 32 * 2 * heads * 128 for heads in (8, 4, 1, 1)]
    assert cache.token_bytes(DEEPSEEK, Layout(tp=8), 1) == cache.token_bytes(DEEPSEEK, element=1) == 61 * 576


def test_stages_are_refused():
    with pytest.raises(ValueError, match="pp=2 or cp=1 is not counted"):
        cache.token_bytes(LLAMA, Layout(pp=2))
