"""Model parallelism by hand on three GPUs: what the third one does all day."""

from dataclasses import replace

import pytest

from shardlab.costs.facts import hardware, models
from shardlab.costs.tensor_parallel import TensorParallelRun, by_hand

NVLINK = hardware.link("NVLink 4")
RUN = TensorParallelRun(
    spec=models.published("GPT-3 175B").spec, chip=hardware.chip("H100 SXM 80 GB"), link=NVLINK, tp=2
)


def test_a_layer_by_hand():
    """24 b s h^2 (1 + s / 6h) FLOPs on two chips; 2 b s h bytes each way for each; read three and write one."""
    h, s = 12_288, 2048
    message = 2 * s * h
    flops = 24 * s * h * h * (1 + s / (6 * h))
    assert by_hand.parts(RUN) == pytest.approx(
        {
            "pieces": flops / 2 / (0.56 * 989.4e12),
            "to the last rank": 3.4e-6 + 2 * message / (0.8 * 450e9),
            "combining": 4 * message / 3.35e12,
            "back to the others": 3.4e-6 + 2 * message / (0.8 * 450e9),
        },
        rel=0.001,
    )


def test_the_third_gpu_idles_and_the_two_wait_for_it():
    shares = by_hand.busy(RUN)
    assert shares["the last rank"] < 0.01
    assert shares["ranks with pieces"] < shares["all ranks, tensor parallel"] < 1
    slow = by_hand.busy(replace(RUN, link=hardware.link("PCIe 5.0 x16")))
    assert all(slow[who] < shares[who] for who in shares)
    perfect = by_hand.busy(replace(RUN, link=replace(NVLINK, bandwidth=1e30, latency=0.0)))
    assert perfect["ranks with pieces"] + perfect["the last rank"] == pytest.approx(1)  # one or the other
