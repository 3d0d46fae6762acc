"""The time of a matrix product follows waves of tiles, and no product exceeds the best one measured."""

from dataclasses import replace

import pytest

from shardlab.costs.compute import flops, kernels
from shardlab.costs.facts import hardware, models, nodes
from shardlab.costs.program import KERNELS, Kernels, Program
from shardlab.costs.programs import FLASH_1, MEGATRON_2022, NEMO_2024, program
from shardlab.costs.step import axes, exposed, layer_time, products
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

A100, H100 = hardware.chip("A100 SXM 80 GB"), hardware.chip("H100 SXM 80 GB")


def timed(spec, chip=A100, precision=None, **changes):
    """One layer of a program that differs from NeMo's."""
    program = replace(NEMO_2024, **changes)
    return layer_time.layer(Training(spec=spec, program=program, precision=precision), chip)


def filled(m, n, count=1):
    """The share of full waves' rate that the best tiling of an A100 reaches."""
    return max(tiling.share for tiling in kernels.tilings(m, n, A100, count))


def test_a_full_wave_of_whole_tiles_wastes_nothing():
    assert filled(128 * 12, 256 * 9) == 1.0  # 108 tiles, 108 multiprocessors


def test_one_row_more_is_a_wave_more_and_tiles_that_hang_over():
    """Of the largest tiles it takes two waves; 128 x 128 lose less, in three of half the work."""
    m, n = 128 * 12 + 1, 256 * 9
    half = 0.98 * m * n / (3 * 108 * 128 * 128)
    assert filled(m, n) == pytest.approx(half)
    assert half > m * n / (2 * 108 * 128 * 256)


def test_products_at_once_share_waves():
    """One product of one large tile is better cut into eight small ones."""
    assert filled(128, 256) == pytest.approx(0.62 * 8 / 108)
    assert filled(128, 256, count=108) == 1.0


def test_only_the_last_wave_writes_unhidden():
    """Ten waves of one tile for each multiprocessor: of their bytes a tenth is waited for."""
    m, k, n = 128 * 12, 4096, 256 * 9 * 10
    short, long = (kernels.matmul_seconds(m, k, n, A100, written=written) for written in (2, 10))
    assert long - short == pytest.approx(kernels.moved_seconds(8 * m * n, A100) / 10)


def test_a_product_that_writes_much_waits_for_memory():
    m, k, n = 128 * 12, 64, 256 * 9 * 10
    moved = 2 * (m * k + k * n) + 8 * m * n
    assert kernels.matmul_seconds(m, k, n, A100, written=8) == pytest.approx(
        kernels.START + kernels.moved_seconds(moved, A100)
    )


@pytest.mark.parametrize("chip", [A100, H100, hardware.chip("V100 SXM2 32 GB")], ids=lambda chip: chip.name)
def test_no_product_exceeds_the_best_one_that_was_found(chip):
    sizes = [1, 64, 1000, 4096, 8192, 24_576]
    shares = [kernels.share_of_peak(m, k, n, chip) for m in sizes for k in sizes for n in sizes]
    assert min(shares) > 0
    assert max(shares) <= kernels.ordinary_flops(chip) / chip.peak_flops
    assert max(shares) > 0.58


def test_a_thin_product_waits_for_memory():
    seconds = kernels.matmul_seconds(1, 8192, 132 * 256, H100) - kernels.START
    assert seconds == pytest.approx(2 * 8192 * 132 * 256 / (kernels.MOVED * H100.memory_bandwidth), rel=0.01)


def test_an_empty_product_is_refused():
    with pytest.raises(ValueError, match="must be a whole number of at least 1"):
        kernels.matmul_seconds(0, 1, 1, A100)


def test_a_chip_that_nobody_searched_gets_a_share_of_its_peak():
    chip = hardware.chip("V100 SXM2 32 GB")
    assert kernels.best_flops(chip) == pytest.approx(kernels.UNSEARCHED * chip.peak_flops)


# ---- a layer ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["GPT-3 175B", "Llama 3 70B"])
@pytest.mark.parametrize("tp", [1, 2, 8])
def test_the_ranks_of_tp_compute_the_products_of_the_whole_layer(name, tp):
    spec = models.published(name).spec
    training = Training(spec=spec, layout=Layout(tp=tp), microbatch=2, sequence=2048)
    counted = sum(2 * m * k * n for m, k, n in products.matrices(training))
    work = flops.forward(spec, batch=2, sequence=2048)
    assert tp * counted == (work["projections"] + work["feed-forward"]) // spec.num_layers


def layer_of_22b(shared: bool):
    cluster = nodes.cluster("DGX A100")
    training = Training(
        spec=models.published("Megatron 22B").spec,
        layout=Layout(tp=8, sequence_parallel=shared),
        microbatch=4,
        attention="stored",
        dropout=True,
        program=MEGATRON_2022,
    )
    link = axes.links(cluster, training.layout)["tp"]
    time = layer_time.layer(training, cluster.node.chip)
    waited = sum(exposed.tensor_passes(training, link, time))
    forward = 4 * exposed.gather_seconds(training, link) if shared else 2 * exposed.all_reduce_seconds(training, link)
    return time.forward.seconds + forward, time.backward_seconds + waited - forward


def test_the_layer_with_which_the_constant_was_calibrated():
    """Korthikanti et al. 2022, Table 4: milliseconds of forward and backward, without and with sequence parallelism."""
    measured = {False: (7.7e-3, 11.9e-3), True: (7.2e-3, 11.8e-3)}
    pairs = [pair for shared in measured for pair in zip(layer_of_22b(shared), measured[shared], strict=True)]
    errors = [ours / theirs - 1 for ours, theirs in pairs]
    assert max(map(abs, errors)) < 0.025
    assert abs(sum(errors) / 4) < 0.005


def test_scores_computed_again_take_what_that_table_says():
    """Selective recomputation adds 1.3 ms to the layer's backward; here 1.1."""
    spec = models.published("Megatron 22B").spec
    training = Training(spec=spec, layout=Layout(tp=8), microbatch=4, attention="stored", dropout=True)
    again = replace(training, recomputation="selective")
    assert layer_time.layer(again, A100).recomputed == pytest.approx(1.3e-3, rel=0.15)


def test_a_bias_costs_backward_one_more_pass():
    """Over the gradients of the outputs: 3 h + h + 4 h + h numbers for each token."""
    spec = models.published("GPT-2 small").spec
    with_biases, without = (
        layer_time.layer(Training(spec=each), A100) for each in (spec, replace(spec, bias_places=()))
    )
    numbers = spec.context_length * 9 * spec.hidden_size
    passed = kernels.moved_seconds(2 * numbers, A100)
    assert with_biases.backward.between - without.backward.between == pytest.approx(passed)
    assert with_biases.forward == without.forward


def test_what_runs_unfused_moves_what_eager_operations_move():
    spec = models.published("Llama 3 8B").spec
    fused, gate, every = (timed(spec, unfused=each) for each in ((), ("SwiGLU",), ("norms", "rotary", "SwiGLU")))
    assert fused.forward.between < gate.forward.between < every.forward.between


def test_a_loss_of_all_words_does_not_become_shorter_with_tp():
    spec = models.published("Llama 3 8B").spec
    by_eight = Training(spec=spec, layout=Layout(tp=8))
    all_words = replace(by_eight, program=replace(NEMO_2024, loss="whole"))
    cut, whole = (layer_time.head_seconds(each, A100) for each in (by_eight, all_words))
    rest = spec.context_length * spec.vocab_size * 7 / 8
    assert whole[0] - cut[0] == pytest.approx(kernels.moved_seconds(10 * rest, A100))
    assert whole[1] - cut[1] == pytest.approx(kernels.moved_seconds(6 * rest, A100))


def test_scales_that_follow_from_a_tensor_read_it_once_more():
    spec = models.published("Llama 3 8B").spec
    delayed, dynamic = (
        timed(spec, H100, "fp8", kernels=Kernels(scales_anew=each)).forward for each in (False, True)
    )
    read = 2 * sum(m * k for m, k, _ in layer_time.matrices(Training(spec=spec)))
    assert dynamic.between - delayed.between == pytest.approx(kernels.moved_seconds(read, H100))


def test_attention_takes_as_long_as_its_kernel_says():
    spec = models.published("Llama 3 8B").spec
    modern, first = (timed(spec, kernels=each) for each in (Kernels(), FLASH_1))
    longer = 1 + 144 / (8193 / 2)  # pairs of the mean row, and what a row costs beside them
    assert first.forward.attention / modern.forward.attention == pytest.approx(0.65 / 0.4 / longer)
    assert first.backward.attention / modern.backward.attention == pytest.approx(0.5 / 0.3 / longer)
    assert first.forward.matrices == modern.forward.matrices


@pytest.mark.parametrize(
    ("head_size", "length", "forward", "backward"),
    [(128, 512, 0.32, 0.18), (128, 2048, 0.49, 0.35), (128, 4096, 0.52, 0.42), (64, 16_384, 0.41, 0.41)],
)
def test_attention_reaches_what_was_published(head_size, length, forward, backward):
    """Shah et al. 2024, Figures 5 and 6: cuDNN on the H100, causal; backward: their line with half a tile added."""
    pairs = length * (length + 1) / 2
    work = 4 * pairs * 16 * head_size / H100.peak_flops
    seconds = kernels.flash_seconds(pairs, length, H100, heads=16, head_size=head_size)
    shares = work / seconds[0], kernels.FLASH_BACKWARD * work / seconds[1]
    assert shares == pytest.approx((forward, backward), abs=0.03)


def test_the_table_of_products_has_the_share_that_was_calibrated():
    shares = {kernels.BEST[name].ordinary for name in kernels.BEST if name.startswith("A100")}
    assert shares == {kernels.ORDINARY}


def test_eager_operations_move_more_bytes_between_products():
    """A norm of one number moves 36 bytes instead of 4, a rotation 20 instead of 4, a gate 10 instead of 6."""
    spec = models.published("Llama 3 8B").spec
    fused, eager = (timed(spec, unfused=each).forward for each in ((), KERNELS))
    width = spec.hidden_size
    keys = spec.kv_heads * spec.head_size
    moved = spec.context_length * (2 * 32 * width + 16 * (width + keys) + 4 * spec.ffn)
    assert eager.between - fused.between == pytest.approx(kernels.moved_seconds(moved, A100))
    assert eager.matrices == fused.matrices
    gpt = models.published("GPT-2 small").spec
    alone = tuple(kernel for kernel in KERNELS if kernel != "products of one input")
    assert timed(gpt, unfused=alone) == timed(gpt)


def test_a_program_may_repeat_some_products_in_backward():
    spec = models.published("Llama 3 8B").spec
    kept, repeated = (timed(spec, kernels=Kernels(repeated=each)) for each in ((), ("gate", "up")))
    assert kept.recomputed == 0
    share = 2 * spec.ffn / (3 * spec.ffn + 2 * spec.hidden_size + 2 * spec.kv_heads * spec.head_size)
    assert repeated.recomputed == pytest.approx(share * kept.forward.matrices + kept.forward.between)
    with pytest.raises(ValueError, match="must be some of"):
        Kernels(repeated=("norms",))


def test_a_limit_on_power_takes_its_share_of_the_rate():
    limited = replace(H100, name="H100 SXM 96 GB, 500 W")
    assert kernels.best_flops(limited) / kernels.best_flops(H100) == pytest.approx(500 / 700)


def test_what_is_computed_again_is_the_forward():
    training = Training(spec=models.published("GPT-2 small").spec, recomputation="full")
    time = layer_time.layer(training, A100)
    assert time.backward_seconds == time.forward.seconds + time.backward.seconds


def test_eight_bits_speed_up_products_and_cast_between_them():
    training = Training(spec=models.published("Llama 3 8B").spec)
    half, eighth = (layer_time.layer(replace(training, precision=precision), H100) for precision in (None, "fp8"))
    assert 1.5 < half.forward.matrices / eighth.forward.matrices < 2
    assert eighth.forward.between > half.forward.between
    assert eighth.forward.attention == half.forward.attention


def test_programs_are_known_by_name():
    assert program("NeMo, 2024") is NEMO_2024
    with pytest.raises(ValueError, match="NeMo, 2024"):
        program("none")
    with pytest.raises(ValueError, match="chunks"):
        Program(name="", tensor_overlap="much", source="")


def test_a_loss_and_the_inputs_of_several_matrices_move_what_eager_torch_moves():
    """48 bytes a logit where the fused loss moves 28; q, k, v and gate, up: three additions of three numbers."""
    spec = models.published("Llama 3 8B").spec
    training = Training(spec=spec, program=NEMO_2024)
    eager = replace(training, program=replace(NEMO_2024, unfused=("loss", "products of one input")))
    rate = kernels.MOVED * A100.memory_bandwidth
    heads = [sum(layer_time.head_seconds(each, A100)) for each in (training, eager)]
    logits = training.tokens * spec.vocab_size
    assert (heads[1] - heads[0]) * rate == pytest.approx((48 - 16) * logits)
    layers = [layer_time.layer(each, A100).backward.between for each in (training, eager)]
    assert (layers[1] - layers[0]) * rate == pytest.approx(3 * 3 * 2 * training.tokens * spec.hidden_size)


def test_kernels_by_kind_are_those_of_layers_and_ends():
    training = Training(spec=models.published("Llama 3.2 1B").spec, recomputation="full", program=NEMO_2024)
    one, kinds = layer_time.layer(training, H100), layer_time.kernel_seconds(training, H100)
    layers = training.spec.num_layers * (one.forward.seconds + one.backward_seconds)
    ends = sum(layer_time.head_seconds(training, H100)) + sum(layer_time.embedding_seconds(training, H100))
    assert sum(kinds.values()) == pytest.approx(layers + ends)
    assert kinds["attention"] == pytest.approx(16 * (2 * one.forward.attention + one.backward.attention))


def test_a_b200_slows_down_more_in_16_bits_than_in_8():
    b200 = hardware.chip("B200 SXM 180 GB")
    assert kernels.ordinary_flops(b200) == pytest.approx(1.1e15, rel=0.01)  # SimuMax's loops: 1,040 to 1,119 TFLOP/s
    assert kernels.ordinary_flops(b200, "fp8") == pytest.approx(2.47e15, rel=0.01)
    assert kernels.alone_flops(H100) > kernels.best_flops(H100) > kernels.ordinary_flops(H100)
    with pytest.raises(ValueError, match="no products of the V100 SXM2 32 GB were timed alone; known: A100 SXM 80 GB"):
        kernels.alone_flops(hardware.chip("V100 SXM2 32 GB"))
