"""An interval of a flattened tensor is a few boxes, in order; a layout's ranks hold every number of a model."""

from collections import Counter
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding import cuts
from shardlab.sharding.layout import Layout
from shardlab.sharding.places import boxes, places

SPEC = TransformerSpec(
    vocab_size=10,
    context_length=8,
    hidden_size=16,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    ffn_size=20,
    style="llama",
)


def numbers(box, whole):
    """The numbers in a box of a whole tensor, in its order."""
    return whole[tuple(slice(each.start, each.stop) for each in box)].flatten().tolist()


@given(shape=st.lists(st.integers(1, 5), max_size=3), data=st.data())
def test_boxes_are_the_interval_in_its_order(shape, data):
    begin = data.draw(st.integers(0, prod(shape) - 1))
    end = data.draw(st.integers(begin + 1, prod(shape)))
    whole = torch.arange(prod(shape)).view(shape)
    found = list(boxes(tuple(map(range, shape)), begin, end))
    assert [n for box in found for n in numbers(box, whole)] == list(range(begin, end))
    assert len(found) <= max(1, 2 * len(shape) - 1)


def test_an_interval_that_is_not_in_the_piece_is_refused():
    with pytest.raises(ValueError, match="begin=3, end=7: a piece of 6 numbers has 0 to 6"):
        boxes((range(2), range(3)), 3, 7)


@pytest.mark.parametrize("zero", [0, 1, 3])
@pytest.mark.parametrize(("tp", "dp", "pp"), [(1, 1, 1), (2, 1, 1), (1, 3, 1), (2, 3, 2), (1, 1, 3), (4, 2, 1)])
def test_all_ranks_together_hold_every_number_as_often_as_the_layout_says(tp, dp, pp, zero):
    layout = Layout(tp=tp, dp=dp, pp=pp, zero=zero)
    found = places(SPEC, layout)
    assert len(found) == layout.ranks
    for name, cut in cuts.model(SPEC, tp).items():
        whole = torch.arange(prod(cut.shape)).view(cut.shape)
        held = Counter(n for rank in found for each, box in rank if each == name for n in numbers(box, whole))
        copies = (tp if cut.dim is None else cut.holders) * (1 if zero == 3 else dp)
        assert held == dict.fromkeys(range(prod(cut.shape)), copies), name


def test_zero_cuts_what_a_tensor_parallel_rank_holds_of_its_stage():
    rank = places(SPEC, Layout(tp=2, dp=2, pp=3, zero=3))[1]  # the right columns, the upper half of them
    assert ("blocks.0.attention.out.weight", (range(0, 8), range(8, 16))) in rank
    assert {name.split(".")[1] for name, _ in rank if name.startswith("blocks")} == {"0"}
    last = places(SPEC, Layout(dp=3, zero=3))[2]  # 256 numbers in pieces of 86: the last has 84
    assert [box for name, box in last if name == "blocks.0.attention.q.weight"] == [
        (range(10, 11), range(12, 16)),
        (range(11, 16), range(0, 16)),
    ]


def test_experts_that_ranks_share_are_refused():
    experts = Experts(num_experts=4, expert_size=10, per_token=2)
    spec = TransformerSpec(
        vocab_size=10, context_length=8, hidden_size=16, num_layers=1, num_heads=4, experts=experts, style="llama"
    )
    assert places(spec, Layout(dp=2))
    with pytest.raises(ValueError, match="ep=2, whole_experts=False: ranks hold different experts"):
        places(spec, Layout(dp=2, ep=2))
