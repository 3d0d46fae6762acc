"""A roofline is a slope and a flat, and each operation of a layer lies on its side of the ridge."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardlab.costs.compute import flops, roofline
from shardlab.costs.facts import hardware, models
from shardlab.model.recurrent import Recurrent
from shardlab.model.spec import TransformerSpec

H100 = hardware.chip("H100 SXM 80 GB")
SIZE = st.integers(1, 10_000)
STATES = Recurrent(
    rule="Gated DeltaNet", layers=(0,), num_heads=2, key_heads=2, key_size=4, value_size=4, convolution=2
)
ONLY_STATES = TransformerSpec(
    vocab_size=9, context_length=8, hidden_size=8, num_layers=1, num_heads=2, style="llama", recurrent=STATES
)


def test_the_ridge_of_the_h100():
    """989.4e12 / 3.35e12: 295 FLOP/byte, a number that many texts quote."""
    assert roofline.ridge(H100) == pytest.approx(295.3, abs=0.1)
    assert roofline.ridge(H100, "fp8") == pytest.approx(2 * roofline.ridge(H100), rel=1e-3)
    assert roofline.ridge(H100, "fp32") < 21


@pytest.mark.parametrize("chip", hardware.CHIPS.values(), ids=lambda chip: chip.name)
def test_the_roof_is_a_slope_and_a_flat(chip):
    """Williams et al. 2009: attainable = min(peak, bandwidth * intensity), and the two meet at the ridge."""
    ridge = roofline.ridge(chip)
    assert roofline.attainable(ridge, chip) == pytest.approx(chip.peak_flops)
    assert roofline.attainable(ridge / 2, chip) == pytest.approx(chip.peak_flops / 2)
    assert roofline.attainable(100 * ridge, chip) == chip.peak_flops
    assert roofline.attainable(0, chip) == 0


def test_a_large_square_product_is_bound_by_arithmetic_and_a_thin_one_by_memory():
    """n^3 FLOPs on n^2 numbers: the intensity of a square product in 16 bits is n/3."""
    square, thin = roofline.matmul(4096, 4096, 4096), roofline.matmul(1, 4096, 4096)
    assert square.intensity == pytest.approx(4096 / 3)
    assert roofline.bound(square, H100) == "arithmetic"
    assert roofline.seconds(square, H100) == 2 * 4096**3 / 989.4e12
    assert thin.intensity == pytest.approx(1, rel=1e-3)
    assert roofline.bound(thin, H100) == "memory"
    assert roofline.seconds(thin, H100) == pytest.approx(2 * 4096**2 / 3.35e12, rel=1e-3)


@given(SIZE, SIZE, SIZE)
def test_time_is_work_over_what_is_attainable(m, k, n):
    work = roofline.matmul(m, k, n)
    assert roofline.seconds(work, H100) == pytest.approx(work.flops / roofline.attainable(work.intensity, H100))
    assert (roofline.bound(work, H100) == "memory") == (work.intensity < roofline.ridge(H100))


@pytest.mark.parametrize("chip", hardware.CHIPS.values(), ids=lambda chip: chip.name)
@pytest.mark.parametrize(("k", "n"), [(4096, 4096), (768, 3072), (8192, 1024)])
def test_the_least_rows_are_the_least(chip, k, n):
    rows, element = roofline.least_rows(k, n, chip), roofline.ELEMENT[chip.precision]
    for m, expected in ((rows, "arithmetic"), (rows - 1, "memory")):
        assert roofline.bound(roofline.matmul(m, k, n, element=element), chip) == expected


def test_a_narrow_product_never_leaves_the_memorys_side():
    assert roofline.least_rows(128, 128, H100) is None
    assert roofline.bound(roofline.matmul(10**9, 128, 128), H100) == "memory"


def test_norms_and_additions_wait_for_memory_on_every_chip():
    waiting = [roofline.norm(4096, 4096), roofline.elementwise(10**8, inputs=2, arithmetic=1)]
    for chip in (each for each in hardware.CHIPS.values() if "fp32" in each.peaks):  # of a TPU it is not published
        assert {roofline.bound(work, chip) for work in waiting} == {"memory"}
    assert roofline.seconds(waiting[1], H100) == pytest.approx(waiting[1].nbytes / 3.35e12)
    assert waiting[0].nbytes == 2 * 2 * 4096**2


@pytest.mark.parametrize("name", ["GPT-2 XL", "Llama 3 8B"])
def test_the_products_of_a_layer_are_those_that_are_counted(name):
    """Summed over the layers it is `flops.forward` without the head."""
    spec, sizes = models.published(name).spec, {"batch": 2, "sequence": 512}
    counted = flops.forward(spec, **sizes, pairs="causal")
    products = sum(work.flops for work in roofline.layer(spec, **sizes) if not work.vector)
    assert spec.num_layers * products == sum(counted.values()) - counted["head"]


def test_a_layer_with_wide_heads_and_more_norms_lists_them_all():
    """As Gemma 3's: 4 heads of 256 on a stream of 640."""
    sizes = {"vocab_size": 9, "context_length": 512, "hidden_size": 640, "num_layers": 1, "num_heads": 4}
    spec = TransformerSpec(**sizes, num_kv_heads=1, style="llama", head_dim=256, head_norms=True, post_norms=True)
    works = roofline.layer(spec, batch=1, sequence=512)
    counted = flops.forward(spec, batch=1, sequence=512, pairs="causal")
    assert sum(work.flops for work in works if not work.vector) == sum(counted.values()) - counted["head"]
    normed = [work.nbytes / (2 * 2 * 512) for work in works if "norm" in work.name]
    assert normed == [640, (4 + 1) * 256, 640, 640, 640]


def test_attention_moves_what_goes_in_and_out():
    spec = TransformerSpec(vocab_size=9, context_length=64, hidden_size=32, num_layers=1, num_heads=4, num_kv_heads=2)
    assert roofline.attention(spec, batch=3, sequence=64).nbytes == 2 * 3 * 64 * (32 + 16 + 16 + 32)


def test_bad_input_is_refused():
    for call, message in [
        (lambda: roofline.matmul(0, 4, 4), "m=0 must be a whole number of at least 1"),
        (lambda: roofline.attainable(-1, H100), "intensity=-1 must be a finite number of at least 0"),
        (lambda: roofline.ridge(hardware.chip("V100 SXM2 32 GB"), "bf16"), "use fp32, fp16"),
        (lambda: roofline.layer(models.published("GPT-2 XL").spec, batch=0, sequence=8), "batch=0 must be"),
        (lambda: roofline.attention(ONLY_STATES, batch=1, sequence=8), "no layer of this model has attention"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
