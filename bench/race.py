"""How benches compare: contenders take turns, a ratio is formed within a round, quartiles over rounds are kept.

Whatever else the machine does then hits all alike. Every round runs each contender once, in another order than the
round before.
"""

import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardlab import comm
from shardlab.launch import contracts, run
from shardlab.model.experts import Experts
from shardlab.model.spec import TransformerSpec
from shardlab.ranks import transformer

WARM_UP = 3  # rounds that do not count: torch's DDP rebuilds its buckets after the first step
Sizes = Mapping[str, tuple[int, int, int, int, int]]  # hidden size, layers, samples, tokens per sample, rounds


def unchecked() -> None:
    """Let ranks send without comparing their calls, as they would on GPUs."""
    os.environ[contracts.FOLDER] = ""


def order(names: Iterable[str], turn: int) -> list[str]:
    """The contenders as they run in this round."""
    names = list(names)
    first = turn % len(names)
    return (names[first:] + names[:first])[:: 1 if turn % 2 else -1]


def take_turns(group: comm.Group, steps: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every contender's step, round by round, until the last rank has ended it."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(WARM_UP + rounds):
        for name in order(steps, turn):
            comm.barrier(group)
            start = time.perf_counter()
            steps[name]()
            comm.barrier(group)
            seconds[name].append(time.perf_counter() - start)
    return {name: times[WARM_UP:] for name, times in seconds.items()}


def training_step(
    model: nn.Module, optimizer: Any, tokens: Tensor, average: Callable[[], None] | None = None
) -> Callable[[], None]:
    """Forward, backward, and the optimizer's step; `optimizer` has zero_grad() and step().

    average: runs between backward and the step, where the model does not average its gradients itself.
    """

    def step() -> None:
        optimizer.zero_grad()
        model(tokens[:, :-1], tokens[:, 1:]).backward()
        if average is not None:
            average()
        optimizer.step()

    return step


def quartiles(values: Sequence[float], digits: int = 3) -> dict[str, float]:
    """As results have them, and `shardlab.files.measured.spread` shows them."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": round(median, digits), "quartile 1": round(low, digits), "quartile 3": round(high, digits)}


def ratio(these: Sequence[float], those: Sequence[float]) -> dict[str, float]:
    """Quartiles of these / those, round by round: below 1 these are faster."""
    return quartiles([a / b for a, b in zip(these, those, strict=True)])


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Seconds of each contender."""
    return {name: round(statistics.median(times), 6) for name, times in seconds.items()}


# ---- the same model in several hands, on 2 and 4 ranks ---------------------------------------------------------------

Race = Callable[[comm.Group, TransformerSpec, int, int], dict[str, list[float]]]  # group, spec, samples, rounds


def all_rows(
    race: Race,
    sizes: Sizes,
    against: Mapping[str, str],
    *,
    plain: Mapping[str, str],
    style: str = "gpt2",
    experts: Experts | None = None,
    also: Mapping[str, tuple[str, str]] | None = None,
) -> list[dict[str, Any]]:
    """The rows of the results: race each size. against: ours -> torch's, of what `race` returns; empty: no rival.

    plain: ours -> the plain file's. also: other pairs by what their ratio is called; its median is kept.
    """
    rows = []
    for model, (hidden_size, num_layers, samples, length, rounds) in sizes.items():
        shape = {"context_length": length, "hidden_size": hidden_size, "num_layers": num_layers, "num_heads": 4}
        spec = TransformerSpec(vocab_size=256, style=style, experts=experts, **shape)
        with torch.device("meta"):
            parameters = sum(p.numel() for p in transformer.Transformer(spec).parameters())
        for ranks in (2, 4):
            seconds = run(race, spec, samples, rounds, world_size=ranks, timeout=1800)[0]
            row: dict[str, Any] = {"model": model, "parameters": parameters, "ranks": ranks, "samples": samples}
            row |= {"tokens per sample": length, "rounds": rounds, "seconds": medians(seconds)}
            if against:
                row["ours / torch"] = {a: ratio(seconds[a], seconds[b]) for a, b in against.items()}
            row["plain / ours"] = {a: ratio(seconds[b], seconds[a]) for a, b in plain.items()}
            row |= {name: ratio(seconds[a], seconds[b])["median"] for name, (a, b) in (also or {}).items()}
            rows.append(row)
            print(model, ranks, "ranks", row.get("ours / torch", row["plain / ours"]), row["seconds"], flush=True)
    return rows


def over_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of each contender of ours, the median over rows of the medians over rounds."""
    names = rows[0]["ours / torch"]
    return {name: round(statistics.median(row["ours / torch"][name]["median"] for row in rows), 3) for name in names}
