"""A step of a generator reads what a count says it reads, and nobody wrote more tokens than the bound."""

import random

import pytest

from shardlab.costs.compute import roofline
from shardlab.costs.facts import hardware, mixtures, models
from shardlab.costs.generation import cache
from shardlab.costs.generation.decode import DecodingRank
from shardlab.costs.published.engines import DECODED
from shardlab.sharding.layout import Layout

CHIP = hardware.chip("H200 SXM 141 GB")
LLAMA = models.published("Llama 3 8B").spec
QWEN = mixtures.published("Qwen3-30B-A3B").spec
ONE = DecodingRank(spec=LLAMA, chip=CHIP)


def test_a_step_does_two_flops_for_each_weight_and_reads_it_once():
    multiplied = 8_030_261_248 - 128_256 * 4096 - models.parameters(LLAMA)["norms"]
    step = ONE.step(8, 1000)
    pairs = 8 * 1000 * 32 * 4 * 4096  # query by key, score by value: 2 FLOPs a number each
    assert step.flops == 8 * 2 * multiplied + pairs
    assert step.nbytes == 2 * (8_030_261_248 - 128_256 * 4096) + 8 * 1000 * cache.token_bytes(LLAMA)
    tied = DecodingRank(spec=models.published("GPT-2 small").spec, chip=CHIP)
    assert tied.read(8) == tied.weights - 2 * 1024 * 768


def test_memory_bounds_small_batches_and_arithmetic_large_ones():
    bounds = [roofline.bound(ONE.step(batch, 1), CHIP) for batch in (1, 64, 1024)]
    assert bounds == ["memory", "memory", "arithmetic"]


@pytest.mark.parametrize("batch", [1, 8, 64])
@pytest.mark.counted("trainer_generator", "bytes of the experts that a decode step reads, drawn 300 times")
def test_a_mixture_reads_the_experts_that_some_token_chose(batch):
    draw = random.Random(0)
    of, each = QWEN.experts.num_experts, QWEN.experts.per_token
    counts = [len({e for _ in range(batch) for e in draw.sample(range(of), each)}) for _ in range(300)]
    held = DecodingRank(spec=QWEN, chip=CHIP)
    dense = held.weights - 2 * 151_936 * 2048 - 2 * 48 * of * models.expert_parameters(QWEN)
    routed = 2 * 48 * models.expert_parameters(QWEN) * sum(counts) / len(counts)
    assert held.read(batch) == pytest.approx(dense + routed, rel=0.01)


def test_ranks_share_weights_and_texts_or_experts():
    both = DecodingRank(spec=QWEN, chip=CHIP, layout=Layout(tp=2))
    alone = DecodingRank(spec=QWEN, chip=CHIP)
    assert both.weights == pytest.approx(alone.weights / 2, rel=1e-3)
    assert both.step(4, 100).flops == alone.step(4, 100).flops / 2
    apart = DecodingRank(spec=QWEN, chip=CHIP, layout=Layout(dp=2, ep=2))
    routed = 2 * 48 * 128 * models.expert_parameters(QWEN)
    assert alone.weights - apart.weights == routed / 2
    assert apart.read(4) == pytest.approx(alone.read(8) - (1 - (1 - 8 / 128) ** 8) * routed / 2)


def test_latent_attention_multiplies_the_narrow_vector_for_each_head():
    spec = mixtures.published("DeepSeek-V3").spec
    rank = DecodingRank(spec=spec, chip=CHIP, element=1)
    longer = rank.step(1, 101).flops - rank.step(1, 100).flops
    assert longer == 61 * 2 * 128 * (512 + 64 + 512)


def test_messages_of_tensor_parallelism_are_two_a_layer():
    link = hardware.link("NVLink 4").reached
    silent = DecodingRank(spec=LLAMA, chip=CHIP, layout=Layout(tp=2))
    waiting = DecodingRank(spec=LLAMA, chip=CHIP, layout=Layout(tp=2), link=link)
    one = 2 * link.latency + 8 * 4096 * 2 / link.bandwidth  # half the vector, twice
    assert waiting.seconds(8, 100) - silent.seconds(8, 100) == pytest.approx(64 * one)


def test_the_largest_batch_fills_the_memory():
    batch, room = ONE.largest_batch(2000), 0.9 * CHIP.memory - ONE.weights
    each = 2000 * cache.token_bytes(LLAMA)
    assert batch * each <= room < (batch + 1) * each
    with pytest.raises(ValueError, match="use a larger tp"):
        DecodingRank(spec=models.published("Llama 3 405B").spec, chip=CHIP).tokens_per_second(9, 9)


@pytest.mark.parametrize("row", DECODED, ids=lambda row: f"{row.prompt} {row.answer}")
def test_a_published_generator_reached_half_of_the_bound(row):
    assert 0.4 < row.tokens_per_second / row.bound < 0.6


def test_the_bounds_are_in_the_order_of_what_was_measured():
    assert [row.bound for row in DECODED] == sorted((row.bound for row in DECODED), reverse=True)
