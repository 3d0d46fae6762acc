"""Both engines on a cluster: what they hold and how long they take, against counts by hand and published steps."""

from dataclasses import replace

import pytest

from shardlab.costs import memory
from shardlab.costs.facts import mixtures, models, nodes
from shardlab.costs.generation.engines import TwoEngines
from shardlab.costs.published.engines import ENGINE_STEPS
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

LENGTHS = [400, 100, 100, 3000, 200, 900, 50, 2500] * 16
SPEC = models.published("Llama 3 8B").spec
MIXTURE = mixtures.published("Qwen3-30B-A3B").spec


ONE, CUT = Layout(), Layout(zero=3)


def engines(spec=SPEC, trainer=CUT, copy=ONE, num_nodes=1, **more):
    more = {"prompt": 200, "lengths": LENGTHS, **more}
    training = Training(spec=spec, layout=trainer, recomputation="full")
    return TwoEngines(training=training, copy=copy, cluster=nodes.cluster("DGX H100", num_nodes), **more)


def test_in_turn_everything_adds_up_and_apart_the_slower_decides():
    both = engines()
    *parts, whole = both.step().values()
    assert whole == sum(parts)
    apart = both.step(2)
    assert apart["step"] == max(apart["generate"] + apart["hand over"], apart["train"])


@pytest.mark.parametrize("tp", [1, 2])
def test_a_mixture_trains_on_the_experts_that_are_chosen(tp):
    """Between what 10 FLOPs for each active weight and token take at the peak, and what all weights would take."""
    both = engines(MIXTURE, Layout(dp=4, tp=tp, ep=4, zero=1, sequence_parallel=tp > 1), Layout(tp=2))
    tokens = sum(LENGTHS) + 200 * len(LENGTHS)
    seconds = [10 * size * tokens / (8 * both.cluster.node.chip.peak_flops) for size in (3.0e9, 30.5e9)]
    assert seconds[0] < both.step()["train"] < seconds[1]


def test_time_follows_the_mean_and_memory_the_longest_text():
    both = engines()
    assert both.trainer().tokens_per_sequence == 200 + sum(LENGTHS) / len(LENGTHS) + 0.75
    longer = engines(lengths=[7000 if length == 3000 else length for length in LENGTHS])
    assert sum(longer.held()["train"].values()) > sum(both.held()["train"].values())
    alone = replace(both.trainer(), sequence=3200)
    assert sum(both.held()["train"].values()) == pytest.approx(memory.total(alone))
    packed = replace(both.training, microbatch=16)
    assert sum(replace(both, training=packed).held()["train"].values()) > sum(both.held()["train"].values())


def test_the_margin_leaves_with_the_trainer_and_contexts_stay():
    held = engines().held()
    assert held["train"]["overhead"] > 0
    assert sum(held["generate"].values()) == pytest.approx(0.9 * 80e9 + held["generate"]["beside"])


def test_a_prompt_is_read_once_for_all_its_answers():
    reads = [engines(answers=answers).step()["generate"] for answers in (1, 2, 128)]
    assert reads[0] - reads[1] == pytest.approx(64 / 63 * (reads[1] - reads[2]))
    assert reads[2] > engines(prompt=1).step()["generate"]


def test_one_node_hands_over_by_nvlink_and_several_by_cards():
    one, two = (engines(num_nodes=n, copy=Layout(tp=4)).step(8 * n - 4)["hand over"] for n in (1, 2))
    assert one < two


def test_a_rank_takes_in_what_it_holds():
    """Ranks of dp hold the same weights, and ranks of ep all but the experts."""
    copies = [Layout(tp=4), Layout(dp=2, tp=4)]
    alike = [engines(num_nodes=2, copy=copy).step(8)["hand over"] for copy in copies]
    assert alike[0] == alike[1]
    dense, experts = 1.54e9, 28.99e9  # weights
    ep = engines(MIXTURE, Layout(dp=8, ep=8, zero=1), Layout(dp=8, ep=8), num_nodes=2).step(8)["hand over"]
    tp = engines(MIXTURE, Layout(dp=8, ep=8, zero=1), Layout(tp=8), num_nodes=2).step(8)["hand over"]
    assert ep / tp == pytest.approx((dense + experts / 8) / ((dense + experts) / 8), rel=0.1)


def test_eight_bits_travel_in_half_of_the_time():
    seconds = [engines(num_nodes=2, element=element).step(8)["hand over"] for element in (1, 2)]
    assert seconds[1] / seconds[0] == pytest.approx(2, rel=0.01)


def test_a_plan_that_recomputes_some_layers_is_timed():
    both = engines()
    some = replace(both, training=replace(both.training, recomputed_layers=8))
    assert some.step()["train"] < both.step()["train"]


def test_only_numbers_that_divide_are_possible():
    both = engines(trainer=Layout(tp=4, zero=1), copy=Layout(tp=2), num_nodes=2)
    assert both.possible == [4, 8, 12]
    with pytest.raises(ValueError, match=r"generators=6 leave 10 of 16 GPUs, .* a multiple of .* = 4"):
        both.step(6)
    with pytest.raises(ValueError, match="5 GPUs do not divide into copies of 2"):
        both.texts(5)


def test_the_best_is_the_shortest_that_fits():
    both = engines()
    fitting = [n for n in (0, *both.possible) if both.fits(n)]
    assert 7 in both.possible
    assert 7 not in fitting
    assert both.step(both.best)["step"] == min(both.step(n)["step"] for n in fitting)
    large = engines(models.published("Llama 3 70B").spec, Layout(tp=8), Layout(tp=8))
    assert (large.possible, large.best) == ([], None)


@pytest.mark.parametrize("row", ENGINE_STEPS, ids=lambda row: row.model)
def test_published_steps_take_two_to_six_times_the_least(row):
    assert 2 < row.in_turn / row.bound["step"] < 6
