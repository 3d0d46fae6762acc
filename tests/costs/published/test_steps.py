"""Predicted steps meet the published ones within the errors that the book states."""

from dataclasses import replace
from statistics import fmean

import pytest

from shardlab.costs import published, step
from shardlab.costs.compute import flops
from shardlab.costs.facts import models
from shardlab.costs.published.steps import TABLES

# The mean error of each table, rounded up: what the book says. Better is welcome, worse is a defect.
AT_MOST = {
    "Megatron 2021, ten sizes": 0.035,
    "Megatron 2021, more GPUs": 0.02,
    "Megatron 2021, ZeRO-3": 0.055,
    "Korthikanti 2022, all layers again": 0.04,
    "Korthikanti 2022, selective": 0.035,
    "NVIDIA 2024, H100, bf16": 0.01,
    "NVIDIA 2024, H100, fp8": 0.06,
    "NeMo 24.12, H100, fp8": 0.06,
    "Llama 3 405B": 0.01,
    "Megatron-LM, H100, 70B": 0.05,
    "torchtitan, FSDP2, H100": 0.03,
    "torchtitan, FSDP2, A100": 0.04,
    "torchtitan, FSDP2, H200": 0.08,
}


def mean_error(table):
    return fmean(abs(row.error) for row in published.steps.of_table(table))


@pytest.mark.parametrize("table", TABLES)
def test_predictions_meet_published_steps(table):
    assert mean_error(table) <= AT_MOST[table]


def test_no_row_is_off_by_more_than_a_fifth():
    errors = [abs(row.error) for row in published.steps.STEPS]
    assert max(errors) < 0.145
    assert sum(error > 0.1 for error in errors) == 4


def test_zero_without_model_parallelism_stops_scaling_as_published():
    """175 billion parameters, 1,536 sequences: 768 and 1,536 GPUs take equally long, for every rank adds a hop."""
    rows = [row for row in published.steps.of_table("Megatron 2021, ZeRO-3") if "175B" in row.name]
    few, many = (row.predicted for row in rows[1:])
    assert rows[1].seconds == rows[2].seconds
    assert many.seconds / few.seconds == pytest.approx(1, abs=0.07)
    assert many.parts["ZeRO"] > 0.75 * many.seconds


def test_a_pipeline_and_zero_are_ordered_as_measured():
    """Five times one model and batch ran on the same GPUs in both ways; the book prints them."""
    deep, cut = (
        {row.name: row for row in published.steps.of_table(table)}
        for table in ("Megatron 2021, more GPUs", "Megatron 2021, ZeRO-3")
    )
    pairs = [(deep[name], cut[name]) for name in deep.keys() & cut.keys()]
    assert len(pairs) == 5
    for one, other in pairs:
        assert one.run.batch == other.run.batch
        assert one.seconds < other.seconds
        assert one.predicted.seconds < other.predicted.seconds


def test_ten_sizes_are_met_better_than_by_others():
    """A constant in hindsight leaves 5.8 %, as the issue has it; published analytical models 12 % and 5.6 %."""
    assert published.steps.hindsight_error("Megatron 2021, ten sizes") == pytest.approx(0.058, abs=0.001)
    assert mean_error("Megatron 2021, ten sizes") < 0.056


VARIED = [
    "Megatron 2021, more GPUs",
    "Megatron 2021, ZeRO-3",
    "Korthikanti 2022, all layers again",
    "Korthikanti 2022, selective",
    "Llama 3 405B",
    "torchtitan, FSDP2, H100",
    "torchtitan, FSDP2, A100",
]


@pytest.mark.parametrize("table", VARIED)
def test_where_layouts_differ_the_model_beats_a_constant_in_hindsight(table):
    assert mean_error(table) < published.steps.hindsight_error(table)


def test_more_gpus_on_the_same_batch_slow_down_as_published():
    """Their FLOP/s fall by 8 and 7 % when GPUs become four times as many: the bubble grows."""
    rows = published.steps.of_table("Megatron 2021, more GPUs")
    for few, many in ((rows[0], rows[2]), (rows[3], rows[5])):
        ratio = many.run.training.layout.ranks / few.run.training.layout.ranks
        theirs = ratio * many.seconds / few.seconds
        ours = ratio * many.predicted.seconds / few.predicted.seconds
        assert ratio == 4
        assert 1.06 < theirs < 1.10
        assert ours == pytest.approx(theirs, rel=0.035)


@pytest.mark.parametrize("row", published.steps.of_table("Megatron 2021, ten sizes"), ids=lambda row: row.name)
def test_seconds_are_those_of_the_runs_that_are_stored_already(row):
    run = published.runs.run(row.name.partition(",")[0])
    assert row.run.tokens / row.seconds / row.run.training.layout.ranks == pytest.approx(run.tokens_per_second)


@pytest.mark.parametrize("rows", [published.steps.of_table(table) for table in TABLES], ids=list(TABLES))
def test_layouts_use_the_gpus_of_the_row(rows):
    for row in rows:
        gpus = row.run.training.layout.ranks
        assert f"{gpus:,} GPUs" in row.name
        assert gpus <= row.run.cluster.gpus
        assert row.run.batch * row.run.training.tokens_per_sequence == row.run.tokens


def test_the_sizes_taken_for_nemos_models_give_the_flops_of_its_table():
    """NeMo 24.12 prints 765 and 750 TFLOP/s beside 23,406 and 5,851 tokens/s."""
    for row, printed in zip(published.steps.of_table("NeMo 24.12, H100, fp8"), (765, 750), strict=False):
        counted = flops.model_flops(row.spec, batch=1, sequence=row.sequence) / row.sequence
        assert counted * row.tokens_per_second == pytest.approx(printed * 1e12, rel=0.002)


def test_the_recipes_of_nvidia_print_the_utilisation_that_follows():
    """54.10 % for 70B on 64 GPUs, 53.54 % for 175B on 128, of 989 TFLOP/s."""
    for name, share in (("Llama 3 70B, 64 GPUs", 0.541), ("Megatron 175B, 128 GPUs", 0.5354)):
        row = next(row for row in published.steps.of_table("NVIDIA 2024, H100, bf16") if row.name == name)
        measured = row.predicted.flops_per_gpu * row.predicted.seconds / row.seconds
        assert measured / 989e12 == pytest.approx(share, rel=0.003)


def test_a_row_has_the_one_speed_that_is_printed():
    row = published.steps.STEPS[0]
    for speeds in ({"duration": 2.0}, {"rate": None}):
        with pytest.raises(ValueError, match="give the one that is printed"):
            replace(row, **speeds)


def test_an_unknown_table_is_refused():
    with pytest.raises(ValueError, match="ten sizes"):
        published.steps.of_table("none")


def test_megatrons_70_billion_parameters_have_a_head_of_their_own():
    """The table prints 69.8 billion."""
    (row,) = published.steps.of_table("Megatron-LM, H100, 70B")
    assert models.num_parameters(row.run.training.spec) / 1e9 == pytest.approx(69.8, abs=0.1)


def test_fsdp_gains_from_compilation_about_as_much_as_its_authors_measured():
    """16 % on one server, from the operations between products alone."""
    eager, compiled = published.steps.of_table("torchtitan, FSDP2, H100")[:2]
    assert eager.seconds / compiled.seconds == pytest.approx(1.157, abs=0.001)
    assert eager.predicted.seconds / compiled.predicted.seconds == pytest.approx(1.157, abs=0.05)


# Rows that need more than their GPUs have, by our count, and why they ran.
BEYOND = {
    "Megatron 529.6B, 640 GPUs": "DeepSpeed gathers single tensors, of 34 GB that we count for whole layers",
    "8,192 GPUs, sequences of 8,192": "Meta frees tensors early (section 3.3.2)",
    "16,384 GPUs, sequences of 8,192": "the same",
    "16,384 GPUs, sequences of 131,072": "the same",
    "Llama 2 13B, recomputed: none, 64 GPUs": "norms in one kernel (`norm_type`) would keep 7 GB less",
}


def test_what_ran_fits_or_it_is_known_why_not():
    steps = published.steps.STEPS
    assert len(steps) == 95
    beyond = [row for row in steps if not row.predicted.fits]
    assert [row.name for row in beyond] == [*BEYOND]
    fused = replace(beyond[-1].run.training.program, unfused=("rotary", "SwiGLU", "loss"))
    assert step.step(beyond[-1].run.by(fused)).fits


def test_bytes_meet_what_torch_reserved():
    """What the driver, NCCL and the workspaces take beside it, 1.3 GB, is in ours alone."""
    shares = {row.name: row.predicted.memory / row.nbytes for row in published.steps.STEPS if row.nbytes}
    assert len(shares) == 8
    assert (min(shares.values()), max(shares.values())) == pytest.approx((0.96, 1.07), abs=0.005)
    assert 77.0 * shares["compiled, 8 GPUs"] == pytest.approx(80.8, abs=0.05)  # the book prints it


def test_llama_3_in_eight_bits_fits_as_it_ran():
    """Megatron-Bridge's performance summary, 26.04.01: 70B on 64 H100, tp 4, pp 8, 5 chunks, 256 sequences."""
    (row,) = (
        each
        for each in published.steps.of_table("NVIDIA 2024, H100, fp8")
        if each.model == "Llama 3 70B" and each.gpus == 64
    )
    cut = replace(row, tp=4, pp=8, cp=1, chunks=5, batch=256)
    assert cut.predicted.fits
    assert not replace(cut, precision=None).predicted.fits


def test_torchtitans_own_limits_are_met():
    """With 2 sequences instead of 1 Llama 2 70B ran out of memory: its docs/performance.md, footnote 1."""
    (row,) = (each for each in published.steps.STEPS if each.name.startswith("Llama 2 70B, recomputed: by operation"))
    assert row.predicted.fits
    assert not replace(row, microbatch=2, batch=128).predicted.fits


def test_tensor_parallelism_of_torch_keeps_gathered_inputs_and_exponentials():
    """71.9 GiB: Table 4 of benchmarks/llama3_h100_202412_torchtitan.md, which the row names."""
    (row,) = (each for each in published.steps.STEPS if each.name == "compiled, fp8, 128 GPUs")
    sizes = {"gpus": 256, "tp": 8, "sequence_parallel": True, "batch": 512, "microbatch": 16}
    found = replace(row, model="Llama 3 70B", recomputation="full", **sizes).predicted.memory
    assert found / (71.9 * 2**30) == pytest.approx(0.935, abs=0.005)
