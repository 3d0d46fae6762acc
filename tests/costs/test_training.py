"""A training counts its tokens and the microbatches in flight as the papers do."""

import re
from fractions import Fraction
from itertools import product

import pytest

from shardlab import schedules
from shardlab.costs.training import Training, _counted, in_flight
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.sharding.layout import Layout

SIZES = {"vocab_size": 40, "context_length": 32, "hidden_size": 16, "num_layers": 48, "num_heads": 4}
SPEC = TransformerSpec(**SIZES)
MIXTURE = TransformerSpec(**SIZES, experts=Experts(num_experts=4, per_token=2, expert_size=8))
WHOLE = {"sequence_parallel": True, "whole_experts": True}


def training(**changes):
    return Training(**{"spec": SPEC, **changes})


def test_tokens_of_a_microbatch():
    run = training(layout=Layout(dp=4, cp=2), microbatch=3, num_microbatches=5, sequence=8)
    assert run.tokens == 3 * 8 // 2
    assert training().tokens == 32


def test_whole_experts_get_the_tokens_of_slices():
    cut, whole = (training(spec=MIXTURE, layout=Layout(tp=4, **way)) for way in ({"sequence_parallel": True}, WHOLE))
    assert (cut.dispatched_tokens, cut.routed_tokens) == (32, 64)
    assert (whole.dispatched_tokens, whole.routed_tokens) == (8, 16)


@pytest.mark.parametrize("pp", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("microbatches", [1, 2, 5, 12, 24])
def test_in_flight_is_what_the_papers_state(pp, microbatches):
    def flying(schedule):
        run = training(layout=Layout(pp=pp), num_microbatches=microbatches, schedule=schedule)
        return [run.in_flight(stage).all for stage in range(pp)]

    assert flying("naive") == [1] * pp
    assert flying("GPipe") == [microbatches] * pp
    assert flying("1F1B") == [min(pp - stage, microbatches) for stage in range(pp)]


@pytest.mark.parametrize("schedule", schedules.WHOLE)
def test_in_flight_is_what_the_played_schedule_has_in_flight(schedule):
    for pp, m, chunks in product(range(1, 6), range(1, 14), (2, 3, 4) if schedule in schedules.CHUNKED else (1,)):
        for stage in range(pp if m >= pp or chunks == 1 else 0):
            flying = most = [0] * chunks
            for action in schedules.SCHEDULES[schedule].order(stage, pp, m, *[chunks] * (chunks > 1)):
                change = 1 if action.kind == "F" else -1
                flying = [n + change * (chunk == action.chunk) for chunk, n in enumerate(flying)]
                most = max(most, flying, key=sum)
            assert most == sorted(most, reverse=True)
            counted = in_flight(schedule, stage, pp=pp, num_microbatches=m, chunks=chunks)
            assert counted == (sum(most), most[0], most[-1])
            order = schedules.make(schedule, pp, m, chunks).orders[stage]
            assert _counted(order) == counted  # as for a schedule without a formula


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("chunks", [2, 4])
def test_interleaving_runs_ahead_on_every_stage(pp, chunks):
    """Narayanan et al. 2021: two forwards more for each stage that follows, pp more for each further chunk."""
    run = training(layout=Layout(pp=pp), schedule="interleaved", chunks=chunks, num_microbatches=4 * pp)
    for stage in range(pp):
        flying = run.in_flight(stage)
        assert flying.all == 2 * (pp - 1 - stage) + (chunks - 1) * pp + 1
        assert flying.of_last == 1 or stage < pp - 1


@pytest.mark.parametrize(("layers", "pp", "chunks"), [(96, 8, 3), (105, 35, 3), (24, 4, 2)])
def test_the_interleaved_schedule_of_korthikanti(layers, pp, chunks):
    """Korthikanti et al. 2022, section 4.2.3: L (1 + (p - 1) / (p m)) layers on the first stage; GPT-3 and MT-NLG."""
    spec = TransformerSpec(**{**SIZES, "num_layers": layers})
    run = Training(spec=spec, layout=Layout(pp=pp), schedule="interleaved", chunks=chunks, num_microbatches=4 * pp)
    layers_held = run.in_flight(0).all * Fraction(layers, pp * chunks)
    assert layers_held == layers * (1 + Fraction(pp - 1, pp * chunks))


def test_without_a_pipeline_one_microbatch_is_in_flight():
    assert training(num_microbatches=8).in_flight(0) == (1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "ring"}, "known: flash, stored"),
        ({"recomputation": "some"}, "known: none, selective, full"),
        ({"schedule": "zigzag"}, "known: naive, GPipe, 1F1B, interleaved"),
        ({"microbatch": 0}, "microbatch=0 must be a whole number of at least 1"),
        ({"num_microbatches": 0}, "num_microbatches=0 must be a whole number of at least 1"),
        ({"sequence": 33}, "use at most 32"),
        ({"layout": Layout(tp=3)}, "use tp = 1, 2, 4"),
        ({"layout": Layout(cp=3)}, "does not split over 3 ranks (cp, and tp where it is sequence parallel); use a mul"),
        ({"layout": Layout(tp=4, sequence_parallel=True), "sequence": 30}, "use a multiple of 4"),
        ({"spec": MIXTURE, "layout": Layout(tp=2, dp=4, ep=4, **WHOLE)}, "ep=4 x tp=2 ranks hold whole experts"),
        ({"chunks": 2}, "need the interleaved schedule, not '1F1B'"),
        ({"schedule": "interleaved", "chunks": 0}, "chunks=0 must be a whole number of at least 1"),
        ({"schedule": "interleaved", "chunks": 7, "layout": Layout(pp=2)}, "chunks * pp (or of 50"),
    ],
)
def test_what_cannot_run_is_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        training(**changes)


def test_sequence_parallel_needs_no_split_of_the_sequence_without_it():
    assert training(layout=Layout(tp=4), sequence=30).tokens == 30
