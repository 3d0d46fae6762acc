"""Step time of our DataParallel against torch's DDP: same model, same buckets, same ranks, taking turns."""

import functools
import statistics
from collections.abc import Callable
from typing import Any

import race
import record
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shardlab import comm
from shardlab.files.terminal import no_arguments
from shardlab.launch import run
from shardlab.model.spec import TransformerSpec
from shardlab.plain import data_parallel as plain
from shardlab.ranks import transformer
from shardlab.ranks.data_parallel import DataParallel

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
PLAIN = {"buckets of 25 MiB, overlapped": "plain"}
ALSO = {
    "per parameter / fused": ("per parameter", "buckets of 1 MiB"),
    "ours / torch with gradients as views": ("buckets of 25 MiB, overlapped", "torch, 25 MiB, gradients as views"),
}
MODELS = {  # (hidden size, layers, samples per rank, tokens per sample, rounds)
    "small": (64, 2, 8, 32, 40),
    "medium": (128, 4, 8, 32, 16),
    "large": (256, 4, 4, 64, 10),
}
GLOBAL_BATCH = 32  # samples per step of strong scaling, over all ranks


def race_models(group: comm.Group, spec: TransformerSpec, samples: int, rounds: int) -> dict[str, list[float]]:
    """Seconds per step of every contender, round by round."""
    tokens, steps = torch.randint(0, spec.vocab_size, (samples, spec.context_length + 1)), {}
    for name, wrap in CONTENDERS.items():
        model = wrap(transformer.Transformer(spec), group)
        steps[name] = race.training_step(model, torch.optim.SGD(model.parameters(), lr=1e-3), tokens)
    steps["plain"] = plain_step(transformer.Transformer(spec), tokens, group)
    return race.take_turns(group, steps, rounds)


def plain_step(model: nn.Module, tokens: torch.Tensor, group: comm.Group) -> Callable[[], None]:
    """The plain file's: one message for each gradient, when backward is over."""
    plain.copy_from_rank_0(model, group)
    average = functools.partial(plain.average_gradients, model, group, 1 / group.size())
    return race.training_step(model, torch.optim.SGD(model.parameters(), lr=1e-3), tokens, average)


def step_seconds(group: comm.Group, spec: TransformerSpec, global_batch: int, steps: int) -> float:
    """Median duration of a step when the ranks share one batch."""
    model = DataParallel(transformer.Transformer(spec), group)
    tokens = torch.randint(0, spec.vocab_size, (global_batch // group.size(), spec.context_length + 1))
    step = race.training_step(model, torch.optim.SGD(model.parameters(), lr=1e-3), tokens)
    return statistics.median(race.take_turns(group, {"ours": step}, steps)["ours"])


def strong_scaling(rounds: int = 5, steps: int = 2) -> dict[str, Any]:
    """How many times faster than one rank several take a step on the same global batch; medians over rounds.

    Every rank computes on one thread. Ranks beyond the number of cores share them, and cannot gain.
    """
    spec = TransformerSpec(vocab_size=256, context_length=64, hidden_size=256, num_layers=4, num_heads=4)
    ranks = [1, 2, 4]
    seconds = [
        [run(step_seconds, spec, GLOBAL_BATCH, steps, world_size=count)[0] for count in ranks] for _ in range(rounds)
    ]
    alone, *_ = columns = [*zip(*seconds, strict=True)]
    gains = [race.ratio(alone, column) for column in columns]
    return {
        "ranks": ranks,
        "gain": [gain["median"] for gain in gains],
        "quartiles": [[gain[f"quartile {number}"] for gain in gains] for number in (1, 3)],
        "seconds": [round(statistics.median(column), 6) for column in columns],
        "global batch": GLOBAL_BATCH,
    }


def main() -> None:
    race.unchecked()
    rows = race.all_rows(race_models, MODELS, AGAINST_TORCH, plain=PLAIN, also=ALSO)
    overall = round(statistics.median(row["ours / torch"][name]["median"] for row in rows for name in AGAINST_TORCH), 3)
    print("median over all rows, ours / torch:", overall)
    result = {"median of ours / torch": overall, "strong scaling": strong_scaling(), "rows": rows}
    print("strong scaling:", result["strong scaling"])
    print("written to", record.write("data_parallel", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
