"""Days and chips of a training are those that Megatron-LM publishes."""

import pytest

from shardlab.costs.compute import flops, time_to_train
from shardlab.costs.compute.time_to_train import YEAR, TimeToTrain
from shardlab.costs.facts import hardware, models
from shardlab.costs.units import DAY

A100, V100 = hardware.chip("A100 SXM 80 GB"), hardware.chip("V100 SXM2 32 GB")
GPT3 = models.published("GPT-3 175B").spec


@pytest.mark.parametrize(
    ("parameters", "tokens", "gpus", "rate", "days"),
    [(175e9, 300e9, 1024, 140e12, 34), (1.008e12, 450e9, 3072, 163e12, 84)],
)
def test_the_days_of_megatron(parameters, tokens, gpus, rate, days):
    """Narayanan et al. 2021, section 5.1 (https://arxiv.org/abs/2104.04473)."""
    assert round(time_to_train.megatron_days(parameters, tokens, num_chips=gpus, rate=rate)) == days


# Narayanan et al. 2021, Table 2: parameters in billions, GPUs, TFLOP/s of each, days for 300 billion tokens.
MEGATRON_TABLE_2 = [
    (174.6, 384, 144, 90), (174.6, 768, 88, 74), (174.6, 1536, 44, 74), (529.6, 640, 138, 169), (529.6, 1120, 98, 137),
    (529.6, 2240, 48, 140), (174.6, 384, 153, 84), (174.6, 768, 149, 43), (174.6, 1536, 141, 23),
    (529.6, 560, 171, 156), (529.6, 1120, 167, 80), (529.6, 2240, 159, 42),
]  # fmt: skip


@pytest.mark.parametrize(("billions", "gpus", "rate", "days"), MEGATRON_TABLE_2)
def test_table_2_of_megatron(billions, gpus, rate, days):
    """Their days count scores and logits too, up to 3 % more than 8 T P; rates are printed in two or three digits."""
    name = {174.6: "Megatron 175B", 529.6: "Megatron 529.6B"}[billions]
    exact = flops.hardware_flops(models.published(name).spec, batch=1, sequence=2048) / 2048 * 300e9
    assert exact / (gpus * rate * 1e12) / DAY == pytest.approx(days, rel=0.025)


def test_the_exact_form_is_the_rule_of_thumb_with_the_exact_flops():
    run = TimeToTrain(spec=GPT3, tokens=300e9, chip=A100, num_chips=1024, utilisation=0.35)
    count = models.num_parameters(GPT3)
    thumb = time_to_train.rule_of_thumb_days(count, 300e9, num_chips=1024, peak=312e12, utilisation=0.35)
    assert thumb / run.days - 1 == pytest.approx(flops.six_n_d_error(GPT3, sequence=2048))
    assert run.seconds == pytest.approx(run.flops / (1024 * 312e12 * 0.35))
    assert run.chip_hours == pytest.approx(run.days * 24 * 1024)


def test_what_288_years_hide():
    """A V100 that does 46 of its 125 TFLOP/s, a quarter of them for a second forward: an MFU of 28 %."""
    claim, lambda_labs, openai = time_to_train.ONE_V100
    assert claim.rate == pytest.approx(46.2e12, rel=1e-3)
    mfu = claim.rate * 6 / 8 / V100.peak_flops
    assert mfu == pytest.approx(0.277, abs=1e-3)
    thumb = time_to_train.rule_of_thumb_days(175e9, 300e9, num_chips=1, peak=V100.peak_flops, utilisation=mfu)
    assert round(thumb * DAY / YEAR) == 288
    exact = TimeToTrain(spec=GPT3, tokens=300e9, chip=V100, utilisation=mfu)
    assert exact.seconds / YEAR == pytest.approx(295, abs=1)  # with the scores
    assert lambda_labs.rate == pytest.approx(28e12, rel=0.01)  # the peak of fp16 without tensor cores
    assert openai.rate == pytest.approx(24.6e12, rel=0.002)  # what Patterson et al. 2021 print in their Table 4
    assert openai.years == pytest.approx(405, abs=1)


def test_energy_is_the_power_limit_all_the_time():
    run = TimeToTrain(spec=GPT3, tokens=1e9, chip=A100, num_chips=8)
    assert run.joules == pytest.approx(run.chip_hours * 3600 * 400)
    tpu = TimeToTrain(spec=GPT3, tokens=1e9, chip=hardware.chip("TPU v6e 32 GB"), num_chips=8)
    with pytest.raises(ValueError, match="TPU v6e 32 GB does not print its power"):
        _ = tpu.joules


def test_causal_attention_counts_fewer_model_flops():
    long = models.published("Llama 3 8B").spec
    full = TimeToTrain(spec=long, tokens=1e9, chip=A100)
    causal = TimeToTrain(spec=long, tokens=1e9, chip=A100, pairs="causal")
    short = TimeToTrain(spec=long, tokens=1e9, chip=A100, sequence=128)
    assert short.flops < causal.flops < full.flops


def test_precision_changes_the_peak():
    h100 = hardware.chip("H100 SXM 80 GB")
    half, eighth = (TimeToTrain(spec=GPT3, tokens=1e9, chip=h100, precision=name) for name in ("bf16", "fp8"))
    assert half.days / eighth.days == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("days", [0.5, 1, 30, 34, 1e6])
def test_enough_chips_are_the_fewest(days):
    run = TimeToTrain(spec=GPT3, tokens=300e9, chip=A100)
    count = time_to_train.chips_needed(run, days)
    assert run.days / count <= days
    assert count == 1 or run.days / (count - 1) > days


def test_utilisation_is_a_share_of_the_peak():
    share = time_to_train.utilisation(1e15, seconds=2.0, num_chips=4, peak=312e12)
    assert share * 4 * 312e12 * 2.0 == pytest.approx(1e15)


def test_bad_input_is_refused():
    for call, message in [
        (lambda: TimeToTrain(spec=GPT3, tokens=0, chip=A100), "tokens=0 must be a finite number above 0"),
        (lambda: TimeToTrain(spec=GPT3, tokens=1, chip=A100, num_chips=0), "num_chips=0 must be"),
        (lambda: TimeToTrain(spec=GPT3, tokens=1, chip=A100, utilisation=40), "use 0.4 for 40 %"),
        (lambda: TimeToTrain(spec=GPT3, tokens=1, chip=V100, precision="bf16").days, "use fp32, fp16"),
        (lambda: time_to_train.chips_needed(TimeToTrain(spec=GPT3, tokens=1, chip=A100), 0), "days=0 must be"),
        (lambda: time_to_train.utilisation(1, seconds=0, num_chips=1, peak=1), "seconds=0 must be"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
