"""Bytes by part equal the tables of the ZeRO papers, and summed over ranks they are the whole."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardlab.costs import memory
from shardlab.costs.facts import mixtures, models, recipes
from shardlab.costs.memory import activations, shards
from shardlab.costs.programs import NEMO_2024
from shardlab.costs.published.mixtures import LAYOUTS
from shardlab.costs.training import Training
from shardlab.costs.units import GB, TiB
from shardlab.sharding.layout import Layout, tensor_degrees

from .copies import held_again

# Rajbhandari et al. 2020, Table 1: GB on one rank for ZeRO stages 1, 2, 3, by billions of parameters and ranks.
ZERO_TABLE_1 = {
    7.5: {
        1: (120, 120, 120),
        4: (52.5, 41.3, 30),
        16: (35.6, 21.6, 7.5),
        64: (31.4, 16.6, 1.88),
        256: (30.4, 15.4, 0.47),
        1024: (30.1, 15.1, 0.12),
    },
    128: {
        1: (2048, 2048, 2048),
        4: (896, 704, 512),
        16: (608, 368, 128),
        64: (536, 284, 32),
        256: (518, 263, 8),
        1024: (513, 257, 2),
    },
    1000: {
        1: (16000, 16000, 16000),
        4: (7000, 5500, 4000),
        16: (4750, 2875, 1000),
        64: (4187, 2218, 250),
        256: (4046, 2054, 62.5),
        1024: (4011, 2013, 15.6),
    },
}
LLAMA = models.published("Llama 3 8B").spec
GPT = models.published("GPT-2 small").spec


def states(*args, **kwargs):
    return sum(memory.model_states(*args, **kwargs).values())


@pytest.mark.parametrize(("zero", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_figure_1_of_zero(zero, gigabytes):
    """https://arxiv.org/abs/1910.02054: 7.5e9 parameters, 64 ranks."""
    assert states(7.5e9, dp=64, zero=zero) / GB == pytest.approx(gigabytes, rel=0.015)


@pytest.mark.parametrize("billions", ZERO_TABLE_1)
@pytest.mark.parametrize("ranks", ZERO_TABLE_1[7.5])
def test_table_1_of_zero(billions, ranks):
    """To the last digit printed; the table cuts off some digits where it should round."""
    for zero, gigabytes in zip((1, 2, 3), ZERO_TABLE_1[billions][ranks], strict=True):
        digit = 0.051 if gigabytes < 100 else 1
        assert states(billions * 1e9, dp=ranks, zero=zero) / GB == pytest.approx(gigabytes, abs=digit)


def test_gpt_2_in_the_zero_paper():
    """Section 3.1: the 1.5 billion parameters take 3 GB in fp16, and all states at least 24 GB."""
    held = memory.states(Training(spec=models.published("GPT-2 XL").spec))
    assert held["parameters"] / GB == pytest.approx(3, abs=0.2)
    assert 24 < sum(held.values()) / GB < 25


# Rajbhandari et al. 2021, "ZeRO-Infinity", Figure 2a (https://arxiv.org/abs/2104.07857): layers, hidden size / 1024,
# model states. It says TB and means TiB.
ZERO_INFINITY = [(80, 10, 1.83), (100, 20, 9.16), (128, 25, 18.31), (195, 64, 182.81), (315, 160, 1845.70)]


@pytest.mark.parametrize(("layers", "width", "printed"), ZERO_INFINITY)
def test_zero_infinity_counts_20_bytes_and_tebibytes(layers, width, printed):
    """Gradients in 16 bits and once more in fp32; parameters are 12 h^2 a layer."""
    both = replace(recipes.MIXED, gradients=2 + 4)
    assert both.bytes_per_parameter == 20
    num_parameters = 12 * layers * (1024 * width) ** 2
    assert states(num_parameters, both) / TiB == pytest.approx(printed, abs=0.006)


@pytest.mark.parametrize("recipe", recipes.RECIPES.values(), ids=lambda recipe: recipe.name)
@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
def test_replicas_are_n_copies_and_zero_3_is_one(recipe, ranks):
    whole = recipe.bytes_per_parameter * 1e9
    assert ranks * states(1e9, recipe, dp=ranks) == pytest.approx(ranks * whole)
    assert ranks * states(1e9, recipe, dp=ranks, zero=3) == pytest.approx(whole)


layouts = st.builds(
    Layout, dp=st.sampled_from([1, 2, 6]), cp=st.sampled_from([1, 2]), pp=st.integers(1, 12), zero=st.integers(0, 3)
)


@settings(deadline=None)
@given(spec=st.sampled_from([LLAMA, GPT]), layout=layouts, recipe=st.sampled_from([*recipes.RECIPES.values()]),
       data=st.data())  # fmt: skip
def test_states_of_all_ranks_are_the_whole(spec, layout, recipe, data):
    """Each part as often as it is held: dp * cp times, or once from the ZeRO stage that cuts it."""
    layout = replace(layout, tp=data.draw(st.sampled_from(tensor_degrees(spec))))
    training = Training(spec=spec, layout=layout, recipe=recipe, sequence=96)
    held = models.num_parameters(spec) + sum(held_again(spec, layout).values())
    for part, cut_from in memory.CUT_FROM.items():
        if part == "gradients" and training.keeps_whole(0):
            continue  # some stages cut them, and the ends do not: the test below
        ranks = layout.tp * layout.replicas * sum(memory.states(training, stage)[part] for stage in range(layout.pp))
        copies = 1 if layout.zero >= cut_from else layout.replicas
        assert ranks == pytest.approx(copies * held * getattr(recipe, part))


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_stay_whole_where_a_stage_has_several_chunks(zero):
    """As `ranks.train.Trainer` keeps them: the docstring there, and what a test of its bytes finds."""
    one = Training(spec=LLAMA, layout=Layout(dp=4, pp=2, zero=zero), sequence=96, num_microbatches=4)
    several = replace(one, schedule="interleaved", chunks=2)
    whole = memory.states(replace(one, layout=replace(one.layout, zero=0)))["gradients"]
    cut, kept = (memory.states(each)["gradients"] for each in (one, several))
    assert kept == whole
    assert cut == whole / (4 if zero > 1 else 1)
    assert not memory.messages(several).get("gradients of head and layer")


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("tied", [False, True])
def test_gradients_stay_whole_at_both_ends_of_a_pipeline_that_share_an_embedding(zero, tied):
    """As in `ranks.train.Trainer`, which must add both ends' gradients before it cuts them."""
    spec = replace(models.published("GPT-2 XL").spec, tied_head=tied)
    training = Training(spec=spec, layout=Layout(pp=3, dp=4, zero=zero), num_microbatches=4)
    for stage in range(3):
        whole = sum(shards.parameters(spec, training.layout, stage).values()) * training.recipe.gradients
        kept = zero == 1 or (tied and stage != 1)
        assert memory.states(training, stage)["gradients"] == whole / (1 if kept else 4)
        assert training.keeps_whole(stage) == (kept and zero > 1)
    with pytest.raises(ValueError, match="stage"):
        training.keeps_whole(3)


@settings(deadline=None)
@given(
    spec=st.sampled_from([LLAMA, GPT]),
    layout=layouts,
    recomputation=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["flash", "stored"]),
    schedule=st.sampled_from(["1F1B", "GPipe", "naive"]),
    num_microbatches=st.sampled_from([1, 3, 16]),
    sequence=st.sampled_from([96, 960]),
)
def test_the_worst_stage_is_the_worst_of_all(spec, layout, **options):
    training = Training(spec=spec, layout=layout, **options)
    totals = [sum(memory.per_rank(training, stage).values()) for stage in range(layout.pp)]
    assert totals[memory.worst_stage(training)] == max(totals) == memory.total(training)
    for stage in range(layout.pp):
        held = memory.per_rank(training, stage)
        assert min(held.values()) >= 0
        assert (held["logits"] > 0) == (stage == layout.pp - 1)


@pytest.mark.parametrize(
    "cheaper",
    [
        {"recomputation": "selective"},
        {"recomputation": "full"},
        {"attention": "flash"},
        {"microbatch": 2},
        {"sequence": 512},
        {"recipe": recipes.recipe("mixed, 8-bit Adam")},
        {"dropout": False},
        {"layout": Layout(dp=8, zero=1)},
        {"layout": Layout(tp=2)},
        {"layout": Layout(pp=2)},
        {"layout": Layout(cp=2)},
    ],
    ids=str,
)
def test_what_saves_memory_saves_memory(cheaper):
    base = Training(spec=GPT, microbatch=4, attention="stored", dropout=True)
    changed = replace(base, **cheaper)
    assert memory.total(changed) < memory.total(base)


def test_activations_are_those_of_layers_microbatches_and_ends():
    training = Training(spec=GPT, layout=Layout(pp=5), num_microbatches=8, schedule="1F1B")
    parts = (activations.layer, activations.embedding, activations.head)
    layer, first, last = (sum(part(training).values()) for part in parts)
    logits = 4 * 1024 * 50257
    assert memory.kept(training, 0) == {"activations": 5 * (3 * layer + first), "logits": 0}
    assert memory.kept(training, 1) == {"activations": 4 * 3 * layer, "logits": 0}
    assert memory.kept(training, 4) == {"activations": 2 * layer + last - logits, "logits": logits}
    gpipe = replace(training, schedule="GPipe")
    assert memory.kept(gpipe, 0)["activations"] == 8 * (3 * layer + first)
    assert memory.kept(gpipe, 4)["logits"] == 8 * logits
    interleaved = replace(training, layout=Layout(pp=4), schedule="interleaved", chunks=3)
    assert memory.kept(interleaved, 1)["activations"] == (2 * 2 + 2 * 4 + 1) * layer


def test_buffers_have_names():
    """Of what backward needs for a moment only the larger is there: the loss's two gradients, or a layer at work."""
    training, logits = Training(spec=GPT, recomputation="full"), 4 * 1024 * 50257
    again = sum(activations.whole_layer(training).values()) - 2 * 1024 * 768
    again += activations.layer_gradients(training)
    assert memory.buffers(training) == {"loss": 2 * logits, "sequence parallelism": 0}
    first = replace(training, layout=Layout(pp=2))
    assert memory.buffers(first) == {"backward of a layer": again, "sequence parallelism": 0}
    gathered = memory.buffers(replace(training, layout=Layout(tp=4, sequence_parallel=True)))
    assert gathered["sequence parallelism"] == 2 * 1024 * 768


def test_messages_of_data_parallelism():
    def buffers(**options):
        return memory.buffers(Training(spec=LLAMA, recipe=recipes.MIXED, sequence=8, **options))

    layer = 2 * models.layer_parameters(LLAMA)
    ends = 2 * (2 * 128256 * 4096 + 4096)
    copies = buffers(layout=Layout(dp=2), program=replace(NEMO_2024, bucket_views=False))
    assert copies["buckets"] == 2 * models.num_parameters(LLAMA)  # torch's DDP: the size of all gradients
    assert buffers(layout=Layout(dp=2))["buckets"] == 0

    def gradients(spec, **degrees):
        setting = Training(spec=spec, recipe=recipes.MIXED, sequence=8, layout=Layout(dp=2, zero=2, **degrees))
        return [memory.buffers(setting, stage)["gradients of head and layer"] for stage in range(setting.layout.pp)]

    assert gradients(LLAMA) == [layer + 2 * 128256 * 4096]
    assert gradients(LLAMA, pp=2) == [layer, layer + 2 * 128256 * 4096]
    assert gradients(GPT) == [2 * (models.layer_parameters(GPT) + 50257 * 768)]  # the tied embedding's
    assert buffers(layout=Layout(dp=2, zero=3))["gathered layers"] == 2 * layer + ends
    assert buffers(layout=Layout(cp=2, zero=3)) == buffers(layout=Layout(dp=2, zero=3)) | {
        name: nbytes for name, nbytes in buffers(layout=Layout(cp=2)).items() if name != "buckets"
    }
    assert "buckets" not in buffers(layout=Layout(zero=3), program=replace(NEMO_2024, bucket_views=False))


# ---- published mixtures of experts -----------------------------------------------------------------------------------


def weights_and_gradients(model, layout, stage):
    recipe = recipes.recipe("mixed, fp32 gradients")
    held = memory.states(Training(spec=mixtures.published(model).spec, layout=layout, recipe=recipe), stage)
    return held["parameters"] + held["gradients"]


def test_kimi_k2_fills_its_gpus_as_its_report_says():
    """Section 2.4.2: 6 TB for weights and fp32 gradients, and some 30 GB on each of 256 GPUs for all states.

    On many GPUs the states of the optimizer are negligible.
    """
    layout = LAYOUTS["Kimi K2"]
    assert 6 * models.num_parameters(mixtures.published("Kimi K2").spec) == pytest.approx(6e12, rel=0.03)
    held = [weights_and_gradients("Kimi K2", layout, stage) for stage in range(layout.pp)]
    assert sum(held) / len(held) == pytest.approx(30e9, rel=0.15)


@pytest.mark.parametrize(("ep", "nbytes"), [(1, 250e9), (64, 10e9)])
def test_without_expert_parallelism_nothing_of_deepseek_fits(ep, nbytes):
    """16 stages alone leave 250 GB of weights and gradients; 64-way expert parallelism leaves 10."""
    layout = Layout(dp=128, pp=16, ep=ep, zero=1)
    assert weights_and_gradients("DeepSeek-V3", layout, stage=1) == pytest.approx(nbytes, rel=0.12)


def test_bad_input_is_refused():
    for call, message in [
        (lambda: memory.model_states(1e9, zero=4), "stages 0, 1, 2, 3, not 4"),
        (lambda: memory.model_states(1e9, dp=0), "dp=0 must be a whole number of at least 1"),
        (lambda: memory.model_states(-1), "num_parameters=-1 must be a finite number of at least 0"),
        (lambda: memory.per_rank(Training(spec=GPT), 1), "stage=1 must be 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
