"""The plain file of ring attention: equal to one process, by as many bytes as predicted, without all the keys."""

import inspect
import sys

import cloudpickle
import pytest
import torch

from shardlab.costs import context_parallel as costs
from shardlab.launch import run
from shardlab.plain import ring_attention
from shardlab.ranks.observe import ledger

from ..rank_types import rank_type
from . import lesson, sequences

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(ring_attention)
CASES = sequences.ORDERS


def train(group, zig_zag, case, **options):
    return sequences.train(group, "ring_attention", SOURCE, case, zig_zag=zig_zag, **options)


def gradients(group, zig_zag, case):
    context = sequences.context_of(group, case, zig_zag)

    def attend(q, k, v):
        return ring_attention.ring(q, k, v, context.mask, group)

    return sequences.first_gradients(group, context, attend, case)


def everything(group):
    return {case: (train(group, *case), gradients(group, *case)) for case in CASES}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def found(request):
    return run(everything, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parity(
    "context_parallel", "ring attention's plain file trains the transformer like one process: parameters, each step"
)
def test_the_plain_file_equals_one_process(found, case):
    for rank in found:
        lesson.assert_same_training(rank[case][0], sequences.alone(*case[1]))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parity("context_parallel", "ring attention's plain file: the loss and every gradient of one process")
def test_loss_and_gradients_equal_those_of_one_process(found, case):
    sequences.assert_first_gradients([rank[case][1] for rank in found], case[1])


def bytes_of(group, style):
    case = (style, False, sequences.ONE)
    return train(group, True, case, read=lesson.wire_bytes, around=ledger.Ledger, dtype=torch.float32)


@pytest.mark.parametrize("style", lesson.SPECS)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.counted("context_parallel", "bytes that ring attention's plain file sends in a step")
def test_a_step_sends_what_the_formula_says(style, ranks):
    """The plain ring sends keys and values home, too: two blocks more in forward, and four in backward."""
    spec = lesson.SPECS[style]
    sizes = {"length": sequences.LENGTH, "ranks": ranks, "batch": lesson.SAMPLES, "element": 4}
    attention = costs.attention(spec, **sizes)
    layers = spec.num_layers * (sum(costs.sent_bytes(attention, "ring").values()) + (2 + 4) * attention.block)
    parameters = 4 * sum(p.numel() for p in lesson.build(style, False, seed=0).parameters())
    predicted = layers + 2 * (ranks - 1) / ranks * parameters
    for steps in run(bytes_of, style, world_size=ranks):
        assert steps == pytest.approx([predicted] * lesson.STEPS, abs=1e-6)


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (what stands there, what stands there then)
    "parts are merged without rescaling": ("y = y * (lse - new).exp()", "y = y"),
    "each block has its own softmax": (
        "torch.logaddexp(lse, of_block)",
        "of_block.nan_to_num(neginf=0)",
    ),
    "the backward ring reads stale keys": (
        "block, gradient = pass_on(both, ctx.group)",
        "gradient = pass_on(gradient, ctx.group)",
    ),
    "gradients stay where they are computed": (
        "block, gradient = pass_on(both, ctx.group)",
        "block = pass_on(block, ctx.group)",
    ),
    "the ring turns the other way": (
        "to=after, source=before",
        "to=before, source=after",
    ),
    "masks come in the order of ranks": ("source = group.rank() - turn", "source = turn"),
    "the mask is that of the next block": ("source = group.rank() - turn", "source = group.rank() - turn - 1"),
    "the softmax's sum has no gradient": ("(dp - shared)", "dp"),
    "backward looks at hidden keys": (
        "p = (scores - lse).exp()",
        "p = (q @ k.mT - lse).exp()",
    ),
    "one query head of a group counts": (
        "x.sum(2, keepdim=True)",
        "x[:, :, :1]",
    ),
    "scores are not scaled": ("q = q / q.shape[-1] ** 0.5", "q = q"),
    "nobody divides": ("group, 1 / group.size())", "group, 1)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    case = "llama", False, sequences.SEVERAL
    found = lesson.verdict(sequences.right, "ring_attention", lesson.changed(SOURCE, *WRONG[what]), case, {})
    assert found is False, found
