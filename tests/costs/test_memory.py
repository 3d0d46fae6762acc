import pytest

from shardlab.costs import memory, models
from shardlab.costs.units import GB
from shardlab.spec import TransformerSpec

# Rajbhandari et al. 2020, Table 1: GB on one rank for 7.5e9 parameters, by ranks, for ZeRO stages 1, 2, 3.
ZERO_TABLE_1 = {
    1: (120, 120, 120),
    4: (52.5, 41.3, 30),
    16: (35.6, 21.6, 7.5),
    64: (31.4, 16.6, 1.88),
    256: (30.4, 15.4, 0.47),
    1024: (30.1, 15.1, 0.12),
}


def states(*args, **kwargs):
    return sum(memory.model_states(*args, **kwargs).values())


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_zero(zero, gigabytes):
    """https://arxiv.org/abs/1910.02054: 7.5e9 parameters, 64 ranks."""
    assert states(7.5e9, dp=64, zero=zero) / GB == pytest.approx(gigabytes, rel=0.015)


@pytest.mark.parametrize("ranks", ZERO_TABLE_1)
def test_table_1_of_zero(ranks):
    for zero, gigabytes in zip((1, 2, 3), ZERO_TABLE_1[ranks], strict=True):
        assert states(7.5e9, dp=ranks, zero=zero) / GB == pytest.approx(gigabytes, abs=0.06)


@pytest.mark.parametrize("recipe", memory.RECIPES.values(), ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
def test_replicas_are_n_copies_and_zero_3_is_one(recipe, ranks):
    whole = recipe.bytes_per_parameter * 1e9
    assert ranks * states(1e9, recipe, dp=ranks) == pytest.approx(ranks * whole)
    assert ranks * states(1e9, recipe, dp=ranks, zero=3) == pytest.approx(whole)


def test_both_counts_for_mixed_precision_are_in_print():
    """16 bytes in the ZeRO paper; Megatron keeps fp32 gradients: 18. https://docs.nvidia.com/megatron-core/"""
    assert memory.recipe("mixed, 16-bit gradients").bytes_per_parameter == 16
    assert memory.recipe("mixed, fp32 gradients").bytes_per_parameter == 18
    assert memory.recipe("fp32 Adam").bytes_per_parameter == 16


@pytest.mark.parametrize(("heads", "hidden", "quotient"), [(96, 12288, 80), (128, 20480, 64)])
def test_activations_of_gpt_3_and_mt_nlg(heads, hidden, quotient):
    """Korthikanti et al. 2022, section 5: 5as/h is 80 for GPT-3 and 64 for MT-NLG, at s = 2048."""
    spec = TransformerSpec(
        vocab_size=51200, context_length=2048, hidden_size=hidden, num_layers=3, num_heads=heads
    )
    for batch in (1, 4):
        sbh, sizes = 2048 * batch * hidden, {"batch": batch, "sequence": 2048}
        stored = memory.activations(spec, attention="stored", **sizes)
        assert stored["layers"] == 3 * sbh * (34 + quotient)
        assert memory.activations(spec, **sizes)["layers"] == 3 * sbh * 34


def test_the_head_follows_the_paper_too():
    """Korthikanti et al. 2022, section 4.3: 4sbh(1 + v/h) after the layers, and a mask of sbh before them."""
    spec = models.published("GPT-2 small").spec
    parts = memory.activations(spec, batch=2, sequence=512)
    assert parts["head"] == pytest.approx(4 * 1024 * 768 * (1 + 50257 / 768))
    assert parts["embedding"] == 1024 * 768


def test_llama_keeps_what_its_layers_have():
    """By hand for one token: h = 8, one of two heads for keys and values (4 wide), f = 20, no dropout."""
    spec = TransformerSpec(
        vocab_size=10, context_length=4, hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1,
        ffn_size=20, style="llama",
    )  # fmt: skip
    norms, attention, feed_forward = 2 * 8, 8 + 8 + 4 + 4 + 8, 8 + 4 * 20
    flash = memory.activations(spec, batch=1, sequence=1)
    assert flash == {"layers": 2 * (norms + attention + feed_forward), "embedding": 0, "head": 4 * 8 + 4 * 10}
    stored = memory.activations(spec, batch=1, sequence=3, attention="stored")
    assert stored["layers"] == 3 * flash["layers"] + 2 * (2 * 3 * 3)


def test_twice_the_bytes_for_fp32_except_for_masks_and_logits():
    spec = models.published("GPT-2 small").spec
    half, full = (memory.activations(spec, batch=1, sequence=8, element=n)["layers"] for n in (2, 4))
    assert full / half == pytest.approx(66 / 34)


def test_bad_input_is_refused():
    spec = models.published("GPT-2 small").spec
    for call, message in [
        (lambda: memory.model_states(1e9, zero=4), "stages 0, 1, 2, 3, not 4"),
        (lambda: memory.model_states(1e9, dp=0), "use at least 0 and 1"),
        (lambda: memory.model_states(-1), "use at least 0 and 1"),
        (lambda: memory.recipe("int4"), "known: fp32 Adam"),
        (lambda: memory.activations(spec, batch=1, sequence=2000), "use at most 1024"),
        (lambda: memory.activations(spec, batch=1, sequence=8, attention="ring"), "known: flash, stored"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
