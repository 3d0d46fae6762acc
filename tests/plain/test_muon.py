"""The plain file of Muon: four ways to orthogonalise matrices that are cut, each equal to one process."""

import functools
import inspect
import sys

import cloudpickle
import pytest
import torch

from shardlab.costs.zero import muon as costs
from shardlab.launch import run
from shardlab.plain import muon
from shardlab.ranks.observe import ledger

from ..rank_types import rank_type
from . import lesson

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # so that no rank need import pytest

SOURCE = inspect.getsource(muon)
NAMES = {"Redundant": "redundant", "Gathered": "gathered", "Owned": "owned", "AllToAll": "all-to-all"}
WAYS = tuple(NAMES)
CASES = [(way, case) for way in WAYS for case in lesson.CASES]


def of_way(source, way):
    return lesson.changed(source, "muon.RedundantMuon(", f"muon.{way}Muon(")


def train(group, way, case, source=SOURCE, read=lambda variables, _: lesson.parameters(variables["model"]), **options):
    return lesson.follow(group, "muon", of_way(source, way), case, read, **options)


def nearest(x):
    """Orthogonalise by singular values, each of which the polynomial changes by itself."""
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    s = s / (s.norm() + 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return u * s @ v


@functools.cache
def alone(*case):
    """One process that sees all samples."""
    model, history = lesson.build(*case, seed=0), []
    matrices = [p for p in model.blocks.parameters() if p.requires_grad and p.dim() == 2]
    momentum = {}
    for step in range(lesson.STEPS):
        model.zero_grad()
        batch = lesson.batch_of(step)
        model(batch[:, :-1], batch[:, 1:]).backward()
        for p in matrices:
            momentum[p] = 0.95 * momentum[p] + p.grad if p in momentum else p.grad.clone()
            p.data -= 0.02 * nearest(momentum[p])
        history.append(lesson.parameters(model))
    return history


def everything(group):
    return {case: train(group, *case) for case in CASES}


@pytest.fixture(scope="module", params=lesson.WORLD_SIZES)
def found(request):
    return run(everything, world_size=request.param, ranks=rank_type(request.param))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parity("zero", "Muon in pieces, four ways: parameters of one process, each step")
def test_every_way_equals_one_process(found, case):
    for rank in found:
        for mine, other in zip(rank[case], alone(*case[1]), strict=True):
            for name in other:
                torch.testing.assert_close(mine[name], other[name], rtol=0, atol=1e-10)


def held(variables, _):
    """Numbers of momentum that this rank keeps."""
    return sum(x.numel() for x in variables["optimizer"].momentum.values())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.counted("zero", "numbers of momentum that each way of Muon keeps on a rank")
def test_what_each_way_keeps(way):
    shapes = [tuple(p.shape) for p in lesson.build("llama", False, seed=0).blocks.parameters() if p.dim() == 2]
    found = run(train, way, ("llama", False), SOURCE, held, world_size=3)
    predicted = costs.momentum(shapes, ranks=3, way=NAMES[way])
    assert max(rank[-1] for rank in found) == predicted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.counted("zero", "bytes that each way of Muon sends in a step")
def test_what_each_way_sends(way):
    shapes = [tuple(p.shape) for p in lesson.build("llama", False, seed=0).blocks.parameters() if p.dim() == 2]
    for ranks in (2, 3):
        found = run(
            functools.partial(train, read=lesson.wire_bytes, around=ledger.Ledger, dtype=torch.float32),
            *(way, ("llama", False)),
            world_size=ranks,
        )
        predicted = 4 * costs.sent(shapes, ranks=ranks, way=NAMES[way])
        assert [rank[-1] for rank in found] == pytest.approx([predicted] * ranks)


# ---- wrong versions --------------------------------------------------------------------------------------------------

WRONG = {  # what went wrong: (way, what stands there, what stands there then, what the launcher reports)
    "a piece is orthogonalised": (
        "Gathered",
        "self.change(p, orthogonalized(whole))",
        "self.change(p, comm.all_gather(orthogonalized(piece), self.group))",
        None,
    ),
    "rows of many matrices are orthogonalised": (
        "AllToAll",
        "orthogonalized(x.flatten(0, 1))",
        "orthogonalized(torch.stack(pieces).flatten(0, 1))",
        None,
    ),
    "the way back is forgotten": (
        "AllToAll",
        "x = comm.all_to_all(x, self.group)  # rows of N matrices again",
        "x = x  #",
        None,
    ),
    "gradients are not summed": ("Redundant", "return comm.all_reduce(p.grad, self.group)", "return p.grad", None),
    "an owner keeps its update": ("Owned", "comm.broadcast(p.data, self.group, owner[p])", "p.data", None),
    "the momentum starts anew": ("Redundant", "DECAY * old + gradient", "gradient", None),
    "rows in another order": ("Gathered", "orthogonalized(whole)", "orthogonalized(whole.roll(1, 0))", None),
}


def right(group, way, case, source):
    return all(map(lesson.equal, train(group, way, case, source), alone(*case)))


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_version_is_noticed(what):
    way, old, new, report = WRONG[what]
    found = lesson.verdict(right, way, ("gpt2", False), lesson.changed(SOURCE, old, new))
    assert lesson.noticed(found, report), found
