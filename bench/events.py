"""How benches time a GPU: events on its stream, several rounds, and what was predicted beside what was measured."""

import gc
import statistics
from collections.abc import Callable
from typing import Any

import race
import torch

from shardlab.costs.facts import hardware, nodes
from shardlab.costs.facts.hardware import Chip
from shardlab.costs.facts.network import Node
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer

CHIPS = {  # as torch names a GPU -> the chip, and a node that has it
    "NVIDIA H100 80GB HBM3": ("H100 SXM 80 GB", "DGX H100"),
    "NVIDIA H200": ("H200 SXM 141 GB", "AWS p5en.48xlarge"),
}
ROUNDS = 15
SHORTEST = 2e-3  # seconds between two events: what is faster is repeated


def this_gpu() -> tuple[Chip, Node] | None:
    """The chip, and a node that has it, or None without a GPU. Errors: ValueError for one that CHIPS lacks."""
    if not torch.cuda.is_available():
        print("no GPU here, and so nothing to measure")
        return None
    name = torch.cuda.get_device_name()
    if name not in CHIPS:
        raise ValueError(f"no facts about {name!r}; known: {', '.join(CHIPS)}; add it to CHIPS, with its node")
    chip, node = CHIPS[name]
    return hardware.chip(chip), nodes.NODES[node]


def timed(run: Callable[[], Any], rounds: int = ROUNDS) -> list[float]:
    """Seconds of `run` on the GPU, round by round, averaged over as many as take SHORTEST."""
    repeats = repeats_of(run)
    return [between(run, repeats) / repeats for _ in range(rounds)]


def replayed(run: Callable[[], Any]) -> list[float]:
    """The same from a recorded graph: the host, which may take longer to start a kernel, has no part in it."""
    graph, repeats = torch.cuda.CUDAGraph(), repeats_of(run)
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            run()
    between(graph.replay)  # the first is slower
    return [between(graph.replay) / repeats for _ in range(ROUNDS)]


def repeats_of(run: Callable[[], Any]) -> int:
    """How many runs take SHORTEST."""
    repeats = 1
    while (once := between(run, repeats)) < SHORTEST:
        repeats *= 2 if once > SHORTEST / 8 else 8
    return repeats


def between(run: Callable[[], Any], repeats: int = 1) -> float:
    """Seconds between two events, before and after."""
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(repeats):
        run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / 1e3


def against(predicted: float, seconds: list[float]) -> dict[str, Any]:
    """What a row says of a time: both, and the error of the prediction."""
    median = statistics.median(seconds)
    return {
        "predicted, ms": round(predicted * 1e3, 4),
        "measured, ms": race.quartiles([each * 1e3 for each in seconds], 4),
        "error, %": round(100 * (predicted / median - 1), 1),
    }


def model_of(spec: TransformerSpec) -> transformer.Transformer:
    """The reference model in 16 bits on the GPU, when memory of earlier ones has been returned."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    with torch.device("cuda"):
        return transformer.Transformer(spec).to(torch.bfloat16)
