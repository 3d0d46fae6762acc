"""What ranks read at their start: the whole model once, or as often as replicas hold it."""

import pytest

from shardlab.costs.facts import mixtures, models
from shardlab.costs.memory import loading
from shardlab.sharding.layout import Layout

MODEL = models.published("Llama 3 70B").spec
# total_size in https://huggingface.co/meta-llama/Meta-Llama-3-70B/blob/main/model.safetensors.index.json
WHOLE = 141_107_412_992
SHARED = 2 * 80 * 2 * 8 * 128 * 8192  # bytes of all keys' and values' matrices
NORMS = 2 * (2 * 80 + 1) * 8192


@pytest.mark.parametrize(
    ("layout", "total"),
    [
        (Layout(), WHOLE),
        (Layout(pp=8), WHOLE),
        (Layout(tp=8), WHOLE + 7 * NORMS),
        (Layout(tp=16), WHOLE + 15 * NORMS + SHARED),  # two ranks hold each key/value head
        (Layout(dp=8), 8 * WHOLE),
        (Layout(dp=8, zero=1), WHOLE),
        (Layout(dp=4, tp=8, pp=2, zero=1), WHOLE + 7 * NORMS),
    ],
    ids=str,
)
def test_all_ranks_together_read_the_published_bytes(layout, total):
    ranks = loading.reading(MODEL, layout)
    assert len(ranks) == layout.ranks
    assert sum(each.total for each in ranks) == total


GPT2 = models.published("GPT-2 small").spec  # 50,257 words do not split over 2 ranks, and the head is tied
WORDS = 50_257 * 768
COPIES = (1024 + 2 * 25 + 2 * 12) * 768  # on each rank of tp: positions, norms, biases of row cuts
MIXTRAL = mixtures.published("Mixtral 8x7B").spec


@pytest.mark.parametrize(
    ("model", "layout", "numbers"),
    [
        (GPT2, Layout(tp=2), 124_439_808 + COPIES),
        (GPT2, Layout(pp=2), 124_439_808 + WORDS),
        (MIXTRAL, Layout(dp=4, ep=2, zero=1), 46_702_792_704),
    ],
    ids=["a vocabulary with a rest", "a tied head", "experts under ZeRO"],
)
def test_numbers_that_do_not_split_or_lie_twice_are_counted(model, layout, numbers):
    assert sum(each.total for each in loading.reading(model, layout)) == 2 * numbers


def test_ranks_that_load_the_whole_fill_the_host_and_those_that_load_their_own_do_not():
    found = loading.host(MODEL, Layout(tp=8, pp=2), per_host=8)
    piece = 2 * 128_256 * 8192 // 8  # of the embedding, on the first host; of the head, on the second
    assert found == {"every rank the whole": 8 * WHOLE, "every rank its own": 8 * piece}
    assert loading.host(MODEL, Layout(pp=2), per_host=8)["every rank the whole"] == 2 * WHOLE
