"""A model whose blocks live in its host's memory against one whose blocks do not, on one GPU, beside what is predicted.

The swapped model's blocks are in pinned memory, and the next is loaded while one computes; both models recompute each
layer, and take turns. The prediction is the resident model's own time, or that of the transfers where they take longer,
pass by pass, at `LINK_UTILISATION` of PCIe's rate. Without a GPU there is nothing to measure.
"""

import statistics
from dataclasses import replace
from typing import Any

import race
import record
import torch
from events import against, between, model_of, this_gpu, timed
from torch import Tensor, nn

from shardlab.costs.facts import hardware, models
from shardlab.costs.facts.hardware import Chip
from shardlab.costs.memory.offload import Swap
from shardlab.files.terminal import no_arguments
from shardlab.ranks import transformer
from shardlab.ranks.memory import recompute
from shardlab.ranks.memory.offload import Offload

TOKENS = {1024: 12, 4096: 8, 16384: 5}  # in a step -> rounds
LAYERS = 12
WARM_UP = 3
COPIES = 7  # rounds


def host_rates() -> dict[str, Any]:
    """GB/s between the GPU and its host's memory, from pinned and from ordinary pages, one way and both."""
    here = torch.empty(2**28, dtype=torch.uint8, device="cuda")
    there = {"pinned": torch.empty(2**28, dtype=torch.uint8, pin_memory=True)}
    there["pageable"] = torch.ones(2**28, dtype=torch.uint8)
    found: dict[str, Any] = {}
    for kind, home in there.items():
        into = timed(lambda home=home: here.copy_(home, non_blocking=True), COPIES)
        out = timed(lambda home=home: home.copy_(here), COPIES)
        found |= {f"{kind}, to the GPU": into, f"{kind}, to the host": out}
    back, stream = torch.empty_like(there["pinned"]).pin_memory(), torch.cuda.Stream()
    source = torch.empty_like(here)

    def both() -> None:
        stream.wait_stream(torch.cuda.current_stream())
        here.copy_(there["pinned"], non_blocking=True)
        with torch.cuda.stream(stream):
            back.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(stream)

    found["pinned, each way at once"] = timed(both, COPIES)
    return {name: race.quartiles([here.nbytes / each / 1e9 for each in times]) for name, times in found.items()}


def swaps(chip: Chip) -> list[dict[str, Any]]:
    """Forward and backward of a model whose blocks live on the host, against one whose blocks do not."""
    spec = replace(models.published("Llama 3.2 3B").spec, num_layers=LAYERS)
    at_home, swapped = model_of(spec), model_of(spec)
    for blocks in (at_home.blocks, swapped.blocks):
        recompute.wrap(blocks)
    offload = Offload(swapped.blocks, "cuda", prefetch=True)
    numbers = sum(p.numel() for p in at_home.blocks.parameters())
    link = hardware.host_link(chip)
    rows = []
    for count, rounds in TOKENS.items():
        tokens = torch.randint(spec.vocab_size, (count // 1024, 1025), device="cuda")
        swap = Swap(num_parameters=numbers, tokens=count, chip=chip, link=link, recomputes=True)
        steps = {
            "resident, forward": lambda tokens=tokens: loss_of(at_home, tokens),
            "resident": lambda tokens=tokens: loss_of(at_home, tokens).backward(),
            "swapped": lambda tokens=tokens: loss_of(swapped, tokens).backward(),
        }
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(WARM_UP + rounds):
            for name in race.order(steps, turn):
                seconds[name].append(between(steps[name]))
        kept = {name: times[WARM_UP:] for name, times in seconds.items()}
        forward, both = (statistics.median(kept[name]) for name in ("resident, forward", "resident"))
        each_way = swap.transfer / swap.loads
        row = against(max(forward, each_way) + max(both - forward, each_way), kept["swapped"])
        row |= {f"{name}, ms": round(1e3 * seconds, 3) for name, seconds in race.medians(kept).items()}
        rows.append({"tokens": count, **row})
        print(rows[-1], dict(offload.moved), flush=True)
    return rows


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    model.zero_grad()
    return transformer.loss(model(tokens[:, :-1]).float(), tokens[:, 1:])


def main() -> None:
    here = this_gpu()
    if here is None:
        return
    chip, _ = here
    result = {"chip": chip.name, "host, GB/s": host_rates(), "swaps": swaps(chip)}
    print("written to", record.write("gpu_swaps", result).name)


if __name__ == "__main__":
    no_arguments(__doc__)
    main()
