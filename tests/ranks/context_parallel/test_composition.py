"""Every layout with context parallelism trains the model of one process: losses, norms and weights, in float64."""

import itertools

import pytest
import torch

from shardlab.launch import run
from shardlab.ranks.context_parallel import ContextStrategy
from shardlab.ranks.mesh import Mesh
from shardlab.ranks.train import Trainer
from shardlab.schedules import make
from shardlab.sharding.layout import ZERO_STAGES, Layout, divisors, tensor_degrees
from tests.rank_types import rank_type
from tests.ranks.test_train import off, pieces
from tests.ranks.training import MAX_NORM, MICROBATCHES, STYLES, adamw, alone, batch, plain, spec

SIZES = (2, 4, 8)
SCHEDULES = ("GPipe", "1F1B", "ZB-H1")


def layouts(size):
    """List all of a size whose ranks share sequences, with slices and whole sequences, and every stage of ZeRO.

    Where 8 ranks make many layouts, the stages of ZeRO take turns.
    """
    turns = itertools.cycle(ZERO_STAGES)
    for cp, tp, pp in itertools.product(divisors(size), repeat=3):
        if cp > 1 and size % (cp * tp * pp) == 0:
            for sliced in (False, True)[: 1 + (tp > 1)]:
                for zero in ZERO_STAGES if size < 8 else [next(turns)]:
                    dp = size // (cp * tp * pp)
                    yield Layout(dp=dp, cp=cp, tp=tp, pp=pp, zero=zero, sequence_parallel=sliced)


def cases(size):
    """List (layout, strategy, schedule, style, layers, samples); strategies, schedules and styles take turns."""
    found = []
    for index, layout in enumerate(layouts(size)):
        legal = [style for style in STYLES if layout.tp in tensor_degrees(spec(style, 1))]
        strategies = [ContextStrategy(), ContextStrategy(gathered=True), ContextStrategy(placement="contiguous")]
        strategies += [ContextStrategy(ulysses=u) for u in divisors(layout.cp)[1:] if 24 // layout.tp % u == 0]
        strategy, schedule = strategies[index % len(strategies)], SCHEDULES[index % len(SCHEDULES)]
        shape = layout.pp + (layout.pp > 1), MICROBATCHES * layout.dp + 1
        found.append((layout, strategy, schedule, legal[index % len(legal)], *shape))
    return found


def errors(group, case, one_process, known):
    """Return the largest errors of losses, norms and weights."""
    layout, strategy, schedule, style, layers, samples = case
    history, weights = one_process
    mesh = Mesh(layout, group, known=known)
    plan = make(schedule, layout.pp, MICROBATCHES)
    trainer = Trainer(plain(style, layers), mesh, plan, adamw, max_norm=MAX_NORM, context=strategy)
    losses, norms = [], []
    for step, (loss, norm) in enumerate(history):
        losses.append(abs(trainer.backward(*batch(mesh, style, step, samples)).item() - loss))
        norms.append(abs(trainer.update().item() - norm))
    apart = [off(piece, weights[name], trainer.cuts[name], mesh.tp) for name, piece in pieces(trainer)]
    return max(losses), max(norms), max(apart)


def together(group, references):
    known = {}
    return [errors(group, case, references[case[3:]], known) for case in cases(group.size())]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parity(
    "context_parallel",
    "every layout of 2, 4 and 8 ranks with context parallelism trains like one process; on 8, ZeRO's stages take turns",
)
def test_every_layout_trains_the_model_of_one_process(size):
    references = {shape: alone(*shape, 1) for shape in {case[3:] for case in cases(size)}}
    for rank in run(together, references, world_size=size, ranks=rank_type(size, on_gloo=4)):
        for case, apart in zip(cases(size), rank, strict=True):
            torch.testing.assert_close(list(apart), [0.0] * 3, rtol=0, atol=1e-12, msg=f"{case}: {apart}")
