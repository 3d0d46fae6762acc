"""Published interruptions: their causes add up, and one GPU lasts three to nine years."""

from shardlab.costs.published.interruptions import CAUSES, RUNS


def test_the_causes_add_up_to_all_interruptions():
    assert sum(cause.times for cause in CAUSES) == RUNS[0].failures


def test_hours_of_a_gpu_between_two_interruptions():
    assert [round(run.gpu_hours) for run in RUNS] == [50_677, 29_538, 82_051]
