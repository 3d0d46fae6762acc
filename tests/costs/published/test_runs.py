"""The utilisation of published runs follows from their own numbers."""

import pytest

from shardlab.costs import published
from shardlab.costs.compute import flops
from shardlab.costs.facts import models
from shardlab.costs.published.runs import RUNS

CLAIMS = [run for run in RUNS.values() if run.claimed_mfu is not None]
HOURS = [run for run in RUNS.values() if run.num_chips is None]


@pytest.mark.parametrize("run", CLAIMS, ids=lambda run: run.name)
def test_their_mfu_from_their_numbers(run):
    """To a percent of the peak in print; Llama 3's 400 TFLOP/s are 40.4 % of 989.4, where it prints 41 %."""
    assert run.mfu == pytest.approx(run.claimed_mfu, abs=0.006)
    digits = 0.005 if "Llama" in run.name else 0.0016
    assert abs(run.mfu - run.claimed_mfu) < digits or run.claimed_mfu == 0.41


@pytest.mark.parametrize("run", [run for run in RUNS.values() if run.claimed_hfu], ids=lambda run: run.name)
def test_their_hfu_from_their_numbers(run):
    assert run.hfu == pytest.approx(run.claimed_hfu, abs=0.0051)
    assert run.hfu > run.mfu


def test_megatrons_52_percent_count_the_recomputation():
    """Narayanan et al. 2021, Table 1: of the trillion's 52 %, 39 are model FLOPs."""
    assert published.runs.run("Megatron 1008B").mfu == pytest.approx(0.392, abs=0.001)


# Narayanan et al. 2021, Table 1: petaFLOP/s of all GPUs together.
AGGREGATE = [4.4, 8.8, 18.2, 34.6, 70.8, 143.8, 227.1, 297.4, 410.2, 502.0]


@pytest.mark.parametrize(("run", "petaflops"), [*zip(list(RUNS.values())[:10], AGGREGATE, strict=True)])
def test_the_aggregate_of_megatron(run, petaflops):
    rate = run.hfu * run.peak * run.num_chips / 1e15
    assert rate == pytest.approx(petaflops, rel=0.006)


# Korthikanti et al. 2022, Table 5: seconds of an iteration with full recomputation.
FULL = [("Megatron 22B", 8, 4, 1.42, 1.10, 0.290), ("Megatron 175B", 64, 64, 18.13, 13.75, 0.318)]


@pytest.mark.parametrize(("name", "gpus", "batch", "full", "selective", "gain"), FULL)
def test_selective_recomputation_gains_what_is_printed(name, gpus, batch, full, selective, gain):
    assert full / selective - 1 == pytest.approx(gain, abs=0.002)
    run = published.runs.run(f"{name}, selective")
    assert run.tokens_per_second * gpus * selective == pytest.approx(batch * 2048)


def test_llamas_gpu_hours_are_its_tokens_per_second():
    """Touvron et al. 2023, section 2.4, beside Table 15: "around 380 tokens/sec/GPU"."""
    assert published.runs.run("Llama 1 65B").tokens_per_second == pytest.approx(380, abs=1)


@pytest.mark.parametrize("run", HOURS, ids=lambda run: run.name)
def test_hours_of_whole_trainings_give_a_plausible_utilisation(run):
    """Whole trainings, failures included; the smallest one of the fastest chip is the lowest."""
    assert 0.15 < run.mfu < 0.55


def test_palm_counts_what_its_formula_says():
    spec = models.published("Megatron 529.6B").spec
    ours = flops.model_flops(spec, batch=1, sequence=2048) / 2048
    assert published.runs.run("MT-NLG 530B").model_flops == pytest.approx(ours, rel=0.001)


def test_an_unknown_run_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"GPT-5.*PaLM 540B"):
        published.runs.run("GPT-5")


@pytest.mark.parametrize("run", RUNS.values(), ids=lambda run: run.name)
def test_every_run_has_its_source(run):
    assert "https://" in run.source
