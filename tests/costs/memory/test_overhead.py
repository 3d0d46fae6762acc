"""What a process takes beside its tensors: context, workspaces, NCCL's buffers, and a margin."""

from dataclasses import replace

import pytest

from shardlab.costs import memory
from shardlab.costs.facts import models
from shardlab.costs.memory import overhead
from shardlab.costs.program import MARGIN
from shardlab.costs.programs import NEMO_2024
from shardlab.costs.training import Training
from shardlab.costs.units import MiB
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

XL = Training(spec=models.published("GPT-2 XL").spec)


def test_one_gpu_needs_no_communicator():
    assert overhead.fixed(XL) == {"CUDA context": 543 * MiB, "workspaces": 64 * MiB, "communicators": 0}


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        (Layout(), []),
        (Layout(dp=8, zero=3), [8]),
        (Layout(tp=5, dp=2), [5, 2, 10]),
        (Layout(tp=5, cp=2, pp=2, dp=4), [5, 2, 2, 4, 80]),
    ],
    ids=str,
)
def test_each_axis_has_a_communicator_and_all_ranks_another(layout, ranks):
    training = replace(XL, layout=layout)
    assert sorted(overhead.communicators(training)) == sorted(ranks)
    nbytes = sum(544 if each == 2 else 688 for each in ranks) * MiB
    assert overhead.fixed(training)["communicators"] == nbytes


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [
        (Layout(dp=8, ep=2), [8, 2, 4]),
        (Layout(dp=8, ep=2, tp=2), [2, 8, 2, 4, 16]),
        (Layout(dp=8, ep=2, tp=2, sequence_parallel=True, whole_experts=True), [2, 8, 4, 4, 16]),
        (Layout(dp=2, tp=2, sequence_parallel=True, whole_experts=True), [2, 2, 4]),  # experts are dealt to tp
    ],
    ids=str,
)
def test_experts_have_two_communicators_of_their_own(layout, ranks):
    experts = Experts(num_experts=8, per_token=2, expert_size=8)
    sizes = {"vocab_size": 40, "context_length": 32, "hidden_size": 16, "num_layers": 2, "num_heads": 4}
    training = Training(spec=TransformerSpec(**sizes, experts=experts), layout=layout)
    assert overhead.communicators(training) == ranks


@pytest.mark.parametrize("margin", [0, MARGIN, 0.3])
def test_the_margin_is_a_share_of_the_tensors(margin):
    training = replace(XL, program=replace(NEMO_2024, margin=float(margin)))
    held = memory.per_rank(training)
    tensors = sum(held.values()) - held["overhead"]
    assert held["overhead"] == pytest.approx(sum(overhead.fixed(training).values()) + margin * tensors)
    assert memory.total(training) == sum(held.values())


def test_a_margin_is_a_number_of_at_least_0():
    with pytest.raises(ValueError, match=r"margin=-0\.1 must be a finite number of at least 0"):
        replace(NEMO_2024, margin=-0.1)
