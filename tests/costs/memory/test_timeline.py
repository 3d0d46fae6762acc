"""Against counts on the reference model: test_memory_counted.py."""

from dataclasses import replace

import pytest

from shardlab.costs import memory
from shardlab.costs.facts import models
from shardlab.costs.memory import activations, shards
from shardlab.costs.memory import timeline as memory_timeline
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

GPT = Training(spec=models.published("GPT-2 small").spec, microbatch=2)
LLAMA = Training(spec=models.published("Llama 3 8B").spec, sequence=512)


@pytest.mark.parametrize("training", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_the_second_microbatch_peaks_at_what_a_rank_is_said_to_hold(training, recomputation):
    several = replace(training, num_microbatches=3, recomputation=recomputation)
    held = memory.per_rank(several)
    tensors = sum(held.values()) - held["overhead"]
    moments = memory_timeline.through_step(several)
    assert sum(memory_timeline.peak(moments).held.values()) == pytest.approx(tensors)
    alone = memory_timeline.through_step(replace(several, num_microbatches=1))
    assert sum(memory_timeline.peak(alone).held.values()) < tensors


@pytest.mark.parametrize("training", [GPT, LLAMA], ids=["gpt", "llama"])
def test_forward_fills_and_backward_drains(training):
    moments = memory_timeline.through_step(training)
    kept = [moment.held["activations"] + moment.held["logits"] for moment in moments]
    top = kept.index(max(kept))
    assert kept[: top + 1] == sorted(kept[: top + 1])
    assert kept[top:] == sorted(kept[top:], reverse=True)
    assert kept[0] == kept[-1] == 0
    gradients = [moment.held["gradients"] for moment in moments]
    assert gradients[top] == gradients[-1] == 0
    assert gradients[:-1] == sorted(gradients[:-1])
    whole = memory.states(training)
    assert gradients[-2] == whole["gradients"]
    assert {(m.held["parameters"], m.held["optimizer"]) for m in moments} == {(whole["parameters"], whole["optimizer"])}


def test_time_is_counted_in_layers():
    layer = shards.layer_parameters(GPT.spec, Layout())
    head = 50257 * 768 / layer
    moments = memory_timeline.through_step(GPT)
    assert moments[-1].time == pytest.approx(3 * (12 + head) + 1)  # the update takes 1
    again = memory_timeline.through_step(replace(GPT, recomputation="full"))
    assert again[-1].time == pytest.approx(moments[-1].time + 12)
    assert [moment.time for moment in again] == sorted(moment.time for moment in again)


def test_recomputation_lets_one_layer_rise_at_a_time():
    training = replace(GPT, recomputation="full")
    rises = [m for m in memory_timeline.through_step(training) if m.doing == "backward of the layer"][::2]
    again = sum(activations.whole_layer(training).values()) - sum(activations.layer(training).values())
    again += activations.layer_gradients(training)
    assert [moment.held["buffers"] for moment in rises] == [again] * 12


def test_bad_input_is_refused():
    for layout in (Layout(pp=2), Layout(dp=2, zero=2)):
        with pytest.raises(ValueError, match="use pp=1 and zero=0 or 1"):
            memory_timeline.through_step(replace(GPT, layout=layout))
