"""The plain file of context parallelism: equal to one process in two ways, by as many bytes as predicted."""

import inspect
import sys

import cloudpickle
import pytest
import torch

from shardlab.costs import context_parallel as costs
from shardlab.launch import RankError, run
from shardlab.plain import context_parallel
from shardlab.ranks.observe import ledger

from ..rank_types import rank_type
from . import lesson, sequences

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

GATHERED = inspect.getsource(context_parallel)
ULYSSES = lesson.changed(GATHERED, "attend = context.gathered ", "attend = context.ulysses ")
SOURCES = {"gathered": GATHERED, "ulysses": ULYSSES}
CASES = [(way, *order) for way in SOURCES for order in sequences.ORDERS]


def train(group, way, zig_zag, case, **options):
    return sequences.train(group, "context_parallel", SOURCES[way], case, zig_zag=zig_zag, **options)


def gradients(group, way, zig_zag, case):
    context = sequences.context_of(group, case, zig_zag)
    return sequences.first_gradients(group, context, getattr(context, way), case)


def everything(group):
    return {case: (train(group, *case), gradients(group, *case)) for case in CASES}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def found(request):
    return run(everything, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parity(
    "context_parallel",
    "context parallelism's plain file trains the transformer like one process: parameters, each step",
)
def test_the_plain_file_equals_one_process(found, case):
    for rank in found:
        lesson.assert_same_training(rank[case][0], sequences.alone(*case[2]))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parity("context_parallel", "context parallelism's plain file: the loss and every gradient of one process")
def test_loss_and_gradients_equal_those_of_one_process(found, case):
    sequences.assert_first_gradients([rank[case][1] for rank in found], case[2])


def test_contiguous_and_zig_zag_places():
    def call(group):
        orders = context_parallel.contiguous(12, group), context_parallel.zig_zag(12, group)
        return [order.chunk(group.size())[group.rank()].tolist() for order in orders]

    contiguous, zig_zag = zip(*run(call, world_size=3), strict=True)
    assert contiguous == ([0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11])
    assert zig_zag == ([0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7])


# ---- predicted, counted ----------------------------------------------------------------------------------------------


def bytes_of(group, way, style):
    case = (style, False, sequences.ONE)
    return train(group, way, True, case, read=lesson.wire_bytes, around=ledger.Ledger, dtype=torch.float32)


@pytest.mark.parametrize("style", lesson.SPECS)
@pytest.mark.parametrize("way", SOURCES)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.counted("context_parallel", "bytes that context parallelism's plain file sends in a step")
def test_a_step_sends_what_the_formula_says(style, way, ranks):
    spec = lesson.SPECS[style]
    sizes = {"length": sequences.LENGTH, "ranks": ranks, "batch": lesson.SAMPLES, "element": 4}
    layers = spec.num_layers * sum(costs.sent_bytes(costs.attention(spec, **sizes), way).values())
    parameters = 4 * sum(p.numel() for p in lesson.build(style, False, seed=0).parameters())
    predicted = layers + 2 * (ranks - 1) / ranks * parameters
    for steps in run(bytes_of, way, style, world_size=ranks):
        assert steps == pytest.approx([predicted] * lesson.STEPS, abs=1e-6)


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (way, what stands there, what stands there then, what the launcher reports)
    "positions start at zero on every rank": (
        "gathered",
        "locate=lambda _: context.positions",
        "locate=lambda _: context.mine.argsort()",
        None,
    ),
    "positions do not restart with a document": (
        "gathered",
        "self.mine - mine(starts)",
        "self.mine",
        None,
    ),
    "documents see each other": ("gathered", "starts[:, None] <= order", "0 * starts[:, None] <= order", None),
    "a query does not see itself": ("gathered", "order <= order[:, None]", "order < order[:, None]", None),
    "queries see what comes after them": ("ulysses", "order <= order[:, None]", "(order == order)[None]", None),
    "the mask of the first rank": ("gathered", "mine(self.seen)", "self.seen.chunk(group.size())[0]", None),
    "keys in the order of the sequence": (
        "gathered",
        "not_later = order <= order[:, None]",
        "not_later = order.sort()[0] <= order[:, None]",
        None,
    ),
    "nobody divides": ("gathered", "group, 1 / group.size())", "group, 1)", None),
    "targets are not those of the inputs": ("gathered", "context.mine + 1]", "context.mine]", None),
    "other ranks' gradients are dropped": (
        "gathered",
        "comm.reduce_scatter(partial, ctx.group)",
        "partial[ctx.group.rank()][None]",
        None,
    ),
    "values are not gathered": ("gathered", "v = GatherParts.apply(v, self.group)", "v = v", "RuntimeError|size"),
    "heads come back in another order": (
        "ulysses",
        "AllToAll.apply(y, self.group, 2, 1)",
        "AllToAll.apply(y.flip(1), self.group, 2, 1)",
        None,
    ),
    "gradients are exchanged the same way again": (
        "ulysses",
        "ctx.way_back = group, join, split",
        "ctx.way_back = group, split, join",
        "RuntimeError|shape|size",
    ),
}



@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    (way, old, new, report), case = WRONG[what], ("gpt2", False, sequences.SEVERAL)
    found = lesson.verdict(sequences.right, "context_parallel", lesson.changed(SOURCES[way], old, new), case, {})
    assert lesson.noticed(found, report), found


def test_a_length_that_does_not_split_is_refused():
    with pytest.raises(RankError, match="14 tokens do not split into 6 parts; pad them"):
        run(lambda group: context_parallel.zig_zag(14, group), world_size=3)
