"""One question has one answer, wherever the book or the package asks it."""

import pytest


def test_pipelines_have_the_seconds_of_a_step_and_the_bytes_of_memory():
    """Of the chapter's 48 stages of GPT-3, and of the explorer's four of Llama 3 8B, for any program."""
    from shardlab.costs import memory, programs, step
    from shardlab.costs.facts import hardware, models, network
    from shardlab.costs.pipeline import stage_costs
    from shardlab.costs.training import Training
    from shardlab.explorers import pipeline as explorers
    from shardlab.layout import Layout

    def answers(training):
        cluster = network.uniform(training.layout.pp, hardware.link("InfiniBand NDR"), explorers.CHIP)
        micro = step.microbatch(step.Run(training=training, cluster=cluster), step.axes.links(cluster, training.layout))
        layers = training.spec.num_layers // training.layout.pp
        ends = [micro.first, *[0.0] * (training.layout.pp - 2), micro.last]
        stages = range(training.layout.pp)
        nbytes = [sum(memory.per_rank(training, stage).values()) for stage in stages]
        return [layers * micro.layer + end for end in ends], nbytes

    gpt3 = models.published("GPT-3 175B").spec
    for program in (programs.BOOK, programs.NEMO_2024):
        kind = {"spec": gpt3, "layout": Layout(pp=48), "recomputation": "full", "program": program}
        training = Training(**kind, num_microbatches=48)
        cut = stage_costs.cut(training, explorers.CHIP)
        assert [len(stage) for stage in cut.stages] == [3, *[2] * 46, 3]  # equally many layers
        seconds, nbytes = answers(training)
        assert cut.seconds == pytest.approx(seconds, rel=1e-12)
        assert cut.nbytes == pytest.approx(nbytes, rel=1e-12)
    cluster = network.uniform(48, hardware.link("100 GbE"), explorers.CHIP)
    run = step.Run(training=Training(spec=gpt3, layout=Layout(pp=48), program=programs.BOOK), cluster=cluster)
    beta = hardware.LINK_UTILISATION * hardware.link("100 GbE").bandwidth
    assert step.step(run).rate / beta / 12 < gpt3.hidden_size  # "enough even for 100 GbE"

    seconds, nbytes = answers(explorers.TRAINING)
    rows = explorers.cut_view(first=8, second=8, third=8).table[1:]
    assert [float(row[2].split()[0]) for row in rows] == pytest.approx([1e3 * each for each in seconds], rel=3e-3)
    assert [float(row[4].split()[0]) for row in rows] == pytest.approx([each / 1e9 for each in nbytes], rel=2e-3)
