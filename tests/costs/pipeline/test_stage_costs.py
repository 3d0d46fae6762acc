"""The pieces are the whole model, as a step times and memory counts it; the best cut is the published one."""

from dataclasses import replace

import pytest

from shardlab.costs import memory, programs, step
from shardlab.costs.facts import hardware, models, network
from shardlab.costs.pipeline import balance, stage_costs
from shardlab.costs.step import layer_time
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout, stages

H100 = hardware.chip("H100 SXM 80 GB")
LAYOUTS = [
    ("Llama 3 8B", Layout(pp=4), {"num_microbatches": 8}),
    ("GPT-2 XL", Layout(pp=2), {"num_microbatches": 3, "dropout": True}),
    ("GPT-2 XL", Layout(pp=1), {"microbatch": 2}),
    ("GPT-3 175B", Layout(tp=8, pp=8, sequence_parallel=True), {"schedule": "GPipe", "num_microbatches": 5}),
]


def measured(training):
    """The cut of `layout.stages`, with the embedding on its first stage and the head on its last."""
    ends = [stage.stop + 1 for stage in stages(training.spec.num_layers, training.layout.pp)]
    ends[-1] += 1
    cut = [range(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    found = stage_costs.pieces(training, H100), cut, stage_costs.held(training), stage_costs.beside(training)
    return balance.measure(*found)


@pytest.mark.parametrize(("name", "layout", "options"), LAYOUTS)
@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_the_pieces_are_the_whole(name, layout, options, recomputation):
    """Every stage takes the bytes that `memory` counts, and all together the seconds of a step that sends nothing."""
    options = {**options, "recomputation": recomputation, "program": programs.BOOK}
    training = Training(spec=models.published(name).spec, layout=layout, sequence=512, **options)
    cut = measured(training)
    assert cut.stages[-1].start < cut.stages[-1].stop - 1 == training.spec.num_layers + 1  # not the head alone
    for stage, nbytes in enumerate(cut.nbytes):
        assert nbytes == pytest.approx(sum(memory.per_rank(training, stage).values()), rel=1e-12)
    cluster = network.uniform(max(2, layout.ranks), hardware.link("NVLink 4"), H100)
    parts = step.step(step.Run(training=training, cluster=cluster)).parts
    computing = sum(parts[each] for each in ("matrices", "attention", "norms and residuals", "recomputation"))
    if layout.tp == 1:  # else the ends wait for messages
        computing += parts["embedding and head"]
        assert training.num_microbatches * sum(cut.seconds) / layout.pp == pytest.approx(computing)


def test_what_is_recomputed_takes_its_time():
    """A layer that runs forward twice takes a forward longer; the head runs once (Narayanan et al. 2021, eq. 3)."""
    training = Training(spec=models.published("GPT-3 175B").spec)
    kept, again = (
        stage_costs.pieces(replace(training, recomputation=way), H100) for way in ("none", "full")
    )
    assert again[1].seconds == pytest.approx(kept[1].seconds + layer_time.layer(training, H100).forward.seconds)
    assert (again[0].seconds, again[-1].seconds) == (kept[0].seconds, kept[-1].seconds)


def on_gpus(count, num_microbatches, recomputation="none", name="GPT-3 175B", **options):
    options |= {"num_microbatches": num_microbatches, "recomputation": recomputation, "program": programs.BOOK}
    return Training(spec=models.published(name).spec, layout=Layout(pp=count), **options)


def test_the_best_cut_of_llama_3_405b_is_that_of_its_authors():
    """One layer less on the first and on the last of 16 stages: 126 layers, Llama Team 2024, section 3.3.2."""
    training = on_gpus(16, 32, name="Llama 3 405B", sequence=8192)
    found = balance.split(stage_costs.pieces(training, H100), stage_costs.held(training))
    ends = [1, *[0] * 14, 1]
    assert [len(stage) - end for stage, end in zip(found.stages, ends, strict=True)] == [7, *[8] * 14, 7]


def test_a_large_vocabulary_makes_the_head_slower_than_two_layers():
    found = stage_costs.pieces(on_gpus(4, 4, name="Llama 3 8B", sequence=8192), H100)
    assert found[-1].seconds / found[1].seconds == pytest.approx(2.09, abs=0.01)


def test_one_more_gpu_takes_a_ninth_off_the_slowest_stage_of_gpt_3():
    """As the chapter says; it also says for which of its four cases 48 GPUs of 80 GB are enough."""
    first, more = (stage_costs.split(on_gpus(count, count, "full"), H100) for count in (48, 49))
    assert 1 - max(more.seconds) / max(first.seconds) == pytest.approx(1 / 9, abs=0.005)
    assert len(first.stages[-1]) == 3  # two layers and the head
    assert {len(stage) for stage in more.stages} == {2}
    stage_costs.split(on_gpus(48, 1), H100)
    for count, num_microbatches in ((47, 1), (48, 48)):
        with pytest.raises(ValueError, match="cannot fit"):
            stage_costs.split(on_gpus(count, num_microbatches), H100)
