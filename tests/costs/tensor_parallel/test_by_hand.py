"""Model parallelism by hand on three GPUs: what the third one does all day."""

from dataclasses import replace

import pytest

from shardlab.costs.compute.kernels import MOVED
from shardlab.costs.facts import hardware, models
from shardlab.costs.programs import BOOK
from shardlab.costs.tensor_parallel import by_hand, layer
from shardlab.costs.training import Training
from shardlab.sharding.layout import Layout

H100, NVLINK = hardware.chip("H100 SXM 80 GB"), hardware.link("NVLink 4").reached
PAIR = Training(spec=models.published("GPT-3 175B").spec, layout=Layout(tp=2), program=BOOK)


def test_a_layer_by_hand():
    """2 b s h bytes each way for each of two; the third reads three and writes one."""
    message = 2 * 2048 * 12_288
    forward = layer(PAIR, H100, NVLINK).time.forward
    moved = 3.4e-6 + 2 * message / 360e9
    assert by_hand.parts(PAIR, H100, NVLINK) == pytest.approx(
        {
            "pieces": forward.matrices + forward.attention,
            "to the last rank": moved,
            "combining": 4 * message / (MOVED * 3.35e12),
            "back to the others": moved,
        }
    )


def test_the_third_gpu_idles_and_the_two_wait_for_it():
    shares = by_hand.busy(PAIR, H100, NVLINK)
    assert shares["the last rank"] < 0.02
    assert shares["ranks with pieces"] < shares["all ranks, tensor parallel"] < 1
    slow = by_hand.busy(PAIR, H100, hardware.link("PCIe 5.0 x16").reached)
    assert all(slow[who] < shares[who] for who in shares)
    perfect = by_hand.busy(PAIR, H100, replace(NVLINK, bandwidth=1e30, latency=0.0))
    assert perfect["ranks with pieces"] + perfect["the last rank"] == pytest.approx(1)  # one or the other
