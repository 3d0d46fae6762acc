"""One question has one answer, wherever in the package it is asked."""

import pytest

from shardlab.costs import step
from shardlab.costs.facts import hardware, models, network, nodes
from shardlab.costs.programs import BOOK
from shardlab.costs.traces.replay import replay
from shardlab.costs.training import Training
from shardlab.layout import Layout

APART = network.uniform(4, hardware.link("InfiniBand NDR"), hardware.chip("H100 SXM 80 GB"))


@pytest.mark.parametrize(
    ("model", "layout", "cluster", "options"),
    [
        ("Llama 3.2 3B", Layout(dp=8), nodes.cluster("DGX H100", 1), {}),
        ("Llama 3 8B", Layout(dp=16), nodes.cluster("DGX H100", 2), {}),
        ("Llama 3.2 3B", Layout(dp=4), APART, {}),
        ("Llama 3.2 3B", Layout(dp=16), nodes.cluster("GCP a2-highgpu-8g", 2), {"num_microbatches": 2}),  # one card
        ("Llama 3 8B", Layout(dp=8), nodes.cluster("PCIe box, 100 GbE", 1), {}),
        ("Llama 3 8B", Layout(tp=8), nodes.cluster("DGX H100", 1), {"microbatch": 2}),
        ("Llama 3 8B", Layout(tp=8), nodes.cluster("DGX A100", 1), {"recomputation": "full"}),
        ("Llama 3 8B", Layout(tp=8, sequence_parallel=True), nodes.cluster("DGX H100", 1), {}),
        ("Llama 3 8B", Layout(tp=4), APART, {}),
        ("Llama 3 8B", Layout(pp=4), nodes.cluster("DGX H100", 1), {}),
        ("Llama 3 8B", Layout(pp=4), nodes.cluster("PCIe box, 100 GbE", 1), {"num_microbatches": 4}),
        ("Llama 3.2 3B", Layout(pp=4), nodes.cluster("DGX H100", 1), {"num_microbatches": 4}),  # tied
        ("Llama 3 8B", Layout(pp=4), APART, {"num_microbatches": 4}),
        ("Llama 3 8B", Layout(pp=4), APART, {"num_microbatches": 4, "schedule": "GPipe"}),
    ],
    ids=str,
)
def test_the_replay_of_a_program_takes_as_long_as_its_step(model, layout, cluster, options):
    """Within 1 %; a step takes the slowest hop for every message of a pipeline, and a tree where NCCL would."""
    sizes = {"sequence": 4096, "program": BOOK, **options}
    run = step.Run(training=Training(spec=models.published(model).spec, layout=layout, **sizes), cluster=cluster)
    played = replay(step.program(run), cluster)
    assert played.seconds == pytest.approx(step.step(run).seconds, rel=0.01)
