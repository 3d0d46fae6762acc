"""The program of a rank under ZeRO sends the bytes of ZeRO, and takes as long as the step says."""

import pytest

from shardlab.costs import step, zero
from shardlab.costs.compute import kernels
from shardlab.costs.facts import models, nodes
from shardlab.costs.programs import BOOK, BOOK_ZERO
from shardlab.costs.step.zero_program import zero_program
from shardlab.costs.traces.replay import replay
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

DGX = nodes.cluster("DGX H100", 1)


def run(stage, model="GPT-2 XL", ranks=8, **options):
    spec = models.published(model).spec
    layout = Layout(dp=ranks, zero=stage)
    training = Training(spec=spec, layout=layout, sequence=1024, program=BOOK_ZERO, **options)
    return step.Run(training=training, cluster=DGX)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("model", ["GPT-2 XL", "Llama 3 8B"])
@pytest.mark.parametrize("size", [{}, {"num_microbatches": 4}, {"microbatch": 4}], ids=str)
def test_a_step_takes_what_the_replay_of_all_ranks_takes(stage, model, size):
    """Within 1 %, also where the rank waits for most of the time."""
    one = run(stage, model, **size)
    events = [event for rank in range(8) for event in zero_program(one, rank)]
    assert replay(events, DGX).seconds == pytest.approx(step.step(one).seconds, rel=0.01)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("hold", [False, True])
def test_the_program_sends_what_is_predicted(stage, hold):
    one = run(stage, num_microbatches=4)
    sent = [event for event in zero_program(one, hold=hold) if event.kind == "communicate"]
    nbytes = 7 / 8 * sum(event.nbytes for event in sent)
    assert nbytes == pytest.approx(sum(zero.sent_bytes(one.training, hold=hold).values()))


def test_one_rank_sends_nothing_and_computes_as_long():
    alone = run(3, ranks=1)
    events = zero_program(alone)
    assert {event.kind for event in events} == {"compute"}
    assert sum(event.seconds for event in events) == pytest.approx(step.step(alone).seconds)


def test_stage_3_hides_its_messages_from_so_many_tokens_of_a_microbatch():
    """Beyond the edge of the rule a step hardly waits; with half as many tokens it waits most of the difference."""
    one = run(3, "Llama 3 8B")
    rate = kernels.ordinary_flops(DGX.node.chip)
    edge = zero.tokens_to_hide(one.training, rate / (0.8 * 450e9))
    shares = {}
    for times in (0.25, 4):
        taken = step.step(run(3, "Llama 3 8B", microbatch=max(1, round(times * edge / 1024))))
        shares[times] = taken.waiting / taken.seconds
    assert shares[4] < 0.05 < shares[0.25]


def test_other_layouts_are_refused():
    with pytest.raises(ValueError, match=r"has other axes than dp, or no ZeRO; use `program`"):
        zero_program(run(0))
    with pytest.raises(ValueError, match="gathers its ends again; use BOOK_ZERO"):
        zero_program(run(3).by(BOOK))
