"""ZeRO's bytes against the paper and against closed forms."""

from dataclasses import replace

import pytest

from shardlab.costs import memory, zero
from shardlab.costs.facts import models, recipes
from shardlab.costs.training import Training
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

GPT, LLAMA = models.published("GPT-2 XL").spec, models.published("Llama 3 8B").spec


def training(stage, ranks=64, spec=LLAMA, recipe="mixed, 16-bit gradients", **options):
    layout = Layout(dp=ranks, zero=stage, **{k: options.pop(k) for k in ("tp", "pp") if k in options})
    return Training(spec=spec, layout=layout, recipe=recipes.recipe(recipe), sequence=1024, **options)


# ---- bytes ---------------------------------------------------------------------------------------------------------


def test_states_of_the_papers_figure():
    """Rajbhandari et al. 2020, Figure 1: 7.5 billion parameters on 64 ranks: 120, 31.4, 16.6 and 1.9 GB."""
    for stage, gigabytes in enumerate((120, 31.4, 16.6, 1.9)):
        nbytes = sum(memory.model_states(7.5e9, dp=64, zero=stage).values())
        assert nbytes / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [1, 3, 64])
def test_states_are_those_of_memory_and_padding(stage, ranks):
    setting = training(stage, ranks)
    more = {part: nbytes - memory.states(setting)[part] for part, nbytes in zero.states(setting).items()}
    count = zero.padding(setting)
    assert 0 <= count < ranks * (LLAMA.num_layers + 1)
    assert sum(zero.buffers(setting)) == models.num_parameters(LLAMA)
    held = {"parameters": 2, "gradients": 2 * (stage >= 2), "optimizer": 12}
    for part, number in held.items():
        cut = ranks if stage >= memory.CUT_FROM[part] else 1
        assert more[part] == pytest.approx(number * count / cut, abs=1e-3)


def test_padding_fills_the_last_piece():
    assert [zero.padded(numel, 4) for numel in (0, 1, 4, 5)] == [0, 4, 4, 8]


def test_an_all_reduce_is_cut_in_two_and_parameters_cost_half_as_much_again():
    """Section 7 of the paper: 2, 2, 2 and 3 times the parameters; here less, for what is in no layer stays whole."""
    numbers = models.num_parameters(LLAMA)
    for stage, volume in ((0, 2), (1, 2), (2, 2)):
        sent = sum(zero.sent_bytes(training(stage)).values())
        assert sent == pytest.approx(volume * 2 * numbers * 63 / 64, rel=1e-6)
        assert zero.ratio(training(stage)) == pytest.approx(1, rel=1e-6)
    rest = 2 * LLAMA.vocab_size * LLAMA.hidden_size + LLAMA.hidden_size
    sent = sum(zero.sent_bytes(training(3)).values())
    assert sent == pytest.approx((3 * numbers - rest) * 2 * 63 / 64, rel=1e-6)
    assert 1.4 < zero.ratio(training(3)) < 1.5


@pytest.mark.parametrize(
    ("stage", "hold", "times"), [(0, False, 1), (1, False, 1), (2, False, 3), (2, True, 1), (3, False, 1), (3, True, 1)]
)
def test_microbatches(stage, hold, times):
    """Five of them: stage 2 sends (5 + 1)/2 as much; stage 3 five times, but for gradients that are held."""
    one, five = (training(stage, num_microbatches=count) for count in (1, 5))
    sent, before = zero.sent_bytes(five, hold=hold), zero.sent_bytes(one)
    if stage < 3:
        assert sum(sent.values()) == pytest.approx(times * sum(before.values()))
    else:
        assert {part: nbytes / before[part] for part, nbytes in sent.items()} == pytest.approx(
            {"gather in forward": 5, "gather in backward": 5, "cut gradients": 1 if hold else 5}
        )


def test_one_rank_sends_nothing():
    assert all(sum(zero.sent_bytes(training(stage, 1)).values()) == 0 for stage in range(4))


def test_what_is_whole_for_a_moment_is_what_memory_counts_of_the_parameters():
    setting = training(3)
    assert zero.padding(setting) == 0
    gathered = memory.buffers(setting)["gathered layers"]
    assert zero.whole_for_a_moment(setting) == {"parameters": gathered, "gradients": gathered}
    assert zero.whole_for_a_moment(training(2)) == {"parameters": 0, "gradients": gathered}
    assert zero.whole_for_a_moment(training(1)) == {"parameters": 0, "gradients": 0}


def test_pieces_of_tensor_and_pipeline_parallelism_are_cut_in_turn():
    parts = [zero.states(training(3, 4, tp=2, pp=4), stage) for stage in range(4)]
    whole = 2 * 4 * sum(sum(part.values()) for part in parts)
    assert 16 * models.num_parameters(LLAMA) < whole < 1.001 * 16 * models.num_parameters(LLAMA)


@pytest.mark.parametrize("layout", [Layout(dp=2, ep=2, zero=1), Layout(dp=2, zero=1)])
def test_layers_that_differ_and_experts_with_replicas_of_their_own_are_refused(layout):
    experts = Experts(num_experts=4, per_token=2, expert_size=8)
    sizes = {"vocab_size": 64, "context_length": 16, "hidden_size": 16, "num_layers": 4, "num_heads": 4}
    mixture = TransformerSpec(**sizes, style="llama", experts=experts)
    zero.sent_bytes(Training(spec=mixture, layout=replace(layout, ep=1)))
    if layout.ep == 1:
        mixture = replace(mixture, num_dense=1, ffn_size=64)
    with pytest.raises(ValueError, match=r"use ep=1 and num_dense=0, or memory\.states"):
        zero.sent_bytes(Training(spec=mixture, layout=layout))
