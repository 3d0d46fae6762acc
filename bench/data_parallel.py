"""Step time of our DataParallel against torch's DDP: same model, same buckets, same ranks, taking turns.

Every round runs one step of every contender, each time in another order, so that whatever else the machine does
hits all alike. A ratio is formed within a round; the medians over rounds are kept.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import record
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardlab.ranks import comm, transformer
from shardlab.ranks.data_parallel import DataParallel
from shardlab.ranks.launch import run
from shardlab.spec import TransformerSpec

MIB = 2**20
CONTENDERS: dict[str, Callable[[nn.Module, comm.Group], nn.Module]] = {
    "per parameter": lambda m, g: DataParallel(m, g, bucket_bytes=0, overlap=False),
    "buckets of 1 MiB": lambda m, g: DataParallel(m, g, bucket_bytes=MIB, overlap=False),
    "buckets of 1 MiB, overlapped": lambda m, g: DataParallel(m, g, bucket_bytes=MIB),
    "buckets of 25 MiB, overlapped": lambda m, g: DataParallel(m, g),
    "torch, 1 MiB": lambda m, g: DistributedDataParallel(m, process_group=g, bucket_cap_mb=1),
    "torch, 25 MiB": lambda m, g: DistributedDataParallel(m, process_group=g, bucket_cap_mb=25),
    "torch, 25 MiB, gradients as views": lambda m, g: DistributedDataParallel(
        m, process_group=g, bucket_cap_mb=25, gradient_as_bucket_view=True
    ),
}
AGAINST_TORCH = {
    "buckets of 1 MiB, overlapped": "torch, 1 MiB",
    "buckets of 25 MiB, overlapped": "torch, 25 MiB",
}
MODELS = {  # (hidden size, layers, samples per rank, tokens per sample, rounds)
    "small": (64, 2, 8, 32, 40),
    "medium": (128, 4, 8, 32, 16),
    "large": (256, 4, 4, 64, 10),
}
GLOBAL_BATCH = 32  # samples per step of strong scaling, over all ranks
WARM_UP = 3  # torch rebuilds its buckets after the first step


def take_turns(group: comm.Group, spec: TransformerSpec, samples: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contender, round by round, until the last rank has ended its step."""
    tokens = torch.randint(0, spec.vocab_size, (samples, spec.context_length + 1))
    models, seconds = {}, {name: [] for name in CONTENDERS}
    for name, wrap in CONTENDERS.items():
        models[name] = wrap(transformer.Transformer(spec), group)
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=1e-3) for name, model in models.items()}
    names = list(CONTENDERS)
    for turn in range(WARM_UP + rounds):
        first = turn % len(names)
        for name in (names[first:] + names[:first])[:: 1 if turn % 2 else -1]:
            comm.barrier(group)
            start = time.perf_counter()
            optimizers[name].zero_grad()
            models[name](tokens[:, :-1], tokens[:, 1:]).backward()
            optimizers[name].step()
            comm.barrier(group)
            seconds[name].append(time.perf_counter() - start)
    return {name: times[WARM_UP:] for name, times in seconds.items()}


def step_seconds(group: comm.Group, spec: TransformerSpec, global_batch: int, steps: int) -> float:
    """Median duration of a step when the ranks share one batch."""
    model = DataParallel(transformer.Transformer(spec), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, spec.vocab_size, (global_batch // group.size(), spec.context_length + 1))
    seconds = []
    for _ in range(WARM_UP + steps):
        comm.barrier(group)
        start = time.perf_counter()
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        optimizer.step()
        comm.barrier(group)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[WARM_UP:])


def strong_scaling(rounds: int = 5, steps: int = 2) -> dict[str, Any]:
    """How many times faster than one rank several take a step on the same global batch; medians over rounds.

    Every rank computes on one thread. Ranks beyond the number of cores share them, and cannot gain.
    """
    spec = TransformerSpec(vocab_size=256, context_length=64, hidden_size=256, num_layers=4, num_heads=4)
    ranks = [1, 2, 4]
    seconds = [
        [run(step_seconds, spec, GLOBAL_BATCH, steps, world_size=count)[0] for count in ranks] for _ in range(rounds)
    ]
    gains = [ratio([turn[0] for turn in seconds], [turn[place] for turn in seconds]) for place in range(len(ranks))]
    return {
        "ranks": ranks,
        "gain": [gain["median"] for gain in gains],
        "quartiles": [[gain[f"quartile {number}"] for gain in gains] for number in (1, 3)],
        "seconds": [round(statistics.median(column), 6) for column in zip(*seconds, strict=True)],
        "global batch": GLOBAL_BATCH,
    }


def ratio(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Quartiles of ours / theirs, round by round: below 1 we are faster."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return {"median": round(median, 3), "quartile 1": round(low, 3), "quartile 3": round(high, 3)}


def measure(model: str, world_size: int) -> dict[str, Any]:
    """One row of the results."""
    hidden_size, num_layers, samples, length, rounds = MODELS[model]
    spec = TransformerSpec(
        vocab_size=256, context_length=length, hidden_size=hidden_size, num_layers=num_layers, num_heads=4
    )
    seconds = run(take_turns, spec, samples, rounds, world_size=world_size)[0]
    return {
        "model": model,
        "parameters": sum(p.numel() for p in transformer.Transformer(spec).parameters()),
        "ranks": world_size,
        "samples per rank": samples,
        "tokens per sample": length,
        "rounds": rounds,
        "seconds": {name: round(statistics.median(times), 6) for name, times in seconds.items()},
        "ours / torch": {a: ratio(seconds[a], seconds[b]) for a, b in AGAINST_TORCH.items()},
        "ours / torch with gradients as views": ratio(
            seconds["buckets of 25 MiB, overlapped"], seconds["torch, 25 MiB, gradients as views"]
        ),
        "per parameter / fused": ratio(seconds["per parameter"], seconds["buckets of 1 MiB"])["median"],
    }


def main() -> None:
    rows = []
    for model in MODELS:
        for world_size in (2, 4):
            rows.append(measure(model, world_size))
            print(model, world_size, "ranks", rows[-1]["ours / torch"], rows[-1]["seconds"], flush=True)
    medians = [row["ours / torch"][name]["median"] for row in rows for name in AGAINST_TORCH]
    overall = round(statistics.median(medians), 3)
    print("median over all rows, ours / torch:", overall)
    result = {"median of ours / torch": overall, "strong scaling": strong_scaling(), "rows": rows}
    print("strong scaling:", result["strong scaling"])
    print("written to", record.write("data_parallel", result).name)


if __name__ == "__main__":
    main()
